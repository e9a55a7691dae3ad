"""The GPU table. Memory: bytes the driver reports to a process (a little under the label). Peaks: dense, vendor sheets.

Kernel efficiencies come from `kernel_table.py`; a card that has none there takes those of the nearest that has, marked
as assumed.
"""

from __future__ import annotations

from dataclasses import replace

from search_spaces.hardware import GB, GIB, GpuFacts
from search_spaces.kernel_table import FITTED
from search_spaces.kernels import DecodeAttention, Gemm, Kernels, MixedPenalty, PrefillAttention

TERA = 1e12
_START = "no kernel data: start values"
_UNKNOWN = Kernels(
    gemm=Gemm(mfu=0.70, mbu=0.80, q=2.0, t0_s=4e-6, source=_START, error=None),
    prefill=PrefillAttention(mfu=0.50, t0_s=12e-6, n_passes=2.5, source=_START, error=None),
    decode=DecodeAttention(mbu=0.80, t0_s=12e-6, sequence_head_s=15e-9, source=_START, error=None),
    mixed=MixedPenalty(factor=1.7, source=_START, error=None),
)
_SXM = "as the SXM card of its kind"


def _gib(value: float) -> int:
    return int(value * GIB)


_A100_80 = GpuFacts(
    name="A100-80",
    memory_bytes=_gib(79.15),
    hbm_bytes_per_s=2039 * GB,
    bf16_flops=312 * TERA,
    fp8_flops=None,
    link="NVLink",
    link_bytes_per_s=300 * GB,
    kernels=FITTED["A100-80"],
    source="NVIDIA A100 SXM datasheet",
    aliases=("A100-SXM-80", "A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "A100", "A100 80GB", "A100_sxm"),
)
_H100_80 = GpuFacts(
    name="H100-80",
    memory_bytes=_gib(79.19),
    hbm_bytes_per_s=3350 * GB,
    bf16_flops=989 * TERA,
    fp8_flops=1979 * TERA,
    link="NVLink",
    link_bytes_per_s=450 * GB,
    kernels=FITTED["H100-80"],
    source="NVIDIA H100 SXM5 datasheet",
    aliases=("H100-SXM-80", "H100-SXM", "H100 SXM5", "NVIDIA H100 80GB HBM3", "H100", "H100 80GB", "H100-SXM5-80GB"),
)
_L40S = GpuFacts(
    name="L40S-48",
    memory_bytes=48_305_799_168,
    hbm_bytes_per_s=864 * GB,
    bf16_flops=362 * TERA,
    fp8_flops=733 * TERA,
    link="PCIe",
    link_bytes_per_s=32 * GB,
    kernels=FITTED["L40S-48"],
    source="NVIDIA L40S datasheet; memory as torch reports it",
    aliases=("L40S", "NVIDIA L40S", "L40S 48GB"),
)
_RTX_4090 = GpuFacts(
    name="RTX-4090-24",
    memory_bytes=25_250_627_584,
    hbm_bytes_per_s=1008 * GB,
    bf16_flops=165 * TERA,
    fp8_flops=330 * TERA,
    link="PCIe",
    link_bytes_per_s=16 * GB,
    kernels=replace(
        FITTED["RTX-4090-24"], all_reduce=FITTED["L40S-48"].assumed("as the L40S: PCIe 4, no peer-to-peer").all_reduce
    ),
    source="NVIDIA Ada whitepaper (fp32 accumulation)",
    aliases=("RTX 4090", "RTX4090", "4090", "NVIDIA GeForce RTX 4090", "GeForce RTX 4090 24GB"),
)
GPUS: tuple[GpuFacts, ...] = (
    replace(
        _A100_80,
        name="A100-40",
        memory_bytes=_gib(39.39),
        hbm_bytes_per_s=1555 * GB,
        kernels=FITTED["A100-80"].assumed("as the 80 GB card"),
        source="NVIDIA A100 SXM 40 GB datasheet",
        aliases=("A100-SXM-40", "A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", "A100 40GB", "A100-PCIE-40GB"),
    ),
    _A100_80,
    _H100_80,
    replace(
        _H100_80,
        name="H100-NVL-94",
        memory_bytes=_gib(93.02),
        hbm_bytes_per_s=3900 * GB,
        bf16_flops=835 * TERA,
        fp8_flops=1671 * TERA,
        link_bytes_per_s=300 * GB,
        kernels=replace(FITTED["H100-80"].assumed(_SXM), all_reduce=()),
        source="NVIDIA H100 NVL datasheet",
        aliases=("H100 NVL", "NVIDIA H100 NVL", "H100-94"),
    ),
    replace(
        _H100_80,
        name="H200-141",
        memory_bytes=_gib(139.81),
        hbm_bytes_per_s=4800 * GB,
        kernels=FITTED["H200-141"],
        source="NVIDIA H200 SXM datasheet",
        aliases=("H200", "NVIDIA H200", "H200-SXM", "H200-SXM-141", "H200 141GB"),
    ),
    replace(
        _H100_80,
        name="B200-180",
        memory_bytes=_gib(178.35),
        hbm_bytes_per_s=7700 * GB,
        bf16_flops=2250 * TERA,
        fp8_flops=4500 * TERA,
        link_bytes_per_s=900 * GB,
        kernels=FITTED["B200-180"],
        source="NVIDIA HGX B200 datasheet",
        aliases=("B200", "NVIDIA B200", "B200-SXM", "B200-SXM-180", "B200-192"),
    ),
    _L40S,
    replace(
        _L40S,
        name="L4-24",
        memory_bytes=_gib(22.03),
        hbm_bytes_per_s=300 * GB,
        bf16_flops=121 * TERA,
        fp8_flops=242 * TERA,
        kernels=_UNKNOWN,
        source="NVIDIA L4 datasheet (memory with ECC on)",
        aliases=("L4", "NVIDIA L4", "L4 24GB"),
    ),
    replace(
        _L40S,
        name="A10G-24",
        memory_bytes=_gib(22.06),
        hbm_bytes_per_s=600 * GB,
        bf16_flops=70 * TERA,
        fp8_flops=None,
        kernels=_UNKNOWN,
        source="NVIDIA A10G datasheet (70 TFLOPS, not the A10's 125; memory with ECC on)",
        aliases=("A10G", "NVIDIA A10G", "A10G 24GB"),
    ),
    replace(
        _L40S,
        name="MI300X-192",
        memory_bytes=_gib(191.69),
        hbm_bytes_per_s=5300 * GB,
        bf16_flops=1307 * TERA,
        fp8_flops=2615 * TERA,
        link="xGMI",
        link_bytes_per_s=448 * GB,
        kernels=_UNKNOWN,
        source="AMD Instinct MI300X datasheet",
        aliases=("MI300X", "AMD Instinct MI300X", "MI300X OAM", "AMD Instinct MI300X OAM", "MI300X 192GB"),
    ),
    _RTX_4090,
    replace(
        _RTX_4090,
        name="RTX-PRO-6000-96",
        memory_bytes=_gib(94.97),
        hbm_bytes_per_s=1792 * GB,
        bf16_flops=468 * TERA,
        fp8_flops=936 * TERA,
        link_bytes_per_s=64 * GB,
        kernels=FITTED["RTX-PRO-6000-96"],
        source="NVIDIA RTX PRO 6000 Blackwell datasheet",
        aliases=(
            "RTX PRO 6000",
            "RTXPRO6000",
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
            "RTX PRO 6000 Blackwell",
            "RTX PRO 6000 96GB",
        ),
    ),
    replace(
        _A100_80,
        name="A100-PCIE-80",
        hbm_bytes_per_s=1935 * GB,
        link="PCIe",
        link_bytes_per_s=32 * GB,
        kernels=replace(FITTED["A100-80"].assumed(_SXM), all_reduce=()),
        source="NVIDIA A100 PCIe datasheet",
        aliases=("A100 PCIe", "NVIDIA A100 80GB PCIe", "A100-PCIE-80GB"),
    ),
    replace(
        _H100_80,
        name="H100-PCIE-80",
        memory_bytes=_gib(79.11),
        hbm_bytes_per_s=2000 * GB,
        bf16_flops=756 * TERA,
        fp8_flops=1513 * TERA,
        link="PCIe",
        link_bytes_per_s=64 * GB,
        kernels=replace(FITTED["H100-80"].assumed(_SXM), all_reduce=()),
        source="NVIDIA H100 PCIe datasheet",
        aliases=("H100 PCIe", "NVIDIA H100 PCIe", "H100-PCIE-80GB"),
    ),
)
