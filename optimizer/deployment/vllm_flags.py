"""The flags of `vllm serve`: their spellings, what kind of value each takes, and those that no longer exist.

The table was read off vLLM 0.32.0's own parser (`vllm.entrypoints.launchers.cli_args.make_arg_parser`);
`tests/deployment/test_with_vllm.py` compares it with an installed vLLM. It is needed here because argparse accepts
abbreviations, and because a list flag swallows every word that follows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from optimizer.errors import UserError

VLLM_VERSION = "0.32.0"

Kind = Literal["boolean", "switch", "int", "suffixed_int", "float", "json", "text_list", "int_list", "text"]
"""`boolean` has a `--no-` twin, `switch` has none; only `suffixed_int` takes 16k (16000) and 16K (16384)."""


@dataclass(frozen=True, slots=True)
class Flag:
    name: str
    """Long spelling with hyphens and without the leading ones."""
    kind: Kind

    @property
    def key(self) -> str:
        """The name vLLM's Python arguments have."""
        return self.name.replace("-", "_")

    @property
    def is_list(self) -> bool:
        return self.kind in ("text_list", "int_list")

    @property
    def takes_value(self) -> bool:
        return self.kind not in ("boolean", "switch")


BOOLEANS = """
allow-credentials allow-deprecated-quantization async-scheduling cohere-is-reasoning-model cudagraph-metrics
data-parallel-external-lb data-parallel-hybrid-lb dcp-q-replicate disable-cascade-attn disable-chunked-mm-input
disable-custom-all-reduce disable-fastapi-docs disable-hybrid-kv-cache-manager disable-nccl-for-dp-synchronization
disable-sliding-window disable-uvicorn-access-log enable-auto-tool-choice enable-batch-sharded-sampling
enable-chunked-prefill enable-cumem-allocator enable-dbo enable-elastic-ep enable-ep-weight-filter enable-eplb
enable-expert-parallel enable-fault-tolerance enable-flash-late-interaction enable-flashinfer-autotune
enable-force-include-usage enable-hc-sp enable-layerwise-nvtx-tracing enable-log-deltas enable-log-outputs
enable-log-requests enable-logging-iteration-details enable-lora enable-mamba-cache-stochastic-rounding
enable-mamba-shared-prefix-checkpoint enable-mfu-metrics enable-mixed-moe-lora-format enable-mm-embeds
enable-moe-shared-loras enable-nccl-comm-suspend enable-offline-docs enable-per-request-metrics
enable-prefix-caching enable-prompt-embeds enable-prompt-tokens-details enable-request-id-headers
enable-return-routed-experts enable-scale-out enable-server-load-tracking enable-shm-tensor-arena enable-sleep-mode
enable-ssl-refresh enable-tokenizer-info-endpoint enable-tower-connector-lora enable-trace-replay enforce-eager
exclude-tools-when-tool-choice-none fail-on-environ-validation fully-sharded-loras interleave-mm-strings
jit-monitor-verbose kv-cache-metrics kv-sharing-fast-prefill language-model-only log-error-stack
long-prefill-token-threshold-adaptive mm-device-do-normalize mm-encoder-only numa-bind ray-workers-use-nsight
return-sampling-mask return-tokens-as-token-ids scheduler-reserve-full-isl skip-mm-profiling skip-tokenizer-init
sleep-mode-offload-cudagraph specialize-active-lora swa-bounded-replay tokens-only trust-remote-code
trust-request-chat-template trust-request-mm-kwargs use-fp64-gumbel use-replayssm use-tqdm-on-load
"""

SWITCHES = """
aggregate-engine-logging data-parallel-multi-port-external-lb disable-log-stats grpc headless
"""

