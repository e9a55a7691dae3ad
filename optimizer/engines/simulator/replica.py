"""One simulated server in virtual time: a front end, vLLM's engine-core loop, and a log of when steps ended.

The loop is vLLM's (v1/engine/core.py): synchronous, schedule -> execute -> update; asynchronous, a queue of two steps,
so that a step is scheduled when the one before its predecessor has ended. Whoever drives the replica decides how fast
its steps run (`colocation`); time never flows here by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from optimizer.engines.simulator.budgets import Step
from optimizer.engines.simulator.noise import StepNoise
from optimizer.engines.simulator.scheduler import Scheduler
from optimizer.engines.simulator.sequence import Sequence
from optimizer.engines.simulator.step_log import StepLog
from optimizer.engines.simulator.step_time import StepTimeModel
from optimizer.engines.simulator.steps import StepRecord

FOREVER = float("inf")
MAX_SAMPLES = 400
MIN_COAST = 2
_MAX_COAST = 4096


@dataclass(frozen=True)
class Gauges:
    """What `/metrics` would show at a moment."""

    time_s: float
    n_running: int
    n_waiting: int
    kv_usage: float
    n_preemptions: int


class Replica:
    """Scheduler, arrivals and step log of one instance during one load."""

    def __init__(
        self,
        name: str,
        scheduler: Scheduler,
        step_time: StepTimeModel,
        noise: StepNoise,
        arrivals: Seq[Sequence],
        measured: frozenset[int],
        n_clients: int | None = None,
        turnaround_s: float = 0.0,
    ) -> None:
        self.name = name
        self.scheduler = scheduler
        self.pending: deque[tuple[Step, float]] = deque()
        """Steps given to the card, oldest first, with their seconds on an idle card."""
        self.head_left_s = 0.0
        """Of the oldest pending step: seconds still to run on an idle card."""
        self._head_demand: tuple[float, float] | None = None
        """Its shares of the card, once they were asked for."""
        self.step_ends_s: list[float] = []
        self.finished_s: dict[int, float] = {}
        self.rejected: dict[int, str] = {}
        self.samples: list[Gauges] = []
        self.queue_empty_s: float | None = None
        """When the waiting queue was first empty with every arrival in (preemptions may refill it)."""
        self.n_open = len(measured)
        """Measured requests not yet answered or rejected."""
        self.n_measured = len(measured)
        self.step_log: StepLog | None = None
        """Where every step is written to; with one, no step is jumped over."""
        self.tp = 1
        self._unlogged: deque[StepRecord] = deque()
        """Steps given to the card, as scheduled; their ends are not known yet."""
        self._measured = measured
        self._step_time = step_time
        self._noise = noise
        self._arrivals = arrivals
        self._next = 0
        self._n_sent = len(arrivals) if n_clients is None else min(n_clients, len(arrivals))
        """Arrivals whose time is known: a closed loop sends one more when a request ends, `turnaround_s` later."""
        self._turnaround_s = turnaround_s
        self._depth = 2 if scheduler.budgets.is_async else 1
        self._sample_every_s = 1.0
        self.next_sample_s = 0.0

    @property
    def next_arrival_s(self) -> float:
        return self._arrivals[self._next].arrival_s if self._next < self._n_sent else FOREVER

    # ---- the engine-core loop -------------------------------------------------------------------------------------

    def fill(self, now_s: float) -> None:
        """Schedule until the queue of steps is full or there is nothing to schedule."""
        scheduler, pending = self.scheduler, self.pending
        while len(pending) < self._depth:
            self.receive(now_s)
            if not scheduler.has_requests:
                return
            step = scheduler.schedule(now_s)
            if self.queue_empty_s is None and not scheduler.waiting and self._next == len(self._arrivals):
                self.queue_empty_s = now_s
            if not step.n_tokens and not pending:
                raise RuntimeError(
                    f"{self.name}: no request can be scheduled and nothing runs; the KV cache is too small"
                )
            seconds = self._seconds(step)
            if not pending:
                self._begin(seconds)
            pending.append((step, seconds))
            if self.step_log is not None and step.n_tokens:
                self._unlogged.append(self._record(step, seconds))

    def complete(self, now_s: float) -> None:
        """The oldest pending step has ended."""
        step, _ = self.pending.popleft()
        if self.pending:
            self._begin(self.pending[0][1])
        if step.n_tokens:
            self.step_ends_s.append(now_s)
            if self.step_log is not None:
                self.step_log.write(replace(self._unlogged.popleft(), end_s=now_s))
        for sequence in self.scheduler.update(step):
            self._close(sequence.index, now_s)
        if now_s >= self.next_sample_s:
            self._sample(now_s)

    def receive(self, now_s: float) -> None:
        """Queue what has arrived, or turn it away."""
        limit = self.scheduler.budgets.max_num_queued_reqs
        while self.next_arrival_s <= now_s:
            sequence = self._arrivals[self._next]
            self._next += 1
            if limit is not None and self.scheduler.n_unfinished + 1 > limit:
                self.reject(sequence.index, "HTTP 503: The engine is currently busy and cannot accept new requests.")
            else:
                self.scheduler.add(sequence)

    def reject(self, index: int, reason: str) -> None:
        self.rejected[index] = reason
        self.n_open -= index in self._measured

    def coast(self, now_s: float, wake_s: float) -> float:
        """Run uniform decode steps in one go while this replica has the card to itself.

        Called between `complete` and `fill`; stops before the first step that could differ or would end after
        `wake_s`. Equal to stepping, to the last bit. Returns the new time."""
        scheduler = self.scheduler
        if len(self.pending) != self._depth - 1 or self.step_log is not None:
            return now_s
        n_most = min(scheduler.n_coastable(), _MAX_COAST)
        if n_most < MIN_COAST:
            return now_s
        until_s = self.next_sample_s if scheduler.ignores_arrivals else min(self.next_sample_s, self.next_arrival_s)
        n_before = len(self.step_ends_s)
        now_s, last = self._coast(now_s, until_s, wake_s, n_most)
        n_steps = len(self.step_ends_s) - n_before
        if not n_steps:
            return now_s
        first = scheduler.n_steps
        scheduler.coast(n_steps)
        if self.pending:
            self._replace_pending(first + n_steps - 1, last)
        if now_s >= self.next_sample_s:
            self._sample(now_s)
        return now_s

    def _coast(self, now_s: float, until_s: float, wake_s: float, n_most: int) -> tuple[float, float]:
        """Schedules nothing at or after `until_s`, ends nothing after `wake_s`. Returns (time, seconds in flight)."""
        scheduler, ends = self.scheduler, self.step_ends_s
        contexts, tick = scheduler.decodes.contexts, scheduler.decodes.tick
        base, slopes = self._step_time.decode_line(len(scheduler.decodes))
        sums = list(contexts.at(tick + 1))
        growth = contexts.slopes(tick)
        first = scheduler.n_steps
        factors = self._noise.until(first + n_most)
        is_async = bool(self.pending)
        in_flight = self.pending[0][1] if is_async else 0.0
        for number in range(first, first + n_most):
            if now_s >= until_s:
                break
            work = base
            for group, slope in enumerate(slopes):
                work += slope * sums[group]
                sums[group] += growth[group]
            work *= factors[number]
            end_s = now_s + (in_flight if is_async else work)
            if end_s > wake_s:
                break
            now_s, in_flight = end_s, work
            ends.append(end_s)
        return now_s, in_flight

    def _replace_pending(self, number: int, seconds: float) -> None:
        """The step in flight is now the last one coasted."""
        scheduler = self.scheduler
        step = Step(number)
        step.n_decodes = step.n_tokens = step.n_sampled = len(scheduler.decodes)
        step.contexts = scheduler.decodes.contexts.at(scheduler.decodes.tick)
        self.pending[0] = (step, seconds)
        self._begin(seconds)

    def _begin(self, seconds: float) -> None:
        """Another step is the oldest pending one."""
        self.head_left_s = seconds
        self._head_demand = None

    def _seconds(self, step: Step) -> float:
        if not step.n_tokens:
            return 0.0
        model = self._step_time
        if step.chunks:
            prefills = [(chunk, prior) for _, chunk, prior in step.chunks]
            work = model.mixed_s(prefills, step.n_sampled, step.n_decodes, step.contexts)
        else:
            work, slopes = model.decode_line(step.n_decodes)
            for slope, context in zip(slopes, step.contexts, strict=True):
                work += slope * context
        return work * self._noise.until(step.index + 1)[step.index]

    def head_demand(self) -> tuple[float, float]:
        """Shares of compute and bandwidth that the oldest pending step uses when alone."""
        if self._head_demand is None:
            step, seconds = self.pending[0]
            n_prefill = sum(c for _, c, _ in step.chunks)
            self._head_demand = (
                self._step_time.demand(step.n_tokens, n_prefill, seconds) if seconds > 0.0 else (0.0, 0.0)
            )
        return self._head_demand

    def _record(self, step: Step, seconds: float) -> StepRecord:
        """As just scheduled."""
        scheduler = self.scheduler
        return StepRecord(
            index=step.index,
            seconds=seconds,
            prefills=tuple((chunk, prior) for _, chunk, prior in step.chunks),
            n_decodes=step.n_decodes,
            contexts=step.contexts if step.n_decodes else (0,) * len(self._step_time.windows),
            n_sampled=step.n_sampled,
            tp=self.tp,
            n_running=len(scheduler.running),
            n_waiting=len(scheduler.waiting),
            n_free_blocks=scheduler.pool.n_free,
            n_preempted=len(step.victims),
        )

    # ---- the record -----------------------------------------------------------------------------------------------

    def gauges(self, now_s: float) -> Gauges:
        scheduler = self.scheduler
        return Gauges(
            now_s,
            len(scheduler.running),
            len(scheduler.waiting),
            scheduler.pool.usage,
            len(scheduler.preemption_times_s),
        )

    def _sample(self, now_s: float) -> None:
        self.receive(now_s)
        self.samples.append(self.gauges(now_s))
        if len(self.samples) > MAX_SAMPLES:
            del self.samples[1::2]
            self._sample_every_s *= 2
        self.next_sample_s = (now_s // self._sample_every_s + 1) * self._sample_every_s

    def _close(self, index: int, now_s: float) -> None:
        self.finished_s[index] = now_s
        self._send_next(now_s)
        self.n_open -= index in self._measured

    def _send_next(self, now_s: float) -> None:
        if self._n_sent < len(self._arrivals):
            self._arrivals[self._n_sent].arrival_s = now_s + self._turnaround_s
            self._n_sent += 1
