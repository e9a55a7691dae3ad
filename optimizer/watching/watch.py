"""A running server watched for a while: once a second its metrics, and where they can be seen its processes and GPU.

The server is asked for `/metrics` and for nothing else. It ends early when it stops answering, when it hangs, or with
Ctrl-C; what was seen until then is kept.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from optimizer.clock import REAL_CLOCK
from optimizer.engines.vllm.endpoint import Endpoint, nobody
from optimizer.engines.vllm.exposition import Scrape
from optimizer.engines.vllm.metrics import scrape
from optimizer.engines.vllm.readings import Gains, Reading, read_all
from optimizer.engines.vllm.spec import HANG_AFTER_S
from optimizer.engines.vllm.watch import PERIOD_S, Watch, WatchLog
from optimizer.errors import Unavailable, UserError
from optimizer.questions.situation import CpuWait
from optimizer.watching.server import RunningServer
from optimizer.watching.waiting import read_clocks, wait_between

NAME = "server"
ANSWER_WITHIN_S = 5.0
GONE_AFTER_S = 15.0
"""Without an answer for so long it is taken for dead."""
N_FALLS = 2
"""Totals that fell so often, with an answer on either side, are those of several servers."""
LEAST_SEEN_S = 3.0
"""What a watch that is broken off must have seen to say anything."""
TICK_S = 0.5
COUNTERS = ("generation_tokens_total", "prompt_tokens_total", "n_finished_total", "n_iterations_total")


@dataclass(frozen=True)
class Seen:
    """Of one watch. Times are seconds since its begin."""

    server: RunningServer
    log: WatchLog
    gains: Gains
    """Between the first and the last page that could be read."""
    span_s: float
    """Between those two."""
    watched_s: float
    cpu_wait: CpuWait | None = None
    incident: str = ""
    """That it died, hung or was restarted, in one line."""
    was_cut: bool = False
    """Ended by Ctrl-C."""

    @property
    def scrapes(self) -> tuple[Scrape, ...]:
        return self.log.scrapes[NAME]

    def scrapes_of(self, engine: str) -> tuple[Scrape, ...]:
        """Of one engine, by its label; without readings in which it was not there."""
        return tuple(s.engines[engine] for s in self.scrapes if engine in s.engines)


Tick = Callable[[float, Scrape | None], None]


def watch(server: RunningServer, span_s: float, tick: Tick) -> Seen:
    """`tick` is told the seconds gone and the newest reading, twice a second.

    Raises UserError if it was broken off before anything was seen, and Unavailable where several servers answer."""
    begin_s = REAL_CLOCK.now_s()
    running = Watch(
        (_endpoint(server),),
        server.devices,
        begin_s,
        period_s=PERIOD_S,
        hang_after_s=HANG_AFTER_S,
        scrape_within_s=ANSWER_WITHIN_S,
    )
    clocks = read_clocks(server.local.pids())
    running.start()
    incident, was_cut = "", False
    try:
        incident = _until_over(running, begin_s, span_s, tick)
    except KeyboardInterrupt:
        was_cut = True
    watched_s = REAL_CLOCK.now_s() - begin_s
    wait = wait_between(clocks, read_clocks(server.local.pids()))
    log = running.stop()
    if watched_s < LEAST_SEEN_S and not incident:
        raise UserError(f"watched for {watched_s:.0f} s only: give it longer than {LEAST_SEEN_S:g} s")
    _require_one(server, log)
    incident = incident or _restart(log.scrapes[NAME]) or _unanswered(server, log, running.latest()[NAME], watched_s)
    gains, seen_s = _gains(log)
    return Seen(server, log, gains, seen_s, watched_s, wait, incident, was_cut)


def _gains(log: WatchLog) -> tuple[Gains, float]:
    pages = [(time_s, read_all(text)) for time_s, text in log.pages[NAME]] or [(0.0, Reading({}))]
    (first_s, first), (last_s, last) = pages[0], pages[-1]
    return Gains(first, last), last_s - first_s


def _require_one(server: RunningServer, log: WatchLog) -> None:
    """A server that starts again is away for a while. Totals that fall again and again between two answers are those
    of several servers, and their differences are nobody's figures."""
    rows = list(itertools.pairwise(log.scrapes[NAME]))
    missed = log.missed_s.get(NAME, ())
    n_falls = sum(_has_fallen(a, b) and not any(a.time_s < t < b.time_s for t in missed) for a, b in rows)
    if n_falls >= N_FALLS:
        raise Unavailable(
            f"--url {server.url}: its totals jump to and fro, so several servers answer there (a load balancer?);"
            " give the address of one of them"
        )


def _endpoint(server: RunningServer) -> Endpoint:
    pids = server.local.pids if server.local.is_seen else nobody
    return Endpoint(NAME, server.url, server.model_name, (), pids=pids, api_key_variable=server.api_key_variable)


def _until_over(running: Watch, begin_s: float, span_s: float, tick: Tick) -> str:
    """Why it ended before its time; empty if it did not."""
    answered_s = begin_s
    while (now_s := REAL_CLOCK.now_s()) < begin_s + span_s:
        newest = running.latest()[NAME]
        answered_s = now_s if newest is not None else answered_s
        tick(now_s - begin_s, newest)
        if now_s - answered_s > GONE_AFTER_S:
            late = f"/metrics was not answered within {ANSWER_WITHIN_S:g} s"
            return f"it stopped answering after {max(answered_s - begin_s, 0):.0f} s ({late})"
        if hang := running.hang():
            return f"it hangs: {hang.removeprefix(f'{NAME}: ')}, though its HTTP front still answers"
        REAL_CLOCK.sleep_s(min(TICK_S, max(begin_s + span_s - now_s, 0.0)))
    return ""


def _unanswered(server: RunningServer, log: WatchLog, newest: Scrape | None, watched_s: float) -> str:
    """One reading that fails is not the end: it is asked once more."""
    if newest is not None or scrape(server.url, ANSWER_WITHIN_S, server.api_key_variable) is not None:
        return ""
    return f"it no longer answers after {watched_s:.0f} s ({log.last_failure.get(NAME, 'no answer')})"


def _restart(scrapes: Sequence[Scrape]) -> str:
    """A total that fell: counters start anew with the server."""
    fallen = [b for a, b in itertools.pairwise(scrapes) if _has_fallen(a, b)]
    return f"it was restarted after about {fallen[0].time_s:.0f} s" if fallen else ""


def _has_fallen(before: Scrape, after: Scrape) -> bool:
    both = [(before.engines[label], now) for label, now in after.engines.items() if label in before.engines]
    return any(_fell(getattr(a, n), getattr(b, n)) for a, b in both for n in COUNTERS)


def _fell(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after < before