INTS = """
api-server-count block-size cp-kv-cache-interleave-size cpu-distributed-timeout-seconds data-parallel-rank
data-parallel-rpc-port data-parallel-size data-parallel-size-local data-parallel-start-rank
data-parallel-supervisor-port dbo-decode-token-threshold dbo-prefill-token-threshold dcp-kv-cache-interleave-size
decode-context-parallel-size distributed-timeout-seconds dp-supervisor-probe-failure-threshold dp-sync-interval
elastic-ep-max-dp-size grpc-port h11-max-header-count h11-max-incomplete-event-size long-prefill-token-threshold
mamba-block-size mamba-cache-philox-rounds master-port max-cpu-loras max-cudagraph-capture-size max-log-len
max-logprobs max-lora-cls-labels max-lora-rank max-loras max-num-active-seqs max-num-queued-reqs max-num-seqs
max-parallel-loading-workers mm-shm-cache-max-object-size-mb nnodes node-rank num-gpu-blocks-override
offload-group-size offload-num-in-group offload-prefetch-step pipeline-parallel-size port
prefill-context-parallel-size prefill-schedule-interval prefix-cache-retention-interval prefix-match-unit
renderer-num-workers replayssm-buffer-len safetensors-prefetch-num-threads seed shutdown-timeout spec-tokens
sse-keep-alive-interval ssl-cert-reqs stream-interval tensor-parallel-size ubatch-size
"""

SUFFIXED_INTS = """
kv-cache-memory-bytes max-model-len max-num-batched-tokens max-num-queued-tokens max-num-scheduled-tokens
safetensors-prefetch-block-size
"""

FLOATS = """
cpu-offload-gb dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s gpu-memory-utilization
kv-cache-metrics-sample kv-offloading-size mm-encoder-fp8-scale-save-margin mm-ipc-gpu-memory-gb
mm-processor-cache-gb video-pruning-rate watermark
"""

JSONS = """
additional-config allowed-headers allowed-methods allowed-origins attention-config aux-output-config
compilation-config custom-histogram-buckets default-chat-template-kwargs default-mm-loras diffusion-config
ec-manager-config ec-transfer-config engram-config eplb-config fault-tolerance-config hf-overrides ir-op-priority
kernel-config kv-events-config kv-transfer-config limit-mm-per-prompt logging-config media-io-kwargs
mm-processor-kwargs model-class-overrides model-loader-extra-config override-generation-config pooler-config
profiler-config pt-load-map-location quantization-config reasoning-config speculative-config
structured-outputs-config watermark-config weight-transfer-config
"""

TEXT_LISTS = """
allowed-media-domains api-key collect-detailed-traces cpu-offload-params ignore-patterns kv-cache-dtype-skip-layers
logits-processors lora-modules lora-target-modules numa-bind-cpus offload-params served-model-name
sleep-preserve-parameter-names
"""

INT_LISTS = """
cudagraph-capture-sizes numa-bind-nodes
"""

TEXTS = """
all2all-backend allowed-local-media-path anthropic-disabled-thinking-effort attention-backend chat-template
chat-template-content-format code-revision cohere-format config config-format convert data-parallel-address
data-parallel-backend dcp-comm-backend device-ids disable-access-log-for-endpoints distributed-executor-backend
download-dir dtype expert-placement-strategy fingerprint-mode fingerprint-value gdn-prefill-backend
generation-config hf-config-path hf-token host io-processor-plugin jit-monitor-mode kda-decode-backend
kda-prefill-backend kv-cache-dtype kv-offloading-backend linear-backend load-format log-config-file log-level
logprobs-mode lora-dtype mamba-backend mamba-cache-dtype mamba-cache-mode mamba-ssm-cache-dtype mamba-ssu-algorithm
master-addr middleware mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path
mm-encoder-fp8-scale-save-path mm-encoder-tp-mode mm-hasher-algorithm mm-processor-cache-type mm-processor-device
mm-tensor-ipc model model-impl moe-backend offload-backend optimization-level otlp-traces-endpoint
per-request-spec-decode-metrics performance-mode prefix-caching-hash-algo quantization reasoning-parser
reasoning-parser-plugin response-role revision root-path runner safetensors-load-strategy scheduler-cls
scheduling-policy show-hidden-metrics-for-version sparse-indexer-topk-backend spec-method spec-model ssl-ca-certs
ssl-certfile ssl-ciphers ssl-keyfile tokenizer tokenizer-mode tokenizer-revision tool-call-parser tool-parser-plugin
tool-server tool-strict-level uds uvicorn-log-level video-pruning-method worker-cls worker-extension-cls
"""

