"""Did the engine keep up with the steady load? Answered from when requests came, started and finished.

A request still in flight when arrivals end is no sign of overload: completions are held against what *could* have
completed. Two signs are looked for, and either is enough: completions that never catch up with 0.97 of those, and a
waiting queue that rises over the last two thirds of the arrivals. A latency measured while either holds measures the
window's length, so it is never ranked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from objectives.measurement import EngineSample, PhaseMeasurement, RequestRecord

MIN_COMPLETIONS_PER_ARRIVALS = 0.97
MAX_RISE_SHARE = 1 - MIN_COMPLETIONS_PER_ARRIVALS
"""A queue may grow by this share of the arrivals before it counts as rising."""
MIN_RISE_REQUESTS = 3.0
MIN_TREND = 0.5
"""Least Kendall's tau of the queue against time: how steadily it must rise, not only how far."""
MIN_TENANT_REQUESTS = 20
"""A tenant with fewer requests is judged only together with the others."""
CAUGHT_UP_SHARE = 0.9
"""Completions are taken at the 90th percentile of moments: a queue that a burst left and that was worked off again
has caught up at one moment in ten, an overloaded engine never has."""
SLOW_DECODE = 1.5
"""Decoding slower than this multiple of the median time per token is waiting (preemption), not service."""
N_MOMENTS = 41


@dataclass(frozen=True, slots=True)
class Sustainment:
    """How an engine kept up. `value` is the graded violation: > 0 is not sustained, -0.03 the best there is."""

    offered_per_s: float
    completed_per_s: float
    """Requests finished per second in the last two thirds of the arrivals: the capacity, when not sustained."""
    completions_per_arrivals: float
    """Finished over could-have-finished, at most 1."""
    waiting_slope_per_s: float
    """Median slope of the waiting queue over the last two thirds, requests per second."""
    mean_latency_s: float | None
    value: float
    tenant: str | None = None
    """The tenant it was found in; None: all together."""

    @property
    def mean_in_flight(self) -> float | None:
        """Little's law: requests in the system are rate times latency, however small the rate."""
        return None if self.mean_latency_s is None else self.offered_per_s * self.mean_latency_s

    @property
    def is_sustained(self) -> bool:
        return self.value <= 0

    @property
    def text(self) -> str:
        """One line for people."""
        whose = f"tenant {self.tenant}: " if self.tenant else ""
        if self.is_sustained:
            return f"{whose}sustained at {self.offered_per_s:.3g} req/s"
        text = f"{whose}not sustainable at {self.offered_per_s:.3g} req/s, capacity ~{self.completed_per_s:.3g} req/s"
        if self.waiting_slope_per_s > 0:
            text += f", the waiting queue grows by {self.waiting_slope_per_s:.2g} req/s"
        return text


def sustainment(phase: PhaseMeasurement) -> Sustainment | None:
    """The worst of all requests together and each tenant alone. None if arrivals span no time."""
    whole = _judge(phase.records, phase)
    if whole is None:
        return None
    found = [whole]
    for tenant in phase.tenants if len(phase.tenants) > 1 else ():
        records = tuple(r for r in phase.records if r.tenant == tenant)
        part = _judge(records, replace(phase, samples=())) if len(records) >= MIN_TENANT_REQUESTS else None
        if part is not None:
            found.append(replace(part, tenant=tenant))
    return max(found, key=lambda s: s.value)


def _judge(records: tuple[RequestRecord, ...], phase: PhaseMeasurement) -> Sustainment | None:
    if len(records) < 2:
        return None
    arrived = np.array([r.scheduled_s for r in records])
    begin, until = float(arrived.min()), float(arrived.max())
    until = min(until, phase.end_s) if phase.cut_reason else until
    if not until > begin:
        return None
    finished = np.array([r.token_times_s[-1] if r.is_finished else np.inf for r in records])
    ratio = _completions_per_arrivals(records, arrived, finished, np.linspace((begin + until) / 2, until, N_MOMENTS))
    late = np.linspace(begin + (until - begin) / 3, until, N_MOMENTS)
    slope, rise = _rise(_waiting(records, phase.samples, late), late, arrived)
    latency = (finished - arrived)[np.isfinite(finished)]
    return Sustainment(
        offered_per_s=(len(records) - 1) / (until - begin),
        completed_per_s=float(((finished > late[0]) & (finished <= until)).sum() / (until - late[0])),
        completions_per_arrivals=ratio,
        waiting_slope_per_s=slope,
        mean_latency_s=float(latency.mean()) if latency.size else None,
        value=float(max(1 - ratio / MIN_COMPLETIONS_PER_ARRIVALS, rise - MAX_RISE_SHARE)),
    )


