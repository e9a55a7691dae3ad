"""Whether a load was healthy, and if not, in what. The limits are the profiles' defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from optimizer.questions.situation import Situation

Health = Literal["healthy", "degraded", "broken"]
PREEMPTIONS_PER_REQUEST = {"steady": 0.01, "stress": 0.1}
"""Limits on preemptions per finished request; loads without one are judged by the stricter, saturation by none."""
RISING = 0.02
"""Requests per second: a waiting queue that grows by more, and by more than 3 % of the arrivals, is not worked off."""
LONG_QUEUE_SHARE = 0.5
"""Of the time to first token spent in the queue."""


def problems(s: Situation) -> tuple[str, ...]:
    """One line each; empty for a healthy load. What could not be read is no problem, and no proof either."""
    return tuple(_broken(s)) + tuple(_degraded(s))


def health_of(s: Situation) -> Health:
    if any(_broken(s)):
        return "broken"
    return "degraded" if any(_degraded(s)) else "healthy"


def _broken(s: Situation) -> Iterator[str]:
    if s.n_failed:
        of = f" of {s.n_requests}" if s.n_requests else ""
        yield f"{s.n_failed}{of} requests were not answered whole"
    is_stuck = s.running is not None and s.running.mean >= 1 and s.output_tokens_per_s == 0
    if is_stuck:
        yield f"no token in {s.span_s:.0f} s with {s.running.mean:.0f} requests running" if s.running else ""


def _degraded(s: Situation) -> Iterator[str]:
    """A queue is a problem of the steady load only: saturation and stress are made to have one."""
    if s.load in ("steady", None):
        yield from _overload(s)
    rate = s.preemptions_per_request
    limit = PREEMPTIONS_PER_REQUEST.get(s.load or "steady")
    if rate is not None and limit is not None and rate > limit:
        yield f"{s.n_preemptions:.0f} preemptions, {rate:.2g} per finished request (limit {limit:g})"
    if s.memory_trend:
        yield f"device memory is {s.memory_trend}"


def _overload(s: Situation) -> Iterator[str]:
    if s.is_sustained is False:
        offered = "" if s.offered_per_s is None else f" {s.offered_per_s:.3g} requests/s"
        yield f"it does not keep up with the{offered} offered"
    elif s.is_sustained is None and is_queue_rising(s) and s.waiting is not None and s.waiting.slope_per_s:
        yield f"the waiting queue grows by {s.waiting.slope_per_s:.2g} requests/s, {s.waiting.most:.0f} at most"
    elif s.queue_mean_s is not None and s.ttft_ms is not None and s.ttft_ms.mean:
        share = 1e3 * s.queue_mean_s / s.ttft_ms.mean
        if share > LONG_QUEUE_SHARE and s.queue_mean_s > 1.0:
            yield f"{share:.0%} of the time to first token is spent in the queue ({s.queue_mean_s:.2g} s)"


def is_queue_rising(s: Situation) -> bool:
    slope = s.waiting.slope_per_s if s.waiting is not None else None
    if slope is None or s.waiting is None or s.waiting.most < 3:
        return False
    return slope > RISING and (s.offered_per_s is None or slope > 0.03 * s.offered_per_s)
