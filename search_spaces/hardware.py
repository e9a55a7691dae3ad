"""GPU facts: what a card has, from vendor sheets and measured tables. Every row names its source (`gpu_table.py`).

The CPU of a host is described in the same terms (`cpu.py`)."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal

from search_spaces.kernels import AllReduce, Kernels

GIB = 1024**3
MIB = 1024**2
GB = 1000**3


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """One GPU model. Rates are dense peaks per card, links per direction."""

    name: str
    """Canonical name, e.g. `A100-80`."""
    memory_bytes: int
    """Device memory as the driver reports it."""
    hbm_bytes_per_s: float
    bf16_flops: float
    fp8_flops: float | None
    link: Literal["PCIe", "NVLink", "xGMI"]
    link_bytes_per_s: float
    kernels: Kernels
    """How well its kernels use those peaks, entry by entry with source and error."""
    source: str
    aliases: tuple[str, ...] = ()
    is_cpu: bool = False
    """The host itself: no CUDA context, no graphs, and the KV cache always given in bytes."""

    @property
    def is_calibrated(self) -> bool:
        """False: its 16-bit kernels are assumed, and results are labelled uncalibrated. The simulator's `basis` says
        what else a model on it rests on."""
        return self.kernels.is_measured

    def all_reduce_of(self, n_gpus: int) -> AllReduce:
        """The kernels' row; without one, 5 us a hop and a third of the link's rate, which is assumed."""
        row = self.kernels.all_reduce_of(n_gpus)
        if row is not None:
            return row
        latency_s, bytes_per_s = 5e-6 * n_gpus / 2, self.link_bytes_per_s / 3 / max(1, n_gpus - 1)
        points = tuple((size, latency_s + size / bytes_per_s) for size in (1e4, 1e5, 1e6, 1e7, 1e8))
        return AllReduce(n_gpus=n_gpus, points=points, source=f"a third of its {self.link}", error=None)


def batch_defaults(gpu: GpuFacts) -> tuple[int, int]:
    """`vllm serve`'s (max_num_batched_tokens, max_num_seqs) when neither is given: vLLM 0.32 engine/arg_utils.py:2894.

    vLLM lowers them further for short contexts: see `search_spaces.vllm.default_config`."""
    if gpu.is_cpu:
        return 2048, 128
    if gpu.memory_bytes >= 160 * GIB:
        return 16384, 1024
    if gpu.memory_bytes >= 70 * GIB and not gpu.name.startswith("A100"):
        return 8192, 1024
    return 2048, 256


def find_gpu(name: str) -> GpuFacts:
    """A card by its name or any usual spelling; case, spaces, underscores and hyphens do not matter.

    Raises ValueError with the closest names. Never guesses between variants that differ in memory."""
    from search_spaces.gpu_table import GPUS

    by_key = {_key(spelling): gpu for gpu in GPUS for spelling in (gpu.name, *gpu.aliases)}
    key = _key(name)
    if key in by_key:
        return by_key[key]
    close = dict.fromkeys(by_key[k].name for k in difflib.get_close_matches(key, by_key, n=6, cutoff=0.6))
    hint = f"; did you mean {' or '.join(list(close)[:3])}?" if close else ""
    raise ValueError(f"unknown GPU {name!r}{hint} (known: {' '.join(g.name for g in GPUS)})")


def _key(name: str) -> str:
    without_remark = re.sub(r"\(.*?\)", "", name.lower())
    plain = re.sub(r"[^a-z0-9]+", "", without_remark)
    return re.sub(r"^(nvidia|amd)?(geforce|instinct|tesla)?", "", plain)