def _completions_per_arrivals(
    records: tuple[RequestRecord, ...],
    arrived: NDArray[np.float64],
    finished: NDArray[np.float64],
    moments: NDArray[np.float64],
) -> float:
    """Finished over could-have-finished. Where answers outlast the window, started over could-have-started."""
    start = _unqueued_s(records, arrived)
    decode = _decode_s(records)
    done, could = finished, arrived + start + decode
    if (could <= moments[-1]).sum() < arrived.size / 2:
        started = np.array([r.token_times_s[0] if r.token_times_s.size else np.inf for r in records])
        done, could = started, arrived + start
    n_could = (could[:, None] <= moments).sum(axis=0)
    n_done = (done[:, None] <= moments).sum(axis=0)
    return float(np.quantile(np.minimum((n_done + 1) / np.maximum(n_could, 1), 1.0), CAUGHT_UP_SHARE))


def _unqueued_s(records: tuple[RequestRecord, ...], arrived: NDArray[np.float64]) -> NDArray[np.float64]:
    """Time to first token without a queue: the run's own low TTFTs, by request and by prompt token (P10 of each)."""
    first = np.array([r.token_times_s[0] if r.token_times_s.size else np.nan for r in records])
    ttft, prompt = first - arrived, np.array([max(r.prompt_tokens, 1) for r in records], np.float64)
    came = np.isfinite(ttft)
    if not came.any():
        return np.zeros(len(records))
    least = np.maximum(np.quantile(ttft[came], 0.1), prompt * np.quantile((ttft / prompt)[came], 0.1))
    return np.where(came, np.minimum(ttft, least), least)


def _decode_s(records: tuple[RequestRecord, ...]) -> NDArray[np.float64]:
    """First to last token; capped where it is far slower than usual, supposed usual where it never ended."""
    tokens = np.array([max(r.asked_output_tokens - 1, 0) for r in records], np.float64)
    own = np.array([r.token_times_s[-1] - r.token_times_s[0] if r.is_finished else np.inf for r in records])
    per_token = (own / np.maximum(tokens, 1))[np.isfinite(own) & (tokens > 0)]
    usual = float(np.median(per_token)) if per_token.size else 0.0
    return np.where(np.isfinite(own), np.minimum(own, tokens * usual * SLOW_DECODE), tokens * usual)


def _waiting(
    records: tuple[RequestRecord, ...], samples: tuple[EngineSample, ...], moments: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Requests waiting at each moment: by the engines' gauges if read often enough, else arrived and not begun."""
    gauge = _waiting_gauge(samples, moments)
    if gauge is not None:
        return gauge
    arrived = np.array([r.scheduled_s for r in records])
    begun = np.array([r.token_times_s[0] if r.token_times_s.size else np.inf for r in records])
    is_waiting = (arrived[:, None] <= moments) & (begun[:, None] > moments)
    return np.asarray(is_waiting.sum(axis=0), np.float64)


def _waiting_gauge(samples: tuple[EngineSample, ...], moments: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Sum over instances of each one's last reading before a moment; None if any was read too rarely or not at all."""
    total = np.zeros(moments.size)
    for instance in dict.fromkeys(s.instance for s in samples):
        read = sorted((s.time_s, s.n_waiting) for s in samples if s.instance == instance and s.n_waiting is not None)
        times = np.array([t for t, _ in read])
        if ((times >= moments[0]) & (times <= moments[-1])).sum() < N_MOMENTS / 4 or times[0] > moments[0]:
            return None
        total += np.array([w for _, w in read])[np.searchsorted(times, moments, side="right") - 1]
    return total if samples else None


def _rise(
    waiting: NDArray[np.float64], moments: NDArray[np.float64], arrived: NDArray[np.float64]
) -> tuple[float, float]:
    """(median slope per second, growth as a share of the arrivals; 0 unless it is a steady rise of some size).

    The slope is Theil's and Sen's, the median over all pairs of moments: a burst at the end cannot move it."""
    i, j = np.triu_indices(moments.size, 1)
    step = waiting[j] - waiting[i]
    slope = float(np.median(step / (moments[j] - moments[i])))
    span = float(moments[-1] - moments[0])
    n_arrived = int(((arrived > moments[0]) & (arrived <= moments[-1])).sum())
    is_steady = float(np.sign(step).mean()) >= MIN_TREND and slope * span >= MIN_RISE_REQUESTS
    return slope, slope * span / n_arrived if is_steady and n_arrived else 0.0
