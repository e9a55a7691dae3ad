"""Whether the client kept up, and how many processes it takes. A client that did not measures itself.

Send lag: how late requests went out; it stands in every latency, because these begin at the scheduled arrival. Read
lag: how late the event loop was; it stands in every time of a message, and gaps hide it when all streams wait alike.
A lag is held against the figure that it falsifies: 20 ms are nothing to a server whose P99 gap is 300 ms. Two bounds:
a tenth of all moments late is a client that is too slow; a hundredth is a busy machine's hiccup, and counts as a fault
only once it can be the whole of the figure. Below that it is noise, which the report shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.replay.plan import ReplayPlan

FREE_MS = {"sent": 25.0, "read": 15.0}
"""Lags up to this are never a fault. Quiet machines show 1 to 5 ms for sends, a few for reads at the rated load."""
P90_SHARE = 0.25
P99_SHARE = {"sent": 0.5, "read": 1.0}
"""Of the P99 time to first token (sent), which contains the lag; of the P99 gap (read), which need not."""
BURST_MS, BURST_MS_PER_TOKEN = 1.0, 5e-5
"""Allowed on top for each request of one process that is due in the same BURST_WINDOW_S: they leave one by one, a
connection and a body each, in 0.2 to 1 ms, and about 4 ms for 100,000 tokens."""
BURST_WINDOW_S = 0.05
BUSY_CORES = 0.95
"""A process that computes all the time answers late, however its lag was sampled."""
ACHIEVED_SHARE = 0.95
"""Of the offered rate; below it the load was another one."""
KNOWN_SHARE, KNOWN_SLACK = 0.8, 8
"""The server's running and waiting requests against the client's open ones, which it hears of a moment later."""
MESSAGES_PER_PROCESS_PER_S = 15_000.0
"""A third of what one process reads (bench/replay_client.py): the rest is for bursts, slower cores and busy ones."""
MIN_LAGS, MIN_LAGS_FOR_P99 = 20, 100
"""Fewer say nothing of a tail: the worst of ten is any machine's hiccup."""


@dataclass(frozen=True)
class Lags:
    """The tail of a sample of lags."""

    p90_ms: float
    p99_ms: float | None = None


@dataclass(frozen=True)
class ClientFigures:
    """What the judgement rests on. None: not known, or it means nothing for this load."""

    offered_per_s: float | None = None
    sent_per_s: float | None = None
    send_lags: Lags | None = None
    ttft_p99_ms: float | None = None
    burst_ms: float = 0.0
    """Allowance for what one process had to send at once; see `burst_ms`."""
    read_lags: Lags | None = None
    gap_p99_ms: float | None = None
    cores: float | None = None
    n_refused_sockets: int = 0
    n_open: int | None = None
    """Requests in flight as the client sees it, at the same time as `n_known`."""
    n_known: int | None = None
    """Running and waiting on the server."""


def client_fault(figures: ClientFigures) -> str | None:
    """Why the client's figures cannot be trusted, in one sentence; None if it kept up."""
    checks = (_sockets(figures), _cores(figures), _reads(figures), _sends(figures), _rate(figures), _known(figures))
    return next(filter(None, checks), None)


def processes_for(messages_per_s: float, n_cores: int) -> int:
    """Client processes for a predicted rate of messages: at least one, at most one a core."""
    wanted = math.ceil(max(messages_per_s, 0.0) / MESSAGES_PER_PROCESS_PER_S)
    return max(1, min(wanted, n_cores))


def tail_of(lags_s: NDArray[np.float64]) -> Lags | None:
    if lags_s.size < MIN_LAGS:
        return None
    p90_ms, p99_ms = 1e3 * np.percentile(lags_s, [90, 99])
    return Lags(float(p90_ms), float(p99_ms) if lags_s.size >= MIN_LAGS_FOR_P99 else None)


def burst_ms(plan: ReplayPlan) -> float:
    """How long one process may take to send the most that is due within BURST_WINDOW_S."""
    arrivals_s = plan.trace.arrival_s
    if not arrivals_s.size:
        return 0.0
    costs_ms = np.concatenate([[0.0], np.cumsum(BURST_MS + BURST_MS_PER_TOKEN * plan.trace.prompt_tokens)])
    until = np.searchsorted(arrivals_s, arrivals_s + BURST_WINDOW_S, side="right")
    return float((costs_ms[until] - costs_ms[:-1]).max()) / plan.n_processes


def _sockets(f: ClientFigures) -> str | None:
    if f.n_refused_sockets == 0:
        return None
    return (
        f"the client's limit on open files refused {f.n_refused_sockets} connections; raise the hard limit (ulimit -Hn)"
    )


def _cores(f: ClientFigures) -> str | None:
    if f.cores is None or f.cores <= BUSY_CORES:
        return None
    return f"a client process was busy all the time ({f.cores:.2f} cores): give it more processes or free cores"


def _reads(f: ClientFigures) -> str | None:
    return _late("read", f.read_lags, f.gap_p99_ms, 0.0)


def _sends(f: ClientFigures) -> str | None:
    return _late("sent", f.send_lags, f.ttft_p99_ms, f.burst_ms)


def _late(what: str, lags: Lags | None, falsified_p99_ms: float | None, allowance_ms: float) -> str | None:
    if lags is None:
        return None
    for percentile, lag_ms, share in ((90, lags.p90_ms, P90_SHARE), (99, lags.p99_ms, P99_SHARE[what])):
        allowed_ms = max(FREE_MS[what], share * (falsified_p99_ms or 0.0)) + allowance_ms
        if lag_ms is not None and lag_ms > allowed_ms:
            figures = f"P{percentile} {lag_ms:.0f} ms, at most {allowed_ms:.0f} ms are allowed"
            return f"the client {what} late: {figures}; give it more processes or cores of its own"
    return None


def _rate(f: ClientFigures) -> str | None:
    if not f.offered_per_s or f.sent_per_s is None or f.sent_per_s >= ACHIEVED_SHARE * f.offered_per_s:
        return None
    return f"the client sent {f.sent_per_s:.3g} requests per second of the {f.offered_per_s:.3g} it was to send"


def _known(f: ClientFigures) -> str | None:
    if f.n_open is None or f.n_known is None or f.n_known >= KNOWN_SHARE * f.n_open - KNOWN_SLACK:
        return None
    return f"the server knew of {f.n_known} requests when the client had {f.n_open} open"
