"""What a watched server shows beside its load: requests given up, refused or failed, slow metrics, unequal engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from optimizer.questions.health import Health
from optimizer.questions.situation import Situation
from optimizer.watching.of_watch import finished_of
from optimizer.watching.watch import NAME, Seen

GIVEN_UP = 0.05
"""Share of the requests that clients may give up: people close windows."""
UNEQUAL = 2.0
"""Times as much in one engine as in another, and at least so many requests apart, and they are not balanced."""


@dataclass(frozen=True)
class WatchSign:
    health: Health
    """`healthy`: worth saying, and no trouble."""
    text: str


def signs_of(seen: Seen, engines: Sequence[Situation]) -> tuple[WatchSign, ...]:
    return (*_incident(seen), *_given_up(seen), *_refused(seen), *_unread(seen), *_unequal(engines))


def _incident(seen: Seen) -> Iterator[WatchSign]:
    if seen.incident:
        yield WatchSign("broken", seen.incident)


def _given_up(seen: Seen) -> Iterator[WatchSign]:
    n = seen.gains.total("request_success", finished_reason="abort") or 0.0
    of = finished_of(seen.gains) + n
    if n:
        text = f"{n:.0f} of {of:.0f} requests were given up by their clients (abort)"
        is_much = n > GIVEN_UP * of
        more = ": their time-outs are shorter than its answers take, and what was computed is lost" if is_much else ""
        yield WatchSign("degraded" if is_much else "healthy", text + more)


def _refused(seen: Seen) -> Iterator[WatchSign]:
    n = seen.gains.total("admission_rejections") or 0.0
    if n:
        yield WatchSign("degraded", f"{n:.0f} requests were refused at admission (max_num_queued_reqs or _tokens)")
    errors = seen.gains.http_errors
    if errors:
        health: Health = "broken" if errors > finished_of(seen.gains) else "degraded"
        yield WatchSign(health, f"{errors:.0f} answers were HTTP 5xx")


def _unread(seen: Seen) -> Iterator[WatchSign]:
    missed, read = seen.log.n_missed.get(NAME, 0), len(seen.scrapes)
    if missed and not seen.incident:
        why = seen.log.last_failure.get(NAME, "")
        text = f"{missed} of {missed + read} readings of /metrics failed ({why}): its front end is late"
        yield WatchSign("degraded" if missed > 0.1 * (missed + read) else "healthy", text)


def _unequal(engines: Sequence[Situation]) -> Iterator[WatchSign]:
    """`engines`: the fullest first."""
    if len(engines) < 2:
        return
    most, least = _held(engines[0]), _held(engines[-1])
    if most > UNEQUAL * least and most - least > UNEQUAL:
        text = f"its engines are not balanced: {engines[0].source} holds {most:.3g} requests on average"
        waiting = engines[0].waiting
        is_waiting = waiting is not None and waiting.mean >= 1
        yield WatchSign("degraded" if is_waiting else "healthy", f"{text}, {engines[-1].source} {least:.3g}")


def _held(s: Situation) -> float:
    return (s.running.mean if s.running else 0.0) + (s.waiting.mean if s.waiting else 0.0)