SHORT = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "dpn": "data-parallel-rank",
    "dpr": "data-parallel-start-rank",
    "dpl": "data-parallel-size-local",
    "dpa": "data-parallel-address",
    "dpp": "data-parallel-rpc-port",
    "dpb": "data-parallel-backend",
    "dph": "data-parallel-hybrid-lb",
    "dpe": "data-parallel-external-lb",
    "dpm": "data-parallel-multi-port-external-lb",
    "dcp": "decode-context-parallel-size",
    "pcp": "prefill-context-parallel-size",
    "ep": "enable-expert-parallel",
    "asc": "api-server-count",
    "cc": "compilation-config",
    "ac": "attention-config",
    "sc": "speculative-config",
    "dc": "diffusion-config",
    "q": "quantization",
    "n": "nnodes",
    "r": "node-rank",
    "O": "optimization-level",
}
ALIASES = {"device-memory-utilization": "gpu-memory-utilization"}

REMOVED = {
    "swap-space": "nothing replaces it: a preempted request is always recomputed (CPU tier: kv-offloading-size)",
    "preemption-mode": "nothing replaces it: a preempted request is always recomputed",
    "num-scheduler-steps": "nothing replaces it: async-scheduling overlaps scheduling with the step",
    "multi-step-stream-outputs": "stream-interval says how many tokens one message carries",
    "scheduler-delay-factor": "nothing replaces it; long-prefill-token-threshold and watermark shape admission",
    "max-num-partial-prefills": "long-prefill-token-threshold limits what one long prompt takes of a step",
    "max-long-partial-prefills": "long-prefill-token-threshold limits what one long prompt takes of a step",
    "cuda-graph-sizes": "use cudagraph-capture-sizes",
    "max-seq-len-to-capture": "use max-cudagraph-capture-size",
    "max-context-len-to-capture": "use max-cudagraph-capture-size",
    "calculate-kv-scales": "nothing replaces it: scales come from the checkpoint",
    "quantization-param-path": "nothing replaces it: scales come from the checkpoint",
    "use-v2-block-manager": "nothing replaces it: there is one block manager",
    "num-lookahead-slots": "spec-tokens sets it",
    "disable-async-output-proc": "use no-async-scheduling",
    "disable-log-requests": "requests are not logged unless enable-log-requests is given",
    "speculative-model": "use spec-model, or speculative-config",
    "num-speculative-tokens": "use spec-tokens, or speculative-config",
    "ngram-prompt-lookup-max": "use speculative-config with prompt_lookup_max",
    "ngram-prompt-lookup-min": "use speculative-config with prompt_lookup_min",
    "speculative-draft-tensor-parallel-size": "use speculative-config with draft_tensor_parallel_size",
    "guided-decoding-backend": "use structured-outputs-config with backend",
    "enable-reasoning": "reasoning-parser switches it on",
    "task": "use runner and convert",
    "device": "the platform is detected; device-ids picks cards",
    "worker-use-ray": "use distributed-executor-backend ray",
    "engine-use-ray": "use distributed-executor-backend ray",
    "rope-scaling": "use hf-overrides with rope_scaling",
    "rope-theta": "use hf-overrides with rope_theta",
    "disable-mm-preprocessor-cache": "use mm-processor-cache-gb 0",
    "tokenizer-pool-size": "use renderer-num-workers",
    "num-redundant-experts": "use eplb-config with num_redundant_experts",
}
"""Flag of an older vLLM -> what to do now. None of them is known to vLLM 0.32 (it exits with code 2)."""

