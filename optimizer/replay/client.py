"""The open-loop client as its caller sees it: started, watched, cancelled, heard out, gone.

Nothing here holds requests back: every row is sent when the trace says so, however many are open (DIAG-15).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

from objectives.measurement import ClientReport, RequestRecord
from optimizer.clock import REAL_CLOCK
from optimizer.errors import EngineFailed, UserError
from optimizer.replay.plan import ReplayPlan
from optimizer.replay.process import ClientProcess
from optimizer.replay.records import client_report, first_failure, record_of
from optimizer.replay.share import Share, ShareResult

READY_WITHIN_S = 60.0
"""A process needs half a second on a free machine; a busy one may take long, but not so long."""
START_MARGIN_S = 0.1
"""From the start's announcement to the first arrival: until every process has read it."""
OVERDUE_S = 15.0
"""After its time limit a process has cut everything and hands over; later than this it hangs."""


@dataclass(frozen=True)
class Progress:
    """All processes together, warm-up included, at most a quarter of a second old."""

    n_sent: int
    n_answered: int
    """Requests whose first token came."""
    n_finished: int
    n_failed: int
    n_open: int
    n_measured_over: int
    """Of the measured rows: answered or failed."""
    n_messages: int
    last_message_monotonic_s: float | None
    has_begun: bool
    """The first arrival is past."""
    time_s: float
    """Now, on the phase clock."""


@dataclass(frozen=True)
class ReplayResult:
    """What the client saw. Times on the phase clock."""

    records: tuple[RequestRecord, ...]
    """Measured rows in the trace's order; `request_id` is the row. Rows never sent have the cut as `sent_s`."""
    warmup_failures: Mapping[str, int]
    """failure -> count, of the rows left out of `records`"""
    end_s: float
    """The last measured request finished, or everything was cut."""
    cut_reason: str | None
    client: ClientReport
    first_failure: str | None
    """The earliest, warm-up included; one that the cut made only if there is no other."""


class Replay:
    """A running replay: its processes exist from here on, and are gone when it is left.

    Raises EngineFailed (kind `client`, nobody's configuration) if a process does not start or dies."""

    def __init__(self, plan: ReplayPlan) -> None:
        check_keys(plan)
        self._plan = plan
        self._processes: list[ClientProcess] = []
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.close)
            for index in range(plan.n_processes):
                self._processes.append(ClientProcess(Share(plan, index)))
            self._wait_ready(REAL_CLOCK.now_s() + READY_WITHIN_S)
            self._start_s = self._start()
            on_failure.pop_all()

    def __enter__(self) -> Replay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def start_monotonic_s(self) -> float:
        """CLOCK_MONOTONIC of phase time 0."""
        return self._start_s

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes)

    def progress(self) -> Progress:
        counts = [process.count for process in self._processes]
        last = [c.last_message_s for c in counts if c.last_message_s is not None]
        now_s = REAL_CLOCK.now_s() - self._start_s
        arrivals_s = self._plan.trace.arrival_s
        return Progress(
            n_sent=sum(c.n_sent for c in counts),
            n_answered=sum(c.n_answered for c in counts),
            n_finished=sum(c.n_finished for c in counts),
            n_failed=sum(c.n_failed for c in counts),
            n_open=sum(c.n_open for c in counts),
            n_measured_over=sum(c.n_measured_over for c in counts),
            n_messages=sum(c.n_messages for c in counts),
            last_message_monotonic_s=max(last, default=None),
            has_begun=not arrivals_s.size or now_s >= float(arrivals_s[0]),
            time_s=now_s,
        )

    def is_over(self) -> bool:
        """Every process has handed over, or one of them failed."""
        over = [process.is_over.is_set() for process in self._processes]
        return all(over) or any(p.is_over.is_set() and p.result is None for p in self._processes)

    def cancel(self, reason: str) -> None:
        """Cut everything in flight, within a second; what was measured so far comes back. Nothing happens when over."""
        for process in self._processes:
            process.tell(cancel=reason)

    def release(self) -> None:
        """Cut the warm-up rows that outlast the measured ones; nothing happens while a measured one is open."""
        if self.progress().n_measured_over >= len(self._plan.trace) - self._plan.n_warmup > 0:
            for process in self._processes:
                process.tell(release=True)

    def result(self, timeout_s: float | None = None) -> ReplayResult:
        """Wait for the end. Raises TimeoutError if it has not come by then, EngineFailed if a process died or hangs."""
        overdue_s = self._start_s + self._plan.time_limit_s + OVERDUE_S
        until_s = overdue_s if timeout_s is None else min(REAL_CLOCK.now_s() + timeout_s, overdue_s)
        while not self.is_over():
            if REAL_CLOCK.now_s() >= overdue_s:
                cause = f"the client did not end {OVERDUE_S:g} s after its time limit of {self._plan.time_limit_s:g} s"
                raise EngineFailed("client", None, cause, is_config_fault=False)
            if REAL_CLOCK.now_s() >= until_s:
                raise TimeoutError(f"the replay is not over within {timeout_s:g} s")
            time.sleep(0.02)
        for process in self._processes:
            if process.is_over.is_set() and process.result is None:
                raise process.failed()
        return self._joined([p.result for p in self._processes if p.result is not None])

    def close(self) -> None:
        """Kill what is left. A second call does nothing."""
        for process in self._processes:
            process.kill()

    def _wait_ready(self, until_s: float) -> None:
        for process in self._processes:
            if not process.is_ready.wait(max(until_s - REAL_CLOCK.now_s(), 0.0)):
                cause = f"a client process was not ready within {READY_WITHIN_S:g} s"
                raise EngineFailed("client", None, cause, is_config_fault=False)
            if process.is_over.is_set():
                raise process.failed()

    def _start(self) -> float:
        arrivals_s = self._plan.trace.arrival_s
        lead_s = max(-float(arrivals_s[0]), 0.0) if arrivals_s.size else 0.0
        start_s = REAL_CLOCK.now_s() + START_MARGIN_S + lead_s
        for process in self._processes:
            process.tell(start=start_s)
        return start_s

    def _joined(self, shares: list[ShareResult]) -> ReplayResult:
        exchanges = sorted((e for share in shares for e in share.exchanges), key=lambda e: e.row)
        warmup, measured = exchanges[: self._plan.n_warmup], exchanges[self._plan.n_warmup :]
        ends_s = [e.end_s - self._start_s for e in measured if e.end_s is not None]
        return ReplayResult(
            records=tuple(record_of(exchange, self._plan, self._start_s) for exchange in measured),
            warmup_failures=Counter(e.failure for e in warmup if e.failure is not None),
            end_s=max(ends_s, default=0.0),
            cut_reason=next((s.cut_reason for s in shares if s.cut_reason), None),
            client=client_report(shares, measured, self._plan, self._start_s),
            first_failure=first_failure(exchanges),
        )


def check_keys(plan: ReplayPlan) -> None:
    """Every API key that a target names must be in the environment, which the client processes inherit."""
    for target in plan.targets:
        name = target.api_key_variable
        if name and not os.environ.get(name):
            raise UserError(f"environment variable {name} is not set; it must hold the API key of {target.url}")
