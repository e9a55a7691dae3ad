"""Failures of device memory. Texts: vLLM 0.32 v1/core/kv_cache_utils.py:1011-1060, v1/worker/utils.py:763,
v1/worker/gpu_worker.py:720, v1/worker/cpu_worker.py:81 and :219, v1/worker/gpu_model_runner.py:5140 and :5991,
config/compilation.py:1519; the older wordings from 0.5 to 0.31."""

from optimizer.diagnosis.sign import sign

_GIB = r"-?[\d.]+"

SIGNS = (
    sign(
        "sampler",
        "runtime_peak",
        r"out of memory occurred when warming up (?:sampler|pooler) with (?P<n_seqs>\d+) dummy requests",
        "the sampler's warm-up with {n_seqs} dummy requests ran out of device memory",
        "warmup",
        is_config_fault=True,
    ),
    sign(
        "load",
        "weights",
        r"Failed to load model - not enough GPU memory",
        "the model's weights do not fit on the card",
        "load",
        is_config_fault=True,
    ),
    sign(
        "no_kv",
        "kv_capacity",
        r"No available memory for the(?: cache blocks| *$)",
        "weights and activations leave no memory for the KV cache",
        "kv_alloc",
        is_config_fault=True,
    ),
    sign(
        "kv_request",
        "kv_capacity",
        rf"To serve at least one request with the models?'s max seq len \((?P<max_model_len>\d+)\),? \(?"
        rf"(?P<needed_gib>{_GIB}) ?Gi?B KV cache is needed, which is larger than the available KV cache memory "
        rf"\((?P<available_gib>{_GIB}) ?Gi?B\)",
        "one request of max_model_len {max_model_len} needs more KV cache than there is",
        "kv_alloc",
        is_config_fault=True,
    ),
    sign(
        "kv_tokens",
        "kv_capacity",
        r"max seq len \((?P<max_model_len>\d+)\) is larger than the maximum number of tokens that can be stored in "
        r"KV cache \((?P<max_tokens>\d+)\)",
        "one request of max_model_len {max_model_len} does not fit: the KV cache holds {max_tokens} tokens",
        "kv_alloc",
        is_config_fault=True,
    ),
    sign(
        "state_blocks",
        "kv_capacity",
        r"max_num_seqs \((?P<n_seqs>\d+)\) exceeds available Mamba cache blocks \((?P<max_seqs>\d+)\)",
        "max_num_seqs {n_seqs} needs more state blocks than there are ({max_seqs})",
        "kv_alloc",
        is_config_fault=True,
    ),
    sign(
        "auto_fit",
        "kv_capacity",
        r"Cannot auto-fit max_model_len",
        "the memory left for the KV cache does not hold a single token",
        "kv_alloc",
        is_config_fault=True,
    ),
    sign(
        "free_memory",
        "neighbour",
        rf"Free memory on device ?(?P<device>\S*) \((?P<free_gib>{_GIB})/(?P<total_gib>{_GIB}) GiB\) on startup is "
        rf"less than (?:desired GPU memory utilization|the engine's budget after excluding external process's weights) "
        rf"\((?P<utilization>[\d.]+), (?P<requested_gib>{_GIB}) GiB\)",
        "{free_gib} of {total_gib} GiB were free on {device} at start, {requested_gib} GiB were asked for",
        "load",
    ),
    sign(
        "free_ram",
        "host_ram",
        rf"Available memory on node (?P<node>\S+) \((?P<free_gib>{_GIB})/(?P<total_gib>{_GIB}) GiB\) on startup is "
        rf"less than desired CPU memory utilization \((?P<utilization>[\d.]+), (?P<requested_gib>{_GIB}) GiB\)",
        "{free_gib} of {total_gib} GiB of RAM were free at start, {requested_gib} GiB were asked for",
        "load",
    ),
    sign(
        "kv_ram",
        "host_ram",
        rf"Available memory on node (?P<node>\S+) \((?P<free_gib>{_GIB})/(?P<total_gib>{_GIB}) GiB\) on kv cache "
        rf"allocation is less than requested memory for kv \((?P<requested_gib>{_GIB})(?:/[\d.]+)? GiB\)",
        "{free_gib} of {total_gib} GiB of RAM were free for the KV cache, {requested_gib} GiB were asked for",
        "kv_alloc",
    ),
    sign(
        "profiling",
        "profiling_race",
        r"Error in memory profiling",
        "another process gave device memory back while vLLM was measuring",
        "warmup",
    ),
    sign(
        "host_oom",
        "host_ram",
        r"ray\.exceptions\.OutOfMemoryError|[Tt]ask was killed due to the node running low on memory"
        r"|killed due to memory pressure \(OOM\)|node was low on resource: memory"
        r"|Ray killed this worker|exceeds the memory usage threshold",
        "Ray's memory monitor killed a worker: the host's RAM was nearly full",
        is_bare=True,
    ),
    sign(
        "workspace",
        "runtime_peak",
        r"Failed to allocate memory for (?P<what>\w+) with size|Failed to allocate memory for (?P<buffer>batch_\w+)"
        r"|Buffer overflow when allocating memory for (?P<overflow>\w+)",
        "FlashInfer's workspace buffer has no room for a step of this size",
        is_config_fault=True,
    ),
    sign(
        "oom",
        "runtime_peak",
        r"(?:^|NCCL WARN .*)(?:Cuda|HIP) failure (?:\d+ )?'out of memory'|^CUDA Error: out of memory",
        "the device ran out of memory",
        is_config_fault=True,
        is_vague=True,
        is_bare=True,
    ),
    sign(
        "oom",
        "runtime_peak",
        r"(?:CUDA|HIP|XPU|NPU|MUSA|HPU)\]?:?(?: driver| runtime)?(?: [Ee]rror)?:? out of memory"
        r"|torch\.(?:cuda\.)?OutOfMemoryError|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
        r"|hipErrorOutOfMemory|CU[A-Z]+_STATUS_ALLOC_FAILED|_DEVICE_ALLOCATION_FAILED|ERROR_OUT_OF_DEVICE_MEMORY"
        r"|(?:Cuda|HIP) failure (?:\d+ )?'out of memory'",
        "the device ran out of memory",
        is_config_fault=True,
        is_vague=True,
    ),
)
