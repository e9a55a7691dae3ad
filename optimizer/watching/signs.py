"""What a watched server shows beside its load: requests given up, refused or failed, slow metrics, unequal engines."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from optimizer.engines.vllm.exposition import Scrape
from optimizer.engines.vllm.observers import FORGIVEN_SHARE
from optimizer.questions.health import STUCK_S, Health
from optimizer.questions.situation import Situation
from optimizer.watching.of_watch import finished_of, in_system
from optimizer.watching.watch import NAME, Seen
from optimizer.watching.words import plain

GIVEN_UP = 0.05
"""Share of the requests that clients may give up: people close windows."""
SILENT_S = 10.0
"""Shorter, and a long step or a busy machine looks the same."""
MOVED_BY_STEPS = (
    "generation_tokens_total", "prompt_tokens_total", "kv_usage", "n_iterations_total", "n_finished_total",
    "n_preemptions_total",
)  # fmt: skip
UNEQUAL = 2.0
"""Times as much in one engine as in another, and at least so many requests apart, and they are not balanced."""


@dataclass(frozen=True)
class WatchSign:
    health: Health
    """`healthy`: worth saying, and no trouble."""
    text: str


def signs_of(seen: Seen, engines: Sequence[Situation]) -> tuple[WatchSign, ...]:
    """`engines`: the fullest first."""
    return (*_incident(seen), *_silent(seen), *_given_up(seen), *_refused(seen), *_unread(seen), *_unequal(engines))


def _incident(seen: Seen) -> Iterator[WatchSign]:
    if seen.incident:
        yield WatchSign("broken", plain(seen.incident))


def _silent(seen: Seen) -> Iterator[WatchSign]:
    """An engine that has requests and does nothing at all; its front end answers on."""
    for label in dict.fromkeys(label for s in seen.scrapes for label in s.engines):
        name = f"engine {label}: " if len(seen.scrapes[-1].engines) > 1 else ""
        silence = long_silence(seen.scrapes_of(label))
        if silence is not None and not seen.incident:
            still = f"{name}no sign of work in the last {silence.length_s:.0f} s"
            text = f"{still} though {silence.n_running:.0f} requests run"
            yield WatchSign("broken" if silence.length_s >= STUCK_S else "degraded", text)


@dataclass(frozen=True, slots=True)
class Silence:
    length_s: float
    n_running: float


def long_silence(own: Sequence[Scrape]) -> Silence | None:
    """Of one engine, up to its last reading: how long it had requests and no figure moved that only a step moves.
    None below SILENT_S."""
    last = own[-1] if own else None
    if last is None or not last.n_running:
        return None
    still = itertools.takewhile(lambda s: s.n_running and _moved(s) == _moved(last), reversed(own))
    length_s = last.time_s - min(s.time_s for s in still)
    return Silence(length_s, last.n_running) if length_s >= SILENT_S else None


def _moved(s: Scrape) -> tuple[float | None, ...]:
    return tuple(getattr(s, name) for name in MOVED_BY_STEPS)


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
        text = f"{missed} of {missed + read} readings of /metrics failed ({plain(why)})"
        yield WatchSign("degraded" if missed > FORGIVEN_SHARE * (missed + read) else "healthy", text)


def _unequal(engines: Sequence[Situation]) -> Iterator[WatchSign]:
    if len(engines) < 2:
        return
    most, least = in_system(engines[0]), in_system(engines[-1])
    if most > UNEQUAL * least and most - least > UNEQUAL:
        text = f"its engines are not balanced: {engines[0].source} holds {most:.3g} requests on average"
        waiting = engines[0].waiting
        is_waiting = waiting is not None and waiting.mean >= 1
        yield WatchSign("degraded" if is_waiting else "healthy", f"{text}, {engines[-1].source} {least:.3g}")
