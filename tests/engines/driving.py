"""Drives a Scheduler as vLLM's engine core does, without a clock; shared by the scheduler's tests."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

from bench.conformance.driving import Drive
from optimizer.engines.simulator.budgets import Budgets, Step
from optimizer.engines.simulator.prefixes import Prefix
from optimizer.engines.simulator.scheduler import Scheduler
from optimizer.engines.simulator.sequence import Sequence, State


def budgets(**changes: Any) -> Budgets:
    fields: dict[str, Any] = {"max_num_batched_tokens": 2048, "max_num_seqs": 64, "max_model_len": 4096}
    return Budgets(**(fields | {"is_async": False} | changes))


def blocks(*names: int) -> Prefix:
    """Every block a run of its own."""
    return Prefix(names, tuple(range(1, len(names) + 1)))


def tokens_of(scheduler: Scheduler, step: Step, decoding_before: set[int]) -> dict[int, int]:
    """Tokens per request of a step just scheduled."""
    tokens = {s.index: chunk for s, chunk, _ in step.chunks}
    victims = {v.index for v in step.victims}
    skipped = {s.index for s in scheduler.running if s.skipped_step == step.index}
    return tokens | dict.fromkeys(decoding_before - victims - skipped, 1)


def decide(scheduler: Scheduler) -> tuple[Step, dict[int, int]]:
    """One schedule() and the tokens it gave to each request."""
    before = {s.index for s in scheduler.running if s.state is State.DECODE}
    step = scheduler.schedule(0.0)
    tokens = tokens_of(scheduler, step, before)
    assert sum(tokens.values()) == step.n_tokens
    return step, tokens


def drive(
    scheduler: Scheduler, requests: Seq[Sequence], after_step: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """Until every request is done. A request joins before the first schedule() at which `arrival_s` non-empty steps
    were scheduled, or at once when nothing is left to do."""
    run = Drive(scheduler, requests, {}, is_coasting=False, after_step=after_step)
    run.run()
    return [entry | {"tokens": dict(entry["scheduled"])} for entry in run.log]
