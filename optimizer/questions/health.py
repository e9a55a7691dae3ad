"""Whether a load was healthy, and if not, in what. The limits are the profiles' defaults."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from optimizer.questions.situation import Situation

Health = Literal["healthy", "degraded", "broken", "unknown"]
PREEMPTIONS_PER_REQUEST = {"steady": 0.01, "stress": 0.1}
"""Limits on preemptions per finished request; loads without one are judged by the stricter, saturation by none."""
MANY_FAILED = 0.01
"""Share of the requests: from here on it is broken, below it only degraded."""
RISING = 0.02
"""Requests per second: a waiting queue that grows by more, and by more than 3 % of the arrivals, is not worked off."""
RISE_OF_MEAN = 0.5
"""A queue that only ever grows gains 1.3 times its mean in the last two thirds; one that just wavers gains nothing."""
LONG_QUEUE_SHARE = 0.5
"""Of the time to first token spent in the queue."""
LONG_QUEUE_S = 1.0
LONG_WAIT = 0.5
"""Waiting over running requests from which on the queue is no passing burst."""
FAR_BEYOND = 4.0
"""Waiting over running requests from which on they wait whatever those that were answered tell."""
STANDING = 1.1
"""The most over the mean of a queue that only stands: one that grows ends well above its mean."""
STUCK_S = 20.0
"""Without a token: in a shorter time a first kernel may still compile."""


def problems(s: Situation) -> tuple[str, ...]:
    """One line each; empty for a healthy load. What could not be read is no problem, and no proof either."""
    return tuple(_broken(s)) + tuple(_degraded(s))


def health_of(s: Situation) -> Health:
    """`unknown` where nothing that could show trouble was read."""
    if any(_broken(s)):
        return "broken"
    if any(_degraded(s)):
        return "degraded"
    return "healthy" if is_readable(s) else "unknown"


def is_readable(s: Situation) -> bool:
    """Whether anything was read that a sick server shows: a queue, keeping up, preemptions or failures of requests."""
    is_counted = s.n_preemptions is not None or s.n_failed is not None
    return s.waiting is not None or s.is_sustained is not None or (is_counted and s.n_finished is not None)


def remarks(s: Situation) -> tuple[str, ...]:
    """What a reader should know of a load that is well: a long queue is none of its problems where the rate is
    sustained and the study's own limits are kept."""
    text = _long_queue(s) if s.load in ("steady", None) and _is_allowed_to_queue(s) else None
    return () if text is None else (f"{text}; every limit of the study is kept with it",)


def cure_of(s: Situation) -> str:
    """What would have to be seen instead of its first problem."""
    if any(_broken(s)):
        return "tokens while requests are in it, and every request answered whole"
    if s.load in ("steady", None) and (found := next(_overload(s), None)):
        if "keep up" in found:
            rate = "" if s.offered_per_s is None else f" ({s.offered_per_s:.3g}/s)"
            return f"as many requests finished as are offered{rate}"
        return "a queue that stops growing" if "grows" in found else (
            f"a queue of less than {LONG_QUEUE_S:g} s, or limits that allow for it"
        )  # fmt: skip
    if any(_preemptions(s)):
        limit = PREEMPTIONS_PER_REQUEST.get(s.load or "steady", PREEMPTIONS_PER_REQUEST["steady"])
        return f"at most {limit:g} preemptions per finished request"
    return "every request answered whole" if s.n_failed else "device memory that stays as it is"


def _is_allowed_to_queue(s: Situation) -> bool:
    return s.keeps_limits is True and s.is_sustained is True


def _broken(s: Situation) -> Iterator[str]:
    if s.n_failed and s.n_failed >= MANY_FAILED * (s.n_requests or 0):
        yield _failed(s)
    yield from _stuck(s)


def _failed(s: Situation) -> str:
    of = f" of {s.n_requests}" if s.n_requests else ""
    return f"{s.n_failed}{of} requests were not answered whole"


def _stuck(s: Situation) -> Iterator[str]:
    """Prompts computed are progress too: the first token of a long one may take minutes."""
    if s.output_tokens_per_s != 0 or s.prefill_tokens_per_s or s.span_s < STUCK_S:
        return
    if s.running is not None and s.is_busy:
        yield f"no token in {s.span_s:.0f} s with {s.running.mean:.0f} requests running"
    elif s.waiting is not None and s.waiting.mean >= 1:
        yield f"no token in {s.span_s:.0f} s with {s.waiting.mean:.0f} requests waiting and none admitted"


