"""How well a card's kernels use its peaks: one entry per kernel family, each with its source and its error.

An entry is fitted as a whole, so its coefficients share one error: the median relative error of the fit over the kernel
measurements it was fitted to (`bench/distill_kernels.py`). No error: nothing was measured, the values are assumed, and
whatever rests on them is called uncalibrated. Never fitted to serving runs. Times are seconds, sizes bytes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Entry:
    source: str
    error: float | None
    """Median relative error of the fit; None: assumed, not measured."""

    @property
    def is_measured(self) -> bool:
        return self.error is not None


@dataclass(frozen=True, kw_only=True)
class Gemm(Entry):
    """One linear layer: t0 + ((flops / mfu)^q + (bytes / mbu)^q)^(1/q), bytes of weights and activations."""

    mfu: float
    mbu: float
    q: float
    """Exponent of the smooth maximum: large where the slower of the two hides the other."""
    t0_s: float

    def seconds(self, compute_s: float, memory_s: float) -> float:
        """`compute_s`, `memory_s`: at the card's peaks."""
        compute_s, memory_s = compute_s / self.mfu, memory_s / self.mbu
        return self.t0_s + float((compute_s**self.q + memory_s**self.q) ** (1.0 / self.q))


@dataclass(frozen=True, kw_only=True)
class PrefillAttention(Entry):
    """One layer: t0 + flops / mfu + n_passes x (the chunk's queries, keys, values and outputs at peak bandwidth), flops
    over the (query, key) pairs of the causal half."""

    mfu: float
    t0_s: float
    n_passes: float


@dataclass(frozen=True, kw_only=True)
class DecodeAttention(Entry):
    """One layer: t0 + KV bytes / mbu + sequence_head_s for each sequence and KV head."""

    mbu: float
    t0_s: float
    sequence_head_s: float


@dataclass(frozen=True, kw_only=True)
class MixedPenalty(Entry):
    """Factor on decode attention in a step that also prefills: one kernel for both does not split long contexts."""

    factor: float


@dataclass(frozen=True, kw_only=True)
class AllReduce(Entry):
    """vLLM's all-reduce inside CUDA graphs over `n_gpus`, measured at some sizes, between them on a log-log line."""

    n_gpus: int
    points: tuple[tuple[float, float], ...]
    """(message bytes, seconds), both ascending."""

    def seconds(self, n_bytes: float) -> float:
        """Below the smallest size its time; above the largest its rate."""
        points = self.points
        if n_bytes <= points[0][0]:
            return points[0][1]
        if n_bytes >= points[-1][0]:
            return points[-1][1] * n_bytes / points[-1][0]
        at = bisect_left(points, (n_bytes, 0.0))
        (low, low_s), (high, high_s) = points[at - 1], points[at]
        share = math.log(n_bytes / low) / math.log(high / low)
        return low_s * math.exp(share * math.log(high_s / low_s))


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """What is known of one card."""

    gemm: Gemm
    prefill: PrefillAttention
    decode: DecodeAttention
    mixed: MixedPenalty
    gemm_fp8: Gemm | None = None
    """None: no fp8 units; or no data, and then `gemm` stands in for it, uncalibrated."""
    all_reduce: tuple[AllReduce, ...] = ()
    """Ascending in GPUs; empty: none measured."""

    @property
    def is_measured(self) -> bool:
        """Of the families that every 16-bit model on one card needs."""
        return all(e.is_measured for e in (self.gemm, self.prefill, self.decode))

    def all_reduce_of(self, n_gpus: int) -> AllReduce | None:
        """The row for the next larger count, else the largest; None without any."""
        return next((row for row in self.all_reduce if row.n_gpus >= n_gpus), (self.all_reduce or (None,))[-1])

    def assumed(self, why: str) -> Kernels:
        """The same values as start values for another card."""
        fp8, rows = self.gemm_fp8, self.all_reduce
        return Kernels(
            gemm=replace(self.gemm, source=why, error=None),
            prefill=replace(self.prefill, source=why, error=None),
            decode=replace(self.decode, source=why, error=None),
            mixed=replace(self.mixed, source=why, error=None),
            gemm_fp8=None if fp8 is None else replace(fp8, source=why, error=None),
            all_reduce=tuple(replace(row, source=why, error=None) for row in rows),
        )
