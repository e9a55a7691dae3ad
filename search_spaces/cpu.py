"""The host's CPU as a device: vLLM's CPU build serves from a stated share of the host's memory.

Rates are rough start values that nothing is measured by; memory is what decides which configurations fit. The KV cache
is always given in bytes: a share of the host's memory is refused at start whenever something else holds some of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from search_spaces.hardware import GB, GIB, GpuFacts
from search_spaces.kernels import DecodeAttention, Gemm, Kernels, MixedPenalty, PrefillAttention
from search_spaces.parameter import Value

MEMORY_SHARE = 0.25
MOST_MEMORY_BYTES = 16 * GIB
LEAST_MEMORY_BYTES = GIB // 2
"""The share of the host that weights, activations and KV cache of all servers may take; the rest is for their
processes (about 2.7 GB of imports each), the load generator and everybody else."""
MEMORY_STEP_BYTES = GIB // 2
FLOPS_PER_CORE = 50e9
"""bf16 multiply-adds that one core with AVX-512 keeps up, order of magnitude."""
BLOCK_MULTIPLE = 32
"""vLLM 0.32 CPU attention takes blocks of this many tokens or multiples of it (default 128)."""
_START = "no data: start values of a server CPU"
_KERNELS = Kernels(
    gemm=Gemm(mfu=0.5, mbu=0.5, q=2.0, t0_s=0.0, source=_START, error=None),
    prefill=PrefillAttention(mfu=0.3, t0_s=10e-6, n_passes=2.0, source=_START, error=None),
    decode=DecodeAttention(mbu=0.5, t0_s=12e-6, sequence_head_s=20e-9, source=_START, error=None),
    mixed=MixedPenalty(factor=1.0, source=_START, error=None),
)
KV_DTYPES = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2")


def host_cpu(total_bytes: int, n_cores: int) -> GpuFacts:
    """The host as a device, the same at every start: its memory is rounded before the share is taken.

    Raises ValueError for sizes that are none."""
    if total_bytes <= 0 or n_cores <= 0:
        raise ValueError(f"a host has memory and cores, got {total_bytes} bytes and {n_cores} cores")
    share = round(total_bytes / GIB) * GIB * MEMORY_SHARE // MEMORY_STEP_BYTES * MEMORY_STEP_BYTES
    flops = FLOPS_PER_CORE * n_cores
    return GpuFacts(
        name="CPU",
        memory_bytes=int(min(max(share, LEAST_MEMORY_BYTES), MOST_MEMORY_BYTES)),
        hbm_bytes_per_s=20 * GB,
        bf16_flops=flops,
        fp8_flops=None,
        link="PCIe",
        link_bytes_per_s=10 * GB,
        kernels=_KERNELS,
        source=_START,
        is_cpu=True,
    )


def check_on_cpu(flag: str, values: Sequence[Value], where: str) -> None:
    """Raises ValueError for what a server on a CPU refuses or dies of."""
    if flag == "gpu_memory_utilization":
        raise ValueError(f"{where}: on a CPU the KV cache is given in bytes; use kv_cache_memory_bytes")
    if flag == "block_size":
        wrong = [v for v in values if isinstance(v, int | float) and v % BLOCK_MULTIPLE]
        if wrong:
            raise ValueError(f"{where}: {wrong[0]} is not allowed; blocks on a CPU are multiples of {BLOCK_MULTIPLE}")
    if flag == "kv_cache_dtype" and (bad := [v for v in values if v not in (*KV_DTYPES, None)]):
        raise ValueError(f"{where}: {bad[0]!r} is not served on a CPU; allowed: {', '.join(KV_DTYPES)}")