REMOVED_SWITCHES = frozenset(
    {"use-v2-block-manager", "disable-async-output-proc", "disable-log-requests", "calculate-kv-scales"}
    | {"enable-reasoning", "worker-use-ray", "engine-use-ray", "disable-mm-preprocessor-cache"}
)
"""Those of REMOVED that took no value."""

_TUNABLES = """
    max_num_batched_tokens max_num_seqs max_num_active_seqs max_num_scheduled_tokens max_model_len watermark
    long_prefill_token_threshold long_prefill_token_threshold_adaptive enable_chunked_prefill scheduling_policy
    scheduler_reserve_full_isl async_scheduling stream_interval max_num_queued_reqs max_num_queued_tokens
    gpu_memory_utilization kv_cache_memory_bytes num_gpu_blocks_override block_size kv_cache_dtype
    enable_prefix_caching prefix_caching_hash_algo kv_offloading_size cpu_offload_gb tensor_parallel_size
    pipeline_parallel_size data_parallel_size decode_context_parallel_size enable_expert_parallel enable_dbo
    api_server_count renderer_num_workers enforce_eager optimization_level max_cudagraph_capture_size
    performance_mode attention_backend quantization dtype spec_method spec_model spec_tokens speculative_config
"""
TUNABLES = frozenset(_TUNABLES.split())
"""Arguments that change how fast or how safely a server runs: read into the Config (a JSON value as its text).
Everything else is kept aside and written back as it was."""

_KV_DTYPES = """
    auto float16 bfloat16 fp8 fp8_e4m3 fp8_e5m2 fp8_inc fp8_ds_mla fp8_per_token_head int4_per_token_head
    int8_per_token_head nvfp4 nvfp4_4over6 nvfp4_ds_mla turboquant_k8v4 turboquant_4bit_nc turboquant_k3v4_nc
    turboquant_3bit_nc ultraquant_4bit
"""
CHOICES: dict[str, tuple[str, ...]] = {
    "kv_cache_dtype": tuple(_KV_DTYPES.split()),
    "scheduling_policy": ("fcfs", "priority"),
    "performance_mode": ("balanced", "interactivity", "throughput"),
    "dtype": ("auto", "bfloat16", "float", "float16", "float32", "half"),
}


def _flags() -> Iterator[Flag]:
    kinds: dict[Kind, str] = {
        "boolean": BOOLEANS,
        "switch": SWITCHES,
        "int": INTS,
        "suffixed_int": SUFFIXED_INTS,
        "float": FLOATS,
        "json": JSONS,
        "text_list": TEXT_LISTS,
        "int_list": INT_LISTS,
        "text": TEXTS,
    }
    for kind, names in kinds.items():
        yield from (Flag(name, kind) for name in names.split())


FLAGS: dict[str, Flag] = {flag.name: flag for flag in _flags()}

_SPELLINGS: dict[str, tuple[Flag, bool]] = {
    **{name: (flag, False) for name, flag in FLAGS.items()},
    **{f"no-{name}": (flag, True) for name, flag in FLAGS.items() if flag.kind == "boolean"},
    **{alias: (FLAGS[name], False) for alias, name in ALIASES.items()},
}


def find_flag(name: str) -> tuple[Flag, bool] | None:
    """The flag that a long spelling (hyphens, no leading ones) means, and whether it is its `no-` form.

    A unique beginning is enough, as in argparse. None: vLLM 0.32 knows no such flag. Raises UserError when a
    beginning fits several flags."""
    if exact := _SPELLINGS.get(name):
        return exact
    fitting = {flag.name: (flag, is_no) for full, (flag, is_no) in _SPELLINGS.items() if full.startswith(name)}
    if len(fitting) > 1:
        raise UserError(f"{name} is short for several flags ({', '.join(sorted(fitting)[:4])}); write one in full")
    return next(iter(fitting.values()), None)


def flag_of(key: str) -> Flag | None:
    """The flag behind a Python argument name (underscores), exactly spelled."""
    return FLAGS.get(key.replace("_", "-"))
