"""A load of a trial as series over time: gauges of its servers, waits for first tokens, gaps between tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from objectives.measurement import EngineSample, PhaseMeasurement, RequestRecord

REQUESTS, KV_USAGE, PREEMPTIONS, FIRST_TOKENS, GAPS = range(5)
"""Rows, from the top down."""
N_BINS = 200
"""Of gauges: the highest value of each span of time is drawn, so that no peak is lost."""
N_SPANS = 60
"""Of gaps between tokens: median and P99 of each span."""
MOST_POINTS = 400
"""First tokens a tenant: the slowest of each span, so that what people wait for is seen."""


@dataclass(frozen=True)
class Series:
    """A line or points of one row. Times in seconds from the load's first measured arrival."""

    row: int
    owner: str
    x: Sequence[float]
    y: Sequence[float | None]
    is_points: bool = False
    dash: str = "solid"
    width: float = 1.5


def gauges(phase: PhaseMeasurement) -> list[Series]:
    found = []
    for name in dict.fromkeys(s.instance for s in phase.samples):
        own = sorted((s for s in phase.samples if s.instance == name and s.time_s >= 0), key=lambda s: s.time_s)
        found += [
            *_gauge(own, REQUESTS, name, lambda s: s.n_running),
            *_gauge(own, REQUESTS, name, lambda s: s.n_waiting, dash="dot"),
            *_gauge(own, KV_USAGE, name, lambda s: None if s.kv_usage is None else 100 * s.kv_usage),
            *_gauge(own, PREEMPTIONS, name, _preempted_since(own)),
        ]
    return found


def _preempted_since(own: Sequence[EngineSample]) -> Callable[[EngineSample], float | None]:
    first = next((s.n_preemptions_total for s in own if s.n_preemptions_total is not None), 0.0)
    return lambda s: None if s.n_preemptions_total is None else s.n_preemptions_total - first


def _gauge(
    own: Sequence[EngineSample], row: int, name: str, value: Callable[[EngineSample], float | None], dash: str = "solid"
) -> list[Series]:
    read = [(s.time_s, v) for s in own if (v := value(s)) is not None]
    if not read:
        return []
    time, values = np.array([t for t, _ in read]), np.array([v for _, v in read], np.float64)
    x, y = _highest(time, values, N_BINS)
    return [Series(row, name, x, y, dash=dash)]


def first_tokens(phase: PhaseMeasurement) -> list[Series]:
    found = []
    for tenant in phase.tenants:
        own = [(r.scheduled_s, 1e3 * t) for r in phase.records if r.tenant == tenant and (t := r.ttft_s) is not None]
        if own:
            x, y = _highest(np.array([a for a, _ in own]), np.array([b for _, b in own]), MOST_POINTS)
            found.append(Series(FIRST_TOKENS, tenant, x, y, is_points=True))
    return found


def gaps(phase: PhaseMeasurement) -> list[Series]:
    found = []
    for tenant in phase.tenants:
        time, own = _gaps_of([r for r in phase.records if r.tenant == tenant])
        if own.size:
            x, p50, p99 = _tails(time, own)
            found += [Series(GAPS, tenant, x, p99), Series(GAPS, tenant, x, p50, dash="dot", width=1.0)]
    return found


def _gaps_of(records: Sequence[RequestRecord]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(when each gap ended, its milliseconds)"""
    ends = [r.token_times_s[1:] for r in records if r.token_times_s.size > 1]
    gaps = [1e3 * r.gaps_s for r in records if r.token_times_s.size > 1]
    return (np.concatenate(ends), np.concatenate(gaps)) if ends else (np.empty(0), np.empty(0))


def _highest(
    time: NDArray[np.float64], values: NDArray[np.float64], n: int
) -> tuple[Sequence[float], Sequence[float | None]]:
    """The highest value of each of `n` spans, where and as it was; everything where there is no more."""
    order = np.argsort(time, kind="stable")
    time, values = time[order], values[order]
    if time.size > n:
        span = np.minimum(((time - time[0]) / max(time[-1] - time[0], 1e-9) * n).astype(int), n - 1)
        best: dict[int, int] = {}
        for i, k in enumerate(span):
            if k not in best or values[i] > values[best[k]]:
                best[int(k)] = i
        kept = sorted(best.values())
        time, values = time[kept], values[kept]
    return time.tolist(), values.tolist()


def _tails(
    time: NDArray[np.float64], gaps: NDArray[np.float64]
) -> tuple[Sequence[float], Sequence[float | None], Sequence[float | None]]:
    """(middle of each span, median, P99); a span without a gap interrupts the line."""
    span_s = max(float(time.max()), 1e-9) / N_SPANS
    place = np.minimum((np.maximum(time, 0) / span_s).astype(int), N_SPANS - 1)
    groups = [gaps[place == k] for k in range(N_SPANS)]
    middle = [(k + 0.5) * span_s for k in range(N_SPANS)]
    both = [(float(np.percentile(g, 50)), float(np.percentile(g, 99))) if g.size else (None, None) for g in groups]
    return middle, [a for a, _ in both], [b for _, b in both]
