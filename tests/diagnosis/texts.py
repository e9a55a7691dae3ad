"""Short logs in the words of vLLM 0.5 to 0.32 and of what is around it, each with its verdict.

Put together from the texts that each version prints; whole boots are in `logs/`."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """`kinds` None: nothing failed. `phase` None: any."""

    log: str
    kinds: tuple[str, ...] | None
    phase: str | None = None
    is_config_fault: bool = False
    words: tuple[str, ...] = ()
    """In cause or advice."""
    not_advised: tuple[str, ...] = ("gpu_memory_utilization",)


BOOT = """\
(APIServer pid=9) INFO 11-29 10:00:02 [utils.py:286] non-default args: {'model': '/models/m'}
(APIServer pid=9) INFO 11-29 10:00:03 [model.py:733] Resolved architecture: LlamaForCausalLM
(EngineCore pid=60) INFO 11-29 10:00:05 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='m'
"""
LOADING = (
    BOOT + "(EngineCore pid=60) INFO 11-29 10:00:07 [gpu_model_runner.py:5080] Starting to load model /models/m...\n"
)
LOADED = (
    LOADING + "(EngineCore pid=60) INFO 11-29 10:00:09 [gpu_model_runner.py:5160] Model loading took 14.99 GiB memory\n"
)
CACHED = LOADED + "(EngineCore pid=60) INFO 11-29 10:00:16 [kv_cache_utils.py:2327] GPU KV cache size: 428,512 tokens\n"
READY = CACHED + "(APIServer pid=9) INFO:     Application startup complete.\n"
WRAPPER = (
    "(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
)
DEAD = "(APIServer pid=9) ERROR 11-29 10:20:03 [async_llm.py:699] AsyncLLM output_handler failed.\n"
SERVED = '(APIServer pid=9) INFO:     10.0.0.1:4000 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 136.00 MiB. GPU 0 has a total capacity of 79.19 GiB"
    " of which 120.88 MiB is free."
)
V0 = "INFO 10-01 12:00:01 llm_engine.py:237] Initializing an LLM engine (v0.6.6) with config: model='/models/m'\n"


def engine(*messages: str, process: str = "EngineCore pid=60", at: str = "10:00:17") -> str:
    return "".join(f"({process}) ERROR 11-29 {at} [core.py:1510] {m}\n" for m in messages)


def fails(*messages: str, frames: tuple[str, ...] = ()) -> str:
    """Of a boot."""
    named = [f'  File "/x/vllm/v1/worker/gpu_worker.py", line 100, in {name}' for name in frames]
    trace = ["Traceback (most recent call last):", *named] if frames else []
    return engine("EngineCore failed to start.", *trace, *messages) + WRAPPER


def dies(*messages: str, frames: tuple[str, ...] = ("execute_model",)) -> str:
    """While serving."""
    named = [f'  File "/x/vllm/v1/worker/gpu_worker.py", line 100, in {name}' for name in frames]
    told = ["EngineCore encountered a fatal error.", "Traceback (most recent call last):", *named, *messages]
    return READY + engine(*told, at="10:20:01") + DEAD


MEMORY = {
    "0.5: weights": Text(
        "INFO 06-11 08:00:01 llm_engine.py:161] Initializing an LLM engine (v0.5.0) with config: model='m'\n"
        "[rank0]: Traceback (most recent call last):\n"
        '[rank0]:   File "/x/vllm/worker/model_runner.py", line 154, in load_model\n'
        "[rank0]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 500.00 MiB. GPU  has a total"
        " capacity of 23.65 GiB of which 400.06 MiB is free.\n",
        ("weights",), "load", True, ("quantised",),
    ),
    "0.6: one request does not fit": Text(
        V0 + "ERROR 10-01 12:00:42 engine.py:366] ValueError: The model's max seq len (131072) is larger than the maximum"
        " number of tokens that can be stored in KV cache (41040). Try increasing `gpu_memory_utilization`\n"
        "RuntimeError: Engine process failed to start. See stack trace for the root cause.\n",
        ("kv_capacity",), "kv_alloc", True, ("41040",), (),
    ),
    "0.6: while serving": Text(
        "INFO:     Application startup complete.\n"
        "ERROR 10-01 12:09:00 async_llm_engine.py:61] Engine background task failed\n"
        "ERROR 10-01 12:09:00 async_llm_engine.py:61] Traceback (most recent call last):\n"
        'ERROR 10-01 12:09:00 async_llm_engine.py:61]   File "/x/vllm/worker/model_runner.py", line 1600, in execute_model\n'
        "ERROR 10-01 12:09:00 async_llm_engine.py:61] torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate"
        " 256.00 MiB. GPU 0 has a total capacity of 23.69 GiB of which 60.00 MiB is free.\n"
        "vllm.engine.async_llm_engine.AsyncEngineDeadError: Task finished unexpectedly.\n",
        ("runtime_peak",), "serving", True, ("max_num_batched_tokens",), (),
    ),
    "images are encoded while profiling": Text(
        LOADED + fails(OOM, frames=("determine_available_memory", "profile_run", "get_multimodal_embeddings")),
        ("runtime_peak",), "warmup", True, ("limit_mm_per_prompt",), (),
    ),
    "graphs": Text(
        CACHED + fails(OOM, frames=("compile_or_warm_up_model", "capture_model", "_dummy_run")),
        ("runtime_peak",), "graph_capture", True, ("cudagraph_capture_sizes",), (),
    ),
    "a terminal that breaks lines": Text(
        "(EngineCore pid=60) ERROR 11-29 10:01:00 [core.py:1108] ValueError: No available memory for the\n"
        "cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n" + WRAPPER,
        ("kv_capacity",), "kv_alloc", True, (), (),
    ),
    "swap space of 0.6": Text(
        V0 + "ValueError: Too large swap space. 64.00 GiB out of the 62.00 GiB total CPU memory is allocated\n",
        ("arguments",), None, True, ("swap space",),
    ),
    "NCCL hides it": Text(
        BOOT + "node-a:76:76 [0] enqueue.cc:1500 NCCL WARN Cuda failure 2 'out of memory'\n"
        + engine("RuntimeError: NCCL error: unhandled cuda error", process="Worker_TP0 pid=76") + WRAPPER,
        ("runtime_peak", "weights"), None, True, (), (),
    ),
    "two ranks tell two stories": Text(
        CACHED + engine(OOM, process="Worker_TP1 pid=77")
        + engine("torch.distributed.DistBackendError: NCCL communicator was aborted", process="Worker_TP0 pid=76",
                 at="10:00:18")
        + engine("RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests.",
                 process="Worker_TP1 pid=77", at="10:00:18") + fails(),
        ("runtime_peak",), "warmup", True, ("Worker_TP1", "max_num_seqs"), (),
    ),
    "one rank does not load": Text(
        LOADING + "(Worker_TP0 pid=76) INFO 11-29 10:00:09 [gpu_model_runner.py:5160] Model loading took 14.99 GiB memory\n"
        + engine('  File "/x/vllm/v1/worker/gpu_worker.py", line 200, in load_model', OOM, process="Worker_TP1 pid=77")
        + WRAPPER,
        ("weights",), "load", True, ("Worker_TP1",),
    ),
}  # fmt: skip

MACHINE = {
    "kubectl's last word": Text(
        "[pod/vllm-0/server] (EngineCore pid=60) INFO 11-29 10:00:07 [gpu_model_runner.py:5080] Starting to load model m...\n"
        "[pod/vllm-0/server] command terminated with exit code 137\n",
        ("killed",), "load",
    ),
    "a pod described": Text(
        "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n", ("host_ram",), not_advised=()
    ),
    "systemd": Text(
        "Nov 29 10:30:00 n systemd[1]: vllm.service: A process of this unit has been killed by the OOM killer.\n"
        "Nov 29 10:30:00 n systemd[1]: vllm.service: Failed with result 'oom-kill'.\n",
        ("host_ram",), not_advised=(),
    ),
    "NCCL fills /dev/shm": Text(
        BOOT + "node-a:76:90 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-abc to 33030532 bytes,"
        " error: No space left on device (28)\n"
        + engine("RuntimeError: NCCL error: unhandled system error", process="Worker_TP0 pid=76") + WRAPPER,
        ("host_ram",), None, False, ("/dev/shm",), ("lower gpu_memory_utilization by",),
    ),
    "may not write": Text(
        "INFO 11-29 10:00:02 [api_server.py:1000] vLLM API server version 0.11.0\n"
        "PermissionError: [Errno 13] Permission denied: '/var/cache/vllm'\n",
        ("unknown",), None, False, ("/var/cache/vllm", "VLLM_CACHE_ROOT"), ("DEBUG",),
    ),
    "no more threads": Text(
        engine("RuntimeError: can't start new thread") + WRAPPER, ("unknown",), None, False, ("ulimit -u",), ("DEBUG",)
    ),
    "the network card may lock no memory": Text(
        BOOT + engine("RuntimeError: NCCL error: unhandled system error", process="Worker_TP0 pid=76")
        + "node-a:76:90 [0] NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory\n" + WRAPPER,
        ("unknown",), None, False, ("memlock",),
    ),
    "no fabric manager": Text(
        engine("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized") + WRAPPER,
        ("unknown",), None, False, ("fabric manager",), ("DEBUG",),
    ),
    "Ray has no such GPUs": Text(
        "ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}] within 1800 seconds.\n",
        ("unknown",), None, False, ("ray status",), ("DEBUG",),
    ),
    "a slow start": Text(
        BOOT + "(APIServer pid=9) TimeoutError: Timed out waiting for engine core processes to start.\n",
        ("hang",), None, False, ("VLLM_ENGINE_READY_TIMEOUT_S",),
    ),
    "a step without an end": Text(
        dies("TimeoutError: RPC call to execute_model timed out.", frames=()), ("hang",), "serving", False,
        ("execute_model",),
    ),
    "illegal access, then a cascade": Text(
        READY + engine("torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
                       process="Worker_TP1 pid=77", at="10:20:00")
        + engine("RuntimeError: Worker failed with error 'CUDA error: an illegal memory access was encountered'",
                 at="10:20:03") + DEAD
        + engine("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)",
                 process="APIServer pid=9", at="10:20:03"),
        ("unknown",), "serving", False, ("illegal memory access", "Xid"),
    ),
    "an assertion of the scheduler": Text(dies("AssertionError", frames=("schedule",)), ("unknown",), "serving"),
    "a port of NCCL's": Text(
        engine("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address."
               " port: 29500, code: -98, name: EADDRINUSE, message: address already in use") + WRAPPER,
        ("port",),
    ),
    "the engine's end alone": Text(READY + DEAD, ("killed", "unknown"), "serving"),
    "the wrapper alone": Text(WRAPPER, ("unknown",)),
}  # fmt: skip

REFUSED = {
    "code of the model's own": Text(
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        "  Value error, The repository /models/m contains custom code which must be executed to correctly load the model.\n"
        "Please pass the argument `trust_remote_code=True` to allow custom code to be run. [type=value_error]\n",
        ("arguments",), "config", True, ("--trust-remote-code",),
    ),
    "fp8 on an old card": Text(
        "(APIServer pid=9) pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n"
        "  Value error, The quantization method fp8 is not supported for the current GPU. Minimum capability: 89.\n",
        ("arguments",), "config", True, ("fp8",),
    ),
    "an adapter's rank": Text(
        engine("ValueError: LoRA rank 64 is greater than max_lora_rank 16.") + WRAPPER, ("arguments",), None, True,
        ("max_lora_rank",),
    ),
    "a vocabulary in seven parts": Text(
        engine("ValueError: 151936 is not divisible by 7") + WRAPPER, ("arguments",), None, True, ("151936",)
    ),
    "an architecture that is not there": Text(
        "(APIServer pid=9)   Value error, Model architectures ['FooForCausalLM'] are not supported for now.\n",
        ("version",), "config", False, ("FooForCausalLM",),
    ),
    "gated": Text(
        "INFO 11-29 10:00:02 [api_server.py:1000] vLLM API server version 0.11.0\n"
        "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/m/config.json\n"
        "OSError: You are trying to access a gated repo.\n",
        ("model_missing",), "config", False, ("HF_TOKEN",),
    ),
    "no name server": Text(
        "INFO 11-29 10:00:02 [api_server.py:1000] vLLM API server version 0.11.0\n"
        "requests.exceptions.ConnectionError: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443)\"))\n",
        ("model_missing",), "config",
    ),
    "no compiler": Text(
        LOADED + fails("torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler.",
                       frames=("determine_available_memory",)),
        ("version", "unknown"), "warmup", False, ("compiler",),
    ),
}  # fmt: skip

HEALTHY = {
    "preemptions of V0": Text(
        "INFO:     Application startup complete.\nWARNING 10-01 12:05:00 scheduler.py:1439] Sequence group cmpl-8 is preempted"
        " by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space."
        " total_num_cumulative_preemption=51\n",
        None,
    ),
    "preemptions in the statistics": Text(
        READY + "(APIServer pid=9) INFO 11-29 10:10:00 [loggers.py:259] Engine 000: Avg generation throughput: 90.0"
        " tokens/s, Running: 6 reqs, Waiting: 3 reqs, Preemptions: 12, GPU KV cache usage: 99.0%\n",
        None,
    ),
    "fallbacks and deprecations": Text(
        "(EngineCore pid=60) WARNING 11-29 10:00:06 [cuda.py:300] Failed to import from vllm._C with ImportError('libcudart"
        ".so.12: cannot open shared object file')\n"
        "(EngineCore pid=60) ERROR 11-29 10:00:06 [fa_utils.py:57] Cannot use FA version 2 is not supported due to FA2 is"
        " only supported on devices with compute capability >= 8\n"
        "ERROR 11-29 10:00:06 [fp8_utils.py:500] Failed to load tuned config, RuntimeError: falling back to default\n"
        + READY,
        None,
    ),
    "requests that were refused": Text(
        READY + "(APIServer pid=9) ERROR 11-29 10:05:00 [serving_chat.py:240] ValueError: This model's maximum context"
        " length is 32768 tokens. However, you requested 40000 tokens\n" + SERVED
        + "(APIServer pid=9) ERROR:    Exception in ASGI application\n(APIServer pid=9) anyio.ClosedResourceError\n"
        + SERVED,
        None,
    ),
    "told to stop": Text(
        READY + "(APIServer pid=9) INFO:     Shutting down\n(APIServer pid=9) INFO:     Finished server process [9]\n"
        + engine("EngineCore encountered a fatal error.", at="10:30:00"),
        None,
    ),
    "it crashed, was started again and serves": Text(dies(OOM) + READY.replace("11-29 10:00", "11-29 10:25"), None),
    "idle": Text(
        READY + "".join(
            f"(APIServer pid=9) INFO 11-29 10:1{m}:00 [loggers.py:259] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg"
            " generation throughput: 0.0 tokens/s, Running: 0 reqs, Waiting: 0 reqs\n" for m in range(9)
        ),
        None,
    ),
}  # fmt: skip

_BLOCKS = CACHED + fails("ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (310). Each decode")
WRAPPED = {
    "cloud JSON": "\n".join(
        json.dumps({"severity": "error" if "ERROR" in x else "info", "textPayload": x}) for x in _BLOCKS.split("\n")
    ),
    "a table": "\n".join('"2026-11-29T10:00:00Z","vllm-0","' + x.replace('"', '""') + '"' for x in _BLOCKS.split("\n")),
    "CRI and colours": "\n".join(f"2026-11-29T10:00:00.1Z stderr F \x1b[36m{x}\x1b[0m" for x in _BLOCKS.split("\n")),
    "after another crash": LOADED + fails(OOM, frames=("profile_run",)) + _BLOCKS,
}
OTHER = {
    "SGLang": "[2026-11-29 10:00:00] server_args=ServerArgs(model_path='m', mem_fraction_static=0.88)\n"
    "RuntimeError: Not enough memory. Please try increasing --mem-fraction-static.\n"
    "[2026-11-29 10:00:41] INFO:     Application startup complete.\n",
    "Text Generation Inference": "2026-11-29T10:00:30.0Z ERROR text_generation_launcher: Shard 0 failed to start\n"
    "Error: ShardCannotStart\n",
    "TensorRT-LLM": "[11/29/2026-10:00:00] [TRT-LLM] [E] RuntimeError: CUDA runtime error in cudaMalloc: out of memory\n",
    "llama.cpp": "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 5000.00 MiB: cudaMalloc failed: out of memory\n"
    "llama_model_load: error loading model: unable to allocate CUDA0 buffer\n",
}
