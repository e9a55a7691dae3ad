"""Whether memory creeps: a slope over a load that lasts minutes shows what would kill a server after hours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from objectives.measurement import DeviceSample

GIB = float(1 << 30)
MIN_SAMPLES, MIN_SPAN_S = 8, 120.0
WARMUP_SHARE = 0.3
"""The first part is left out: caches and graphs fill while a server warms up."""
MIN_TAU = 0.7
"""Kendall's tau of memory over time below which the samples do not rise together."""
MIN_RISE = 3.0
"""The rise over the window must exceed this many standard deviations of the samples around their line."""
MIN_RISE_SHARE = 0.005
"""... and half a percent of the memory in use: allocators keep segments, which settles."""


SOAK_S = 24 * 3600.0
"""A server that would be full sooner at its rate is not recommended: it runs for days."""


@dataclass(frozen=True)
class MemoryTrend:
    slope_bytes_per_s: float
    time_to_full_s: float | None
    """Until the device is full at this rate; None where its size is not known."""

    @property
    def is_dangerous(self) -> bool:
        return self.time_to_full_s is None or self.time_to_full_s < SOAK_S

    @property
    def text(self) -> str:
        per_min = self.slope_bytes_per_s * 60 / GIB
        end = (
            "" if self.time_to_full_s is None else f", OOM in ~{max(self.time_to_full_s / 60, 1):.0f} min at this rate"
        )
        return f"not steady: about +{per_min:.2g} GiB/min{end}"


def creep_of(devices: Sequence[DeviceSample]) -> MemoryTrend | None:
    """Of the cards read during a load, the first that creeps. What others do to a host's memory is not the server's."""
    for device in dict.fromkeys(d.device for d in devices if d.device != "host"):
        own = [d for d in devices if d.device == device and d.used_bytes is not None]
        rows = [(d.time_s, float(d.used_bytes)) for d in own if d.used_bytes is not None]
        sizes = [d.used_bytes + d.free_bytes for d in own if d.used_bytes is not None and d.free_bytes is not None]
        if (trend := judge_memory(rows, float(max(sizes)) if sizes else None)) is not None:
            return trend
    return None


def judge_memory(
    samples: Sequence[tuple[float, float]], device_memory_bytes: float | None = None
) -> MemoryTrend | None:
    """The trend of (time in s, used bytes), or None while memory is steady: flat, falling, one step, or a sawtooth.

    Too few samples (8) or too short a span (2 min) judge nothing. Theil-Sen slope after the first 30 % of the span."""
    points = np.array(sorted((t, b) for t, b in samples if np.isfinite(t) and np.isfinite(b)), dtype=float)
    if len(points) < MIN_SAMPLES or points[-1, 0] - points[0, 0] < MIN_SPAN_S:
        return None
    time_s, used = _after_warmup(points)
    slope, tau = _slope_and_tau(time_s, used)
    rise = slope * (time_s[-1] - time_s[0])
    noise = float(np.std(used - slope * time_s))
    if (
        tau < MIN_TAU
        or rise < MIN_RISE * noise
        or rise < MIN_RISE_SHARE * used[-1]
        or _is_settling(time_s, used, slope)
    ):
        return None
    free = None if device_memory_bytes is None else max(device_memory_bytes - used[-1], 0.0)
    return MemoryTrend(slope, None if free is None else float(free / slope))


def _after_warmup(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    begin_s = points[0, 0] + WARMUP_SHARE * (points[-1, 0] - points[0, 0])
    kept = points[points[:, 0] >= begin_s]
    kept = kept[:: max(len(kept) // 400, 1)]
    return kept[:, 0], kept[:, 1]


def _slope_and_tau(time_s: np.ndarray, used: np.ndarray) -> tuple[float, float]:
    """The median of the slopes over all pairs, and the surplus of rising pairs."""
    first, second = np.triu_indices(len(time_s), 1)
    dt, du = time_s[second] - time_s[first], used[second] - used[first]
    apart = dt > 0
    return float(np.median(du[apart] / dt[apart])), float(np.mean(np.sign(du[apart])))


def _is_settling(time_s: np.ndarray, used: np.ndarray, slope: float) -> bool:
    """The last third rises at less than a third of the whole: it filled up and stays."""
    last = time_s >= time_s[0] + (time_s[-1] - time_s[0]) * 2 / 3
    if np.count_nonzero(last) < 3:
        return False
    return _slope_and_tau(time_s[last], used[last])[0] < slope / 3
