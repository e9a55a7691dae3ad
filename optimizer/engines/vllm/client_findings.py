"""Did the client keep up, and do client and servers agree on what was going on between them?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from objectives.measurement import PhaseMeasurement
from optimizer.engines.vllm.finding import Finding

ACHIEVED_SHARE = 0.95
"""Of the scheduled rate; below it the load was not the one asked for."""
AGREED_SHARE = 0.75
"""Of the requests that the client has open the servers know at least so many, in the median second: the rest is on
its way, being tokenised, or waits for the engine's step to end."""
MIN_OPEN = 8
"""Seconds with fewer open requests say nothing about agreement."""
MIN_SECONDS = 5
STALE_S = (0.0, 0.5, 1.0, 1.5, 2.0)
"""A server's gauges are as of its last step, and a long step takes seconds: they are held against the least, and the
most, that was open since then."""
BUSY_CORES = 0.9
"""Of one thread or process: it has no more to give."""
MIN_SENT = 10


def client_findings(phase: PhaseMeasurement) -> Iterator[Finding]:
    """Nothing on the simulator, which has no client."""
    if phase.client is not None and phase.client.fault:
        yield Finding("invalid", "client", phase.client.fault)
    yield from _rate_findings(phase)
    yield from _agreement_findings(phase)
    if phase.client is not None and (phase.client.cores or 0.0) >= BUSY_CORES:
        yield Finding("note", "client", f"the busiest client process used {phase.client.cores:.2f} of its one core")


def _rate_findings(phase: PhaseMeasurement) -> Iterator[Finding]:
    """An open loop sends when the trace says so, however slow the server is; sending slower is the client's doing."""
    if phase.load == "saturation" or len(phase.records) < MIN_SENT:
        return
    asked = _rate_per_s(np.array([r.scheduled_s for r in phase.records]))
    sent = _rate_per_s(np.array([r.sent_s for r in phase.records]))
    if asked is not None and sent is not None and sent < ACHIEVED_SHARE * asked:
        text = f"{sent:.3g} requests per second were sent where {asked:.3g} were due: the client did not keep up"
        yield Finding("invalid", "client", text)


def _rate_per_s(times_s: NDArray[np.float64]) -> float | None:
    span_s = float(np.ptp(times_s))
    return (times_s.size - 1) / span_s if span_s > 0 else None


@dataclass(frozen=True)
class _Second:
    n_client_at_least: int
    """Requests open at the client all through the last two seconds, failures of unknown end left out."""
    n_client_at_most: int
    """Open at any time in them, such failures taken as open until the phase's end."""
    n_servers: float


def _agreement_findings(phase: PhaseMeasurement) -> Iterator[Finding]:
    seconds = _seconds(phase)
    busy = [s for s in seconds if s.n_client_at_least >= MIN_OPEN]
    if len(busy) >= MIN_SECONDS and np.median([s.n_servers / s.n_client_at_least for s in busy]) < AGREED_SHARE:
        n_client, n_servers = np.median([s.n_client_at_least for s in busy]), np.median([s.n_servers for s in busy])
        yield _disagreement(phase, f"{n_client:.0f} requests were open at the client, the servers knew {n_servers:.0f}")
    late = seconds[len(seconds) // 2 :]
    if len(late) >= MIN_SECONDS and np.median([s.n_servers - 1.25 * s.n_client_at_most for s in late]) > MIN_OPEN:
        n_client, n_servers = np.median([s.n_client_at_most for s in late]), np.median([s.n_servers for s in late])
        text = f"the servers had {n_servers:.0f} requests where {n_client:.0f} were ours: others use them too"
        yield Finding("disturbed", "neighbour", text)


def _disagreement(phase: PhaseMeasurement, text: str) -> Finding:
    """A front that is out of CPU holds requests back before the engine sees them: that is the server's own speed."""
    threads = [p.busiest_thread_cores for p in phase.processes if p.role == "api_server"]
    known = [t for t in threads if t is not None]
    if known and np.median(known) >= BUSY_CORES:
        return Finding("note", "api_server", f"{text}: the API server is out of CPU ({np.median(known):.2f} cores)")
    return Finding("invalid", "client", f"{text}: the client holds requests back, or hears late that they ended")


def _seconds(phase: PhaseMeasurement) -> list[_Second]:
    """Second by second until the phase's end, where every instance was read."""
    names = {s.instance for s in phase.samples}
    ticks: dict[int, dict[str, tuple[float, float]]] = {}
    for s in phase.samples:
        if s.n_running is not None and s.n_waiting is not None and phase.counted_from_s <= s.time_s <= phase.end_s:
            ticks.setdefault(round(s.time_s), {})[s.instance] = (s.time_s, s.n_running + s.n_waiting)
    inside = [t for t in ticks.values() if t.keys() == names]
    times = np.array([np.mean([time_s for time_s, _ in t.values()]) for t in inside])
    counts = [sum(n for _, n in t.values()) for t in inside]
    lags = [times - lag_s for lag_s in STALE_S]
    least = np.min([_open_at(phase, t, is_counting_failures=False) for t in lags], axis=0)
    most = np.max([_open_at(phase, t, is_counting_failures=True) for t in lags], axis=0)
    return [_Second(int(a), int(b), n) for a, b, n in zip(least, most, counts, strict=True)]


def open_requests(phase: PhaseMeasurement) -> float | None:
    """Requests open at the client in the median second of the counted window; None if it has no reading."""
    times = np.array([s.time_s for s in phase.samples if phase.counted_from_s <= s.time_s <= phase.counted_until_s])
    return float(np.median(_open_at(phase, times, is_counting_failures=False))) if times.size else None


def _open_at(phase: PhaseMeasurement, times_s: NDArray[np.float64], *, is_counting_failures: bool) -> NDArray[np.int64]:
    """Requests sent and unanswered; those that time cut stay open to the end, as those that failed may have."""
    known = [r for r in phase.records if is_counting_failures or r.is_finished or r.is_timed_out]
    sent = np.sort([r.sent_s for r in known])
    ended = np.sort([float(r.token_times_s[-1]) if r.is_finished else phase.end_s for r in known])
    n_sent, n_ended = np.searchsorted(sent, times_s, "right"), np.searchsorted(ended, times_s, "right")
    return (n_sent - n_ended).astype(np.int64)
