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
from optimizer.engines.vllm.metrics import MetricsUnread, fetch_metrics
from optimizer.engines.vllm.readings import Gains, Reading, read_all
from optimizer.engines.vllm.spec import HANG_AFTER_S
from optimizer.engines.vllm.watch import PERIOD_S, Watch, WatchLog
from optimizer.errors import UserError
from optimizer.questions.situation import CpuWait
from optimizer.watching.server import RunningServer
from optimizer.watching.waiting import read_clocks, wait_between

NAME = "server"
GONE_AFTER_S = 10.0
"""Without an answer for so long it is taken for dead."""
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
    span_s: float
    cpu_wait: CpuWait | None = None
    incident: str = ""
    """That it died, hung or was restarted, in one line."""
    was_cut: bool = False
    """Ended by Ctrl-C."""

    @property
    def scrapes(self) -> tuple[Scrape, ...]:
        return self.log.scrapes[NAME]


Tick = Callable[[float, Scrape | None], None]


def watch(server: RunningServer, first: Reading, span_s: float, tick: Tick) -> Seen:
    """`first`: a reading from just before; `tick` is told the seconds gone and the newest reading, twice a second.

    Raises UserError if it was broken off before anything was seen."""
    begin_s = REAL_CLOCK.now_s()
    running = Watch((_endpoint(server),), server.devices, begin_s, period_s=PERIOD_S, hang_after_s=HANG_AFTER_S)
    clocks = read_clocks(server.local.pids())
    running.start()
    readings, incident, was_cut = [first], "", False
    try:
        incident = _until_over(running, begin_s, span_s, tick)
    except KeyboardInterrupt:
        was_cut = True
    watched_s = REAL_CLOCK.now_s() - begin_s
    wait = wait_between(clocks, read_clocks(server.local.pids()))
    log = running.stop()
    readings += _last_reading(server)
    if watched_s < LEAST_SEEN_S and not incident:
        raise UserError(f"watched for {watched_s:.0f} s only: give it longer than {LEAST_SEEN_S:g} s")
    incident = incident or _restart(log.scrapes[NAME]) or ("" if len(readings) > 1 else _unanswered(log, watched_s))
    return Seen(server, log, Gains(readings[0], readings[-1]), watched_s, wait, incident, was_cut)


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
            return f"it stopped answering after {max(answered_s - begin_s, 0):.0f} s"
        if hang := running.hang():
            return f"it hangs: {hang.removeprefix(f'{NAME}: ')}, though its HTTP front still answers"
        REAL_CLOCK.sleep_s(min(TICK_S, max(begin_s + span_s - now_s, 0.0)))
    return ""


def _last_reading(server: RunningServer) -> list[Reading]:
    try:
        return [read_all(fetch_metrics(server.url, 5.0, server.api_key_variable))]
    except (MetricsUnread, ValueError):
        return []


def _unanswered(log: WatchLog, watched_s: float) -> str:
    return f"it no longer answers after {watched_s:.0f} s ({log.last_failure.get(NAME, 'no answer')})"


def _restart(scrapes: Sequence[Scrape]) -> str:
    """A total that fell: counters start anew with the server."""
    for before, after in itertools.pairwise(scrapes):
        for label, engine in after.engines.items():
            earlier = before.engines.get(label)
            if earlier is not None and any(_fell(getattr(earlier, n), getattr(engine, n)) for n in COUNTERS):
                return f"it was restarted after about {after.time_s:.0f} s"
    return ""


def _fell(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after < before
