"""Failures that no configuration causes: ports, host memory, signals, hangs, drivers. Texts: vLLM 0.32
v1/executor/multiproc_executor.py:316, v1/engine/core_client.py:743 and :817, v1/engine/utils.py:1400,
distributed/device_communicators/shm_broadcast.py:108; Linux mm/oom_kill.c; PyTorch c10."""

from optimizer.diagnosis.sign import sign

HOST_RAM = "the host ran out of memory"
SHELL = r"(?:^|: line \d+: +\d+ |\bsh: \d+: |^\[\d+\][+-]? +(?:\d+ )?)"
"""How sh and bash begin their word on a program that a signal ended."""

SIGNS = (
    sign(
        "port",
        "port",
        r"\[Errno 98\]|EADDRINUSE|[Aa]ddress already in use",
        "a port was already taken",
        is_bare=True,
    ),
    sign(
        "shm",
        "host_ram",
        r"(?:creating|attaching to) shared memory segment|Insufficient space in /dev/shm|posix_fallocate failed"
        r"|/dev/shm.{0,200}No space left|No space left on device.{0,200}(?:shm|psm_)"
        r"|unable to (?:write to|allocate shared memory|open shared memory)|[Bb]us error|exit code: -7\b",
        "/dev/shm is too small or full",
        is_bare=True,
    ),
    sign(
        "locked_memory",
        "unknown",
        r"ibv_reg_mr\w* failed|RLIMIT_MEMLOCK",
        "the network card may not lock as much memory as it needs",
        is_bare=True,
    ),
    sign(
        "kernel_oom",
        "host_ram",
        r"[Oo]ut of memory: Kill(?:ed)? process (?P<victim>\d+)|oom-kill:|oom_reaper: reaped|OOMKilled"
        r"|killed by the OOM killer|result 'oom-kill'",
        "the kernel killed a process because the host ran out of memory",
        is_bare=True,
    ),
    sign(
        "host_alloc",
        "host_ram",
        r"std::bad_alloc|DefaultCPUAllocator: (?:can't allocate|not enough) memory|^MemoryError\b"
        r"|[Cc]annot allocate memory|\[Errno 12\]|numpy\.(?:_core|core)\._exceptions\._ArrayMemoryError",
        HOST_RAM,
        is_bare=True,
    ),
    sign(
        "shell_killed",
        "host_ram",
        SHELL + r"Killed\b",
        "the shell saw the server killed, as by the kernel when the host runs out of memory",
        is_bare=True,
    ),
    sign(
        "busy_device",
        "neighbour",
        r"CUDA-capable device\(s\) is/are busy or unavailable",
        "another process holds the card in exclusive mode",
    ),
    sign(
        "rpc_timeout",
        "hang",
        r"RPC call to (?P<method>\w+) timed out",
        "a worker did not answer {method} in time",
        "serving",
        rank="report",
    ),
    sign(
        "start_timeout",
        "hang",
        r"Timed out waiting for engine core processes to start|Did not receive response from front-end process"
        r"|[Tt]imed out after .* waiting for clients",
        "the engine did not come up in time",
        rank="report",
    ),
    sign(
        "collective_timeout",
        "hang",
        r"Watchdog caught collective operation timeout",
        "a collective operation between the GPUs did not end",
        is_bare=True,
        rank="report",
    ),
    sign(
        "fatal_signal",
        "killed",
        r"Fatal Python error: (?P<what>Segmentation fault|Aborted|Illegal instruction)|Segfault encountered"
        rf"|{SHELL}(?:Segmentation fault|Aborted)\b|exit code: -(?:11|6|4)\b",
        "a process of the engine crashed",
        is_bare=True,
        rank="report",
    ),
    sign(
        "killed",
        "killed",
        r"(?:Worker proc|[Ee]ngine core proc\w*) ?(?P<who>\S*) died unexpectedly \(exit code: -(?P<signal>\d+)\)"
        r"|Failed core proc\(s\): \{'(?P<core>[^']+)': -(?P<core_signal>\d+)"
        r"|Worker \S+ pid \d+ died, exit code: -(?P<old_signal>\d+)|^(?P<container>\S+) exited with code 137$"
        r"|^command terminated with (?:non-zero )?exit (?:code|status):? 137|\bExit [Cc]ode:\s+137\b|exit status 137\b",
        "a process of the engine was killed by a signal",
        rank="report",
        is_bare=True,
    ),
    sign(
        "worker_terminated",
        "killed",
        r"WorkerProc was terminated",
        "a worker was told to end by a signal",
        rank="report",
        is_quiet=True,
    ),
    sign(
        "died",
        "killed",
        r"engine core exited unexpectedly|Engine core proc\w* .*died unexpectedly|Worker proc \S+ died unexpectedly"
        r"|AsyncLLM output_handler failed|EngineDeadError|Got fatal signal from worker"
        r"|worker died or was killed while executing|actor died unexpectedly|ActorDiedError"
        r"|Engine process \(pid \d+\) died|MQLLMEngine is already dead",
        "a process of the engine ended without a word, as after SIGKILL",
        rank="consequence",
        is_quiet=True,
        is_bare=True,
    ),
    sign(
        "no_device",
        "unknown",
        r"No CUDA GPUs are available|invalid device ordinal|Failed to infer device type|no CUDA-capable device"
        r"|no NVIDIA driver on your system",
        "no GPU is visible to the server (see CUDA_VISIBLE_DEVICES)",
    ),
    sign(
        "device_not_ready",
        "unknown",
        r"Error 80[12]:|system not yet initialized|CUDA unknown error|CUDA initialization error"
        r"|Driver/library version mismatch|Failed to initialize NVML",
        "the GPU's driver is there but does not answer",
    ),
    sign(
        "placement",
        "unknown",
        r"Cannot provide a placement group|number of required GPUs exceeds the total number of available GPUs",
        "the Ray cluster has not as many free GPUs as the parallel sizes need",
    ),
    sign(
        "permission",
        "unknown",
        r"PermissionError: |\[Errno 13\]",
        "the server may not write or read a file",
        rank="report",
    ),
    sign(
        "threads",
        "unknown",
        r"can't start new thread|Resource temporarily unavailable|pthread_create failed|\[Errno 11\]",
        "no further thread or process may be started",
        rank="report",
    ),
    sign(
        "device_fault",
        "unknown",
        r"illegal memory access|device-side assert|unspecified launch failure|misaligned address|uncorrectable ECC"
        r"|NVRM: Xid|cudaErrorLaunchFailure",
        "a kernel crashed on the GPU",
        is_bare=True,
    ),
    sign("disk", "unknown", r"\[Errno 28\]|No space left on device", "no space left on the disk", rank="report"),
    sign("files", "unknown", r"\[Errno 24\]|Too many open files", "too many open files (ulimit -n)"),
    sign(
        "nccl",
        "unknown",
        r"NCCL error(?: in)?: ?(?P<what>.*)|DistBackendError",
        "the GPUs' communication (NCCL) failed",
        rank="report",
    ),
)
