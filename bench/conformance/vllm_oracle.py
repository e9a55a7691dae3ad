"""Steps vLLM's own Scheduler through scenarios, without a model or a server. Run by `oracle.Oracle`, never imported.

Runs under an interpreter that has vLLM 0.32 and nothing of ours. One line of JSON in, one out: a scenario
(`scenario.Scenario`) for its steps, or for {"error": TEXT}. The first line out says which vLLM this is. A step is told
if it scheduled or preempted something: requests with their tokens in vLLM's order, victims in order, tokens each
admission found cached, requests in the system, free blocks before and after, contents evicted in order, and the
requests that its output finished, in order. Ends with its input.
"""

import json
import logging
import os
import sys
import tempfile
from collections import deque

TINY_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}
MAX_EMPTY_STEPS = 8
NOT_VLLM = 3
"""Exit code of an interpreter without vLLM."""


def make_scheduler(scenario, model_dir):
    import torch
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    block = scenario["block_size"]
    arguments = AsyncEngineArgs(
        model=model_dir, skip_tokenizer_init=True, load_format="dummy", block_size=block, **scenario["arguments"]
    )
    config = arguments.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    for name, value in scenario["arguments"].items():
        check_kept(config, name, value)
    config.cache_config.num_gpu_blocks = scenario["n_blocks"]
    register_all_kvcache_specs(config)
    spec = FullAttentionSpec(block_size=block, num_kv_heads=2, head_size=32, dtype=torch.bfloat16)
    kv_config = KVCacheConfig(
        num_blocks=scenario["n_blocks"],
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        prefix_cache_retention_interval=0,
    )
    hash_function = get_hash_fn_by_name("sha256")
    init_none_hash(hash_function)
    scheduler = (AsyncScheduler if scenario["is_async"] else Scheduler)(
        vllm_config=config,
        kv_cache_config=kv_config,
        structured_output_manager=StructuredOutputManager(config),
        block_size=block,
        hash_block_size=block,
        log_stats=True,
    )
    is_cached = config.cache_config.enable_prefix_caching
    return scheduler, get_request_block_hasher(block, hash_function) if is_cached else None


def check_kept(config, name, value):
    """vLLM replaces some arguments in silence; then this scenario would not test what it says."""
    for part in (config.scheduler_config, config.cache_config, config.model_config):
        if hasattr(part, name) and getattr(part, name) != value:
            raise ValueError(f"{name}={value} became {getattr(part, name)}")


def prompt_of(request, prefix_block):
    """Token ids: equal prefix ids give equal tokens, everything else is the request's own."""
    tokens = [1_000_000 + b * prefix_block + j for b in request["prefix_ids"] for j in range(prefix_block)]
    own = 100_000_000 + request["id"] * 1_000_000
    tokens += range(own, own + max(request["prompt"] - len(tokens), 0))
    return tokens[: request["prompt"]]


def make_requests(scenario, hasher):
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    return [
        Request(
            str(row["id"]),
            prompt_of(row, scenario["prefix_block"]),
            SamplingParams(max_tokens=row["output"], ignore_eos=True),
            None,
            block_hasher=hasher,
        )
        for row in scenario["requests"]
    ]


class Evictions:
    """Contents that lost their block since last asked, by name: [first request that holds them, block]."""

    def __init__(self, pool, requests):
        self.order, self.names = [], {}
        for request in requests:
            self.name(request)
        self.watch(pool)

    def name(self, request):
        for number, content in enumerate(request.block_hashes):
            self.names.setdefault(content, [int(request.request_id), number])

    def watch(self, pool):
        from vllm.v1.core.kv_cache_utils import get_block_hash

        cache, evict = pool.cache_full_blocks, pool._maybe_evict_cached_block

        def name_and_cache(request, *arguments, **keywords):
            self.name(request)
            return cache(request, *arguments, **keywords)

        def note_and_evict(block):
            if block.block_hash is not None:
                self.order.append(self.names[get_block_hash(block.block_hash)])
            return evict(block)

        pool.cache_full_blocks, pool._maybe_evict_cached_block = name_and_cache, note_and_evict

    def take(self):
        order, self.order = self.order, []
        return order


