"""Drives the simulator's Scheduler as vLLM's engine core does, without a clock, and writes down every step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from enum import Enum
from typing import Any

from bench.conformance.scenario import Scenario, budgets_of, sequences_of
from bench.conformance.watching import WatchedPool
from optimizer.engines.simulator.budgets import Step
from optimizer.engines.simulator.replica import MIN_COAST
from optimizer.engines.simulator.scheduler import Scheduler
from optimizer.engines.simulator.sequence import Sequence, State

Entry = dict[str, Any]
"""One step that scheduled or preempted something; JSON, as the oracle writes it (`vllm_oracle`)."""
MAX_EMPTY_STEPS = 8
"""In a row; more, and nothing will ever be scheduled."""


class Way(Enum):
    """The three ways in which the scheduler can be run; all must give the same steps."""

    SHORT_CUTS = "short cuts"
    STEPWISE = "stepwise"
    COASTING = "coasting"
    """Uniform decode steps in one go, where Replica does so."""


class Stuck(Exception):
    """Requests are left and no step schedules any of them."""


def prepare(scenario: Scenario, way: Way, scheduler_type: type[Scheduler] = Scheduler) -> Drive:
    scheduler = scheduler_type(budgets_of(scenario), scenario.n_blocks, is_stepwise=way is Way.STEPWISE)
    return Drive(scheduler, sequences_of(scenario), scenario.budget_changes, way is Way.COASTING)


def simulate(scenario: Scenario, way: Way) -> Drive:
    drive = prepare(scenario, way)
    drive.run()
    return drive


class Drive:
    """One run of a scheduler over its requests."""

    def __init__(
        self,
        scheduler: Scheduler,
        requests: Seq[Sequence],
        budget_changes: Mapping[int, int],
        is_coasting: bool,
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.log: list[Entry] = []
        self.n_skipped = 0
        """Decodes passed over because the token budget had ended."""
        self.n_coasted = 0
        self._scheduler = scheduler
        self._pool = scheduler.pool = WatchedPool(scheduler.pool.n_blocks, requests)
        self._requests = requests
        self._arrivals = deque(requests)
        self._changes = budget_changes
        self._is_coasting = is_coasting
        self._after_step = after_step
        self._pending: deque[tuple[Step, Entry | None]] = deque()
        self._depth = 2 if scheduler.budgets.is_async else 1
        self._n_empty = 0

    def run(self) -> None:
        """Until every request is done; then each must have got each of its tokens once."""
        while self._arrivals or self._pending or self._scheduler.has_requests:
            if self._is_coasting and len(self._pending) == self._depth - 1:
                self._coast()
            self._receive()
            if self._scheduler.has_requests:
                self._schedule()
                if len(self._pending) < self._depth:
                    continue
            if self._pending:
                self._update()
        for request in self._requests:
            n_tokens = sum(end - first for first, end in request.ranges)
            if n_tokens != request.limit:
                raise AssertionError(f"request {request.index} got {n_tokens} of {request.limit} tokens")

    def _receive(self) -> None:
        scheduler, arrivals = self._scheduler, self._arrivals
        while arrivals and (arrivals[0].arrival_s <= scheduler.n_steps or not scheduler.has_requests):
            scheduler.add(arrivals.popleft())

    def _schedule(self) -> None:
        scheduler, pool = self._scheduler, self._pool
        before = dict.fromkeys(scheduler.running)
        decodes = {s for s in before if s.state is State.DECODE}
        present, free_before = scheduler.n_unfinished, pool.n_free
        pool.evicted = []
        step = scheduler.schedule(0.0)
        entry = None
        if step.n_tokens or step.victims:
            entry = {
                "scheduled": self._tokens(step, decodes),
                "victims": [v.index for v in step.victims],
                "admitted": [[s.index, prior] for s, _, prior in step.chunks if s not in before],
                "present": present,
                "free_before": free_before,
                "free": pool.n_free,
                "evicted": pool.evicted,
            }
            self.log.append(entry)
        self._check_progress(step)
        self._change_budget()
        self._after_step()
        self._pending.append((step, entry))

    def _tokens(self, step: Step, decodes: set[Sequence]) -> list[list[int]]:
        """[request, tokens] in the order of vLLM's `num_scheduled_tokens`, which is that of its running list."""
        chunks = {s: chunk for s, chunk, _ in step.chunks}
        skipped = {s for s in decodes if s.skipped_step == step.index}
        self.n_skipped += len(skipped)
        decodes = decodes.difference(step.victims, skipped)
        pairs = [[s.index, chunks.get(s, 1)] for s in self._scheduler.running if s in chunks or s in decodes]
        if sum(n for _, n in pairs) != step.n_tokens:
            raise AssertionError(f"step {step.index}: {pairs} are not {step.n_tokens} tokens")
        return pairs

    def _check_progress(self, step: Step) -> None:
        self._n_empty = 0 if step.n_tokens else self._n_empty + 1
        if self._n_empty > MAX_EMPTY_STEPS:
            raise Stuck(f"nothing can be scheduled after {len(self.log)} steps")

    def _update(self) -> None:
        step, entry = self._pending.popleft()
        finished = [s.index for s in self._scheduler.update(step)]
        if entry is not None:
            entry["finished"] = finished

    def _change_budget(self) -> None:
        tokens = self._changes.get(self._scheduler.n_steps)
        if tokens is not None:
            self._scheduler.change_budgets(replace(self._scheduler.budgets, max_num_scheduled_tokens=tokens))

    # ---- coasting, as Replica does --------------------------------------------------------------------------------

    def _coast(self) -> None:
        """Several uniform decode steps at once: until an arrival that matters, and until a change of budget."""
        scheduler = self._scheduler
        n_steps = scheduler.n_coastable()
        ends = [after for after in self._changes if after > scheduler.n_steps]
        if self._arrivals and not scheduler.ignores_arrivals:
            ends.append(int(self._arrivals[0].arrival_s))
        n_steps = min([n_steps, *(end - scheduler.n_steps for end in ends)])
        if n_steps < MIN_COAST:
            return
        entries = self._expected(n_steps)
        number = scheduler.n_steps + n_steps - 1
        n_blank = self._pool.n_blank
        self._pool.evicted = []
        scheduler.coast(n_steps)
        self.n_coasted += n_steps
        self._share_evictions(entries, n_blank)
        self.log += entries
        self._change_budget()
        if self._pending:
            step, entry = self._pending[0]
            if step.finishing:
                raise AssertionError("coasted with a last token in flight")
            if entry is not None:
                entry["finished"] = []
            self._pending[0] = (Step(number), entries[-1])

    def _expected(self, n_steps: int) -> list[Entry]:
        """What the coasted steps would have written down each, read off before they are taken."""
        scheduler = self._scheduler
        tokens = [[s.index, 1] for s in scheduler.running]
        free = [scheduler.pool.n_free - scheduler.decodes.blocks_needed(k) for k in range(n_steps + 1)]
        due = [a.arrival_s for a in self._arrivals]
        first, present = scheduler.n_steps, scheduler.n_unfinished
        return [
            {
                "scheduled": tokens,
                "victims": [],
                "admitted": [],
                "present": present + sum(at <= first + k for at in due),
                "free_before": free[k],
                "free": free[k + 1],
                "evicted": [],
                "finished": [],
            }
            for k in range(n_steps)
        ]

    def _share_evictions(self, entries: list[Entry], n_blank: int) -> None:
        """Give each coasted step the evictions that its blocks, taken one step after the other, came to."""
        evicted, start = self._pool.evicted, entries[0]["free_before"]
        done = 0
        for entry in entries:
            until = max(start - entry["free"] - n_blank, 0)
            entry["evicted"] = evicted[done:until]
            done = max(done, until)