def _degraded(s: Situation) -> Iterator[str]:
    """A queue is a problem of the steady load only: saturation and stress are made to have one."""
    if s.n_failed and s.n_failed < MANY_FAILED * (s.n_requests or 0):
        yield _failed(s)
    if s.load in ("steady", None):
        yield from _overload(s)
    yield from _preemptions(s)
    if s.memory_trend:
        yield f"device memory is {s.memory_trend}"


def _preemptions(s: Situation) -> Iterator[str]:
    rate, limit = s.preemptions_per_request, PREEMPTIONS_PER_REQUEST.get(s.load or "steady")
    if limit is None or not s.n_preemptions:
        return
    if rate is not None and s.n_preemptions > _by_chance(limit * (s.n_finished or 0)):
        yield f"{s.n_preemptions:.0f} preemptions, {rate:.2g} per finished request (limit {limit:g})"
    elif s.n_finished == 0:
        yield f"{s.n_preemptions:.0f} preemptions, and no request finished"


def _by_chance(expected: float) -> float:
    """As many as a server at its limit may well have shown: one of sixty requests proves nothing."""
    return expected + 2.0 * math.sqrt(expected)


def _overload(s: Situation) -> Iterator[str]:
    """Whether it keeps up with the rate is for the client to say, unless the client itself was late."""
    if s.is_sustained is False and not s.client_fault:
        offered = "" if s.offered_per_s is None else f" {s.offered_per_s:.3g} requests/s"
        yield f"it does not keep up with the{offered} offered"
    elif not s.is_sustained and is_queue_rising(s) and s.waiting is not None and s.waiting.slope_per_s:
        yield f"the waiting queue grows by {s.waiting.slope_per_s:.2g} requests/s, {s.waiting.most:.0f} at most"
    elif not _is_allowed_to_queue(s) and (text := _long_queue(s)):
        yield text


def _long_queue(s: Situation) -> str | None:
    """By the queue's own clock, which tells of answered requests only: many more that wait than run outweigh it."""
    if s.queue_mean_s is not None and not _is_far_beyond(s):
        ttft_ms = s.ttft_ms.mean if s.ttft_ms is not None else None
        share = None if not ttft_ms else 1e3 * s.queue_mean_s / ttft_ms
        if s.queue_mean_s <= LONG_QUEUE_S or (share is not None and share <= LONG_QUEUE_SHARE):
            return None
        if share is None or share > 1:  # both are means, of other requests each
            return f"requests wait {s.queue_mean_s:.2g} s in the queue on average"
        return f"{share:.0%} of the time to first token is spent in the queue ({s.queue_mean_s:.2g} s)"
    if waits(s) and s.waiting is not None and s.running is not None:
        return f"{s.waiting.mean:.0f} requests wait on average beside {s.running.mean:.0f} that run"
    return None


def _is_far_beyond(s: Situation) -> bool:
    """And for longer than a passing moment: so many wait that the rate they leave at (Little) takes its time."""
    if s.waiting is None or s.running is None or s.waiting.mean <= max(FAR_BEYOND * s.running.mean, 2.0):
        return False
    return not s.finished_per_s or s.waiting.mean / s.finished_per_s > LONG_QUEUE_S


def waits(s: Situation) -> bool:
    """Whether requests wait for longer than a burst lasts."""
    if s.waiting is None or s.running is None:
        return False
    return is_queue_rising(s) or s.waiting.mean > max(LONG_WAIT * s.running.mean, 2.0)


def is_queue_rising(s: Situation) -> bool:
    slope = s.waiting.slope_per_s if s.waiting is not None else None
    is_steep = slope is not None and slope > RISING and (s.offered_per_s is None or slope > 0.03 * s.offered_per_s)
    return is_steep and is_queue_growing(s)


def is_queue_growing(s: Situation) -> bool:
    """However slowly: it gains much of its mean."""
    slope = s.waiting.slope_per_s if s.waiting is not None else None
    if slope is None or s.waiting is None or s.waiting.most < max(3.0, STANDING * s.waiting.mean):
        return False
    return slope * s.span_s * 2 / 3 > max(RISE_OF_MEAN * s.waiting.mean, 2.0)