class Run:
    """One scenario, as vLLM's engine core would drive it; asynchronous: two steps in flight."""

    def __init__(self, scenario, model_dir):
        self.scenario = scenario
        self.scheduler, hasher = make_scheduler(scenario, model_dir)
        requests = make_requests(scenario, hasher)
        self.arrivals = deque(zip((r["arrival"] for r in scenario["requests"]), requests, strict=True))
        self.pool = self.scheduler.kv_cache_manager.block_pool
        self.evictions = Evictions(self.pool, requests)
        self.victims, self.finished = [], []
        self.hook("_preempt_request", self.victims)
        self.hook("_free_request", self.finished)
        self.changes = {int(k): v for k, v in scenario["budget_changes"].items()}
        self.log, self.pending = [], deque()
        self.n_steps = self.n_empty = self.n_tokens = 0

    def hook(self, name, order):
        """vLLM tells a step's victims as a set, and its finished requests so too."""
        original = getattr(self.scheduler, name)

        def noting(request, *arguments, **keywords):
            order.append(int(request.request_id))
            return original(request, *arguments, **keywords)

        setattr(self.scheduler, name, noting)

    def steps(self):
        depth = 2 if self.scenario["is_async"] else 1
        scheduler = self.scheduler
        while self.arrivals or self.pending or scheduler.get_num_unfinished_requests():
            self.receive()
            if scheduler.get_num_unfinished_requests():
                self.schedule()
                if len(self.pending) < depth:
                    continue
            if self.pending:
                self.update()
        return self.log

    def receive(self):
        while self.arrivals and (
            self.arrivals[0][0] <= self.n_steps or not self.scheduler.get_num_unfinished_requests()
        ):
            self.scheduler.add_request(self.arrivals.popleft()[1])

    def schedule(self):
        scheduler = self.scheduler
        before = {r.request_id for r in scheduler.running}
        present, free_before = scheduler.get_num_unfinished_requests(), self.pool.get_num_free_blocks()
        self.victims.clear()
        output = scheduler.schedule()
        tokens = output.num_scheduled_tokens
        output.is_chunk = {i: scheduler.requests[i].is_prefill_chunk for i in tokens}
        entry, evicted = None, self.evictions.take()
        if tokens or self.victims:
            entry = {
                "scheduled": [[int(i), n] for i, n in tokens.items()],
                "victims": list(self.victims),
                "admitted": [
                    [int(i), scheduler.requests[i].num_computed_tokens - n]
                    for i, n in tokens.items()
                    if i not in before
                ],
                "present": present,
                "free_before": free_before,
                "free": self.pool.get_num_free_blocks(),
                "evicted": evicted,
            }
            self.log.append(entry)
        self.count(bool(tokens))
        self.pending.append((output, entry))

    def count(self, is_step):
        self.n_steps += is_step
        self.n_empty = 0 if is_step else self.n_empty + 1
        if self.n_empty > MAX_EMPTY_STEPS:
            raise RuntimeError(f"nothing can be scheduled after {self.n_steps} steps")
        tokens = self.changes.get(self.n_steps)
        if tokens is not None:
            self.scheduler.max_num_scheduled_tokens = min(tokens, self.scenario["arguments"]["max_num_batched_tokens"])

    def update(self):
        output, entry = self.pending.popleft()
        self.finished.clear()
        self.scheduler.update_from_output(output, self.model_output(output))
        if entry is not None:
            entry["finished"] = list(self.finished)

    def model_output(self, output):
        from vllm.v1.outputs import ModelRunnerOutput

        ids = list(output.num_scheduled_tokens)
        sampled = []
        for i in ids:
            self.n_tokens += 1
            sampled.append([] if output.is_chunk[i] else [500_000_000 + self.n_tokens])
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={i: k for k, i in enumerate(ids)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )


def answer(line, model_dir):
    """How vLLM refuses arguments, or its scheduler gives up, goes back as a line; another kind of error ends this
    process: it is of another version than the one that this script knows."""
    try:
        return Run(json.loads(line), model_dir).steps()
    except (ValueError, RuntimeError, AssertionError, LookupError) as error:
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:500]}


def main():
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
    logging.disable(logging.CRITICAL)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints is no reply
    try:
        import vllm
    except ImportError as error:
        print(f"{error}", file=sys.stderr)
        return NOT_VLLM
    sys.argv = ["vllm", "serve"]
    print(json.dumps({"vllm": vllm.__version__}), file=replies, flush=True)
    with tempfile.TemporaryDirectory() as model_dir:
        with open(os.path.join(model_dir, "config.json"), "w") as file:
            json.dump(TINY_MODEL, file)
        for line in sys.stdin:
            print(json.dumps(answer(line, model_dir)), file=replies, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
