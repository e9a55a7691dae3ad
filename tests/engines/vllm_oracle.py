"""Steps vLLM's own Scheduler through scenarios, without a model or a server: `python vllm_oracle.py IN.json OUT.json`.

Runs under an interpreter that has vLLM 0.32. IN holds a list of scenarios; OUT, for each, the steps that scheduled
tokens: tokens per request, victims in order of preemption, free blocks after scheduling, requests finished by the
step's output. A request arrives before the first schedule() call at which `arrival` non-empty steps were scheduled,
or at once when nothing is left to do; so arrivals need no clock. `budget_changes`: after so many non-empty steps,
the token budget becomes this.
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


def prompt_of(request, prefix_block):
    """Token ids: equal prefix ids give equal tokens, everything else is the request's own."""
    tokens = [1_000_000 + b * prefix_block + j for b in request["prefix_ids"] for j in range(prefix_block)]
    own = 100_000_000 + request["id"] * 1_000_000
    tokens += range(own, own + max(request["prompt"] - len(tokens), 0))
    return tokens[: request["prompt"]]


def model_output(scheduler, output, counter):
    from vllm.v1.outputs import ModelRunnerOutput

    ids = list(output.num_scheduled_tokens)
    sampled = []
    for i in ids:
        counter[0] += 1
        sampled.append([] if output.is_chunk[i] else [500_000_000 + counter[0]])
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={i: k for k, i in enumerate(ids)},
        sampled_token_ids=sampled,
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


def run(scenario, model_dir):
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    scheduler, hasher = make_scheduler(scenario, model_dir)
    depth = 2 if scenario["is_async"] else 1
    arrivals = deque(scenario["requests"])
    pending, log, counter = deque(), [], [0]

    def arrive():
        while arrivals and (arrivals[0]["arrival"] <= len(log) or not scheduler.get_num_unfinished_requests()):
            row = arrivals.popleft()
            parameters = SamplingParams(max_tokens=row["output"], ignore_eos=True)
            tokens = prompt_of(row, scenario["prefix_block"])
            scheduler.add_request(Request(str(row["id"]), tokens, parameters, None, block_hasher=hasher))

    while True:
        arrive()
        if scheduler.get_num_unfinished_requests():
            victims = record_preemptions(scheduler)
            output = scheduler.schedule()
            output.is_chunk = {i: scheduler.requests[i].is_prefill_chunk for i in output.num_scheduled_tokens}
            entry = None
            if output.total_num_scheduled_tokens:
                entry = {
                    "tokens": {int(k): v for k, v in output.num_scheduled_tokens.items()},
                    "victims": victims(),
                    "free": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
                }
                log.append(entry)
            tokens = scenario["budget_changes"].get(str(len(log)))
            if tokens is not None:
                scheduler.max_num_scheduled_tokens = min(tokens, scenario["arguments"]["max_num_batched_tokens"])
            pending.append((output, entry))
            if len(pending) < depth:
                continue
        elif not pending:
            if arrivals:
                continue
            return log
        output, entry = pending.popleft()
        before = set(scheduler.requests)
        scheduler.update_from_output(output, model_output(scheduler, output, counter))
        if entry is not None:
            entry["finished"] = sorted(int(i) for i in before - set(scheduler.requests))


def record_preemptions(scheduler):
    """vLLM reports a step's victims as a set; wrap `_preempt_request` to learn their order."""
    order, original = [], type(scheduler)._preempt_request

    def preempt(request, *arguments, **keywords):
        order.append(int(request.request_id))
        return original(scheduler, request, *arguments, **keywords)

    scheduler._preempt_request = preempt
    return lambda: list(order)


def main():
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
    logging.disable(logging.CRITICAL)
    source, target = sys.argv[1:3]
    sys.argv = ["vllm", "serve"]
    with open(source) as file:
        scenarios = json.load(file)
    with tempfile.TemporaryDirectory() as model_dir:
        with open(os.path.join(model_dir, "config.json"), "w") as file:
            json.dump(TINY_MODEL, file)
        logs = [run(s, model_dir) for s in scenarios]
    with open(target, "w") as file:
        json.dump(logs, file)


if __name__ == "__main__":
    main()
