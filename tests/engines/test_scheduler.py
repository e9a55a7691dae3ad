"""Corners of vLLM's scheduler, each with the numbers vLLM 0.32's own Scheduler gives, and what must always hold."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from optimizer.engines.simulator.prefixes import Prefix
from optimizer.engines.simulator.scheduler import Scheduler
from optimizer.engines.simulator.sequence import Sequence, State

sys.path.insert(0, str(Path(__file__).parent))
from driving import blocks, budgets, decide, drive


def submit(scheduler: Scheduler, *requests: Sequence) -> None:
    for request in requests:
        scheduler.add(request)


def test_a_request_of_the_same_step_hits_blocks_that_are_only_scheduled() -> None:
    scheduler = Scheduler(budgets(), 100)
    submit(scheduler, Sequence(0, 40, 4, prefix=blocks(1, 2)), Sequence(1, 40, 4, prefix=blocks(1, 2)))
    assert decide(scheduler)[1] == {0: 40, 1: 8}


def test_the_last_token_is_recomputed_even_if_every_block_is_cached() -> None:
    scheduler = Scheduler(budgets(), 100)
    submit(scheduler, Sequence(0, 48, 4, prefix=blocks(1, 2, 3)), Sequence(1, 48, 4, prefix=blocks(1, 2, 3)))
    assert decide(scheduler)[1] == {0: 48, 1: 16}


def test_prefix_caching_off_hits_nothing() -> None:
    scheduler = Scheduler(budgets(is_prefix_cached=False), 100)
    submit(scheduler, Sequence(0, 40, 4, prefix=blocks(1, 2)), Sequence(1, 40, 4, prefix=blocks(1, 2)))
    assert decide(scheduler)[1] == {0: 40, 1: 40}


def test_the_watermark_counts_only_once_something_runs() -> None:
    scheduler = Scheduler(budgets(watermark=0.3), 21)  # 6 of 20 blocks are kept
    submit(scheduler, *(Sequence(i, 80, 4) for i in range(4)))
    assert decide(scheduler)[1] == {0: 80, 1: 80}
    assert scheduler.pool.n_free == 10  # 5 + 6 > 10: the third waits
    assert scheduler.full_s == 0.0


def test_the_long_prefill_threshold_is_off_for_a_request_alone() -> None:
    scheduler = Scheduler(budgets(long_prefill_token_threshold=32), 100)
    submit(scheduler, Sequence(0, 100, 4))
    assert decide(scheduler)[1] == {0: 100}
    submit(scheduler, Sequence(1, 100, 4))
    assert decide(scheduler)[1] == {0: 1, 1: 32}


def test_admission_does_not_reserve_what_chunked_prefills_still_need() -> None:
    scheduler = Scheduler(budgets(long_prefill_token_threshold=32, max_model_len=160), 13)
    log = drive(scheduler, [Sequence(0, 128, 4), Sequence(1, 128, 4)])
    assert log[0]["tokens"] == {0: 32, 1: 32}  # 8 blocks each, 12 there, both fit "now"
    assert [e["victims"] for e in log if e["victims"]] == [[1]]


def test_the_last_admitted_goes_first_and_nothing_is_admitted_in_that_step() -> None:
    scheduler = Scheduler(budgets(), 10)
    log = drive(scheduler, [Sequence(i, 40, 12) for i in range(3)])
    first = next(e for e in log if e["victims"])
    assert first["victims"] == [2]
    assert set(first["tokens"]) == {0, 1}
    resumed = next(e["tokens"][2] for e in log[log.index(first) + 1 :] if 2 in e["tokens"])
    assert resumed == 49 - 16  # 40 + 9 generated; the head block survived


def test_a_preempted_request_resumes_with_its_own_blocks() -> None:
    scheduler = Scheduler(budgets(), 12)
    requests = [Sequence(0, 60, 60), Sequence(1, 60, 60)]
    drive(scheduler, requests)
    victim = requests[1]
    assert victim.n_preemptions == 1
    assert victim.recomputed < 60 + 60  # not everything was lost
    assert victim.recomputed > 0


def test_async_frees_seats_one_step_later() -> None:
    def steps_until_second(is_async: bool) -> int:
        scheduler = Scheduler(budgets(is_async=is_async, max_num_seqs=1), 100)
        log = drive(scheduler, [Sequence(0, 16, 3), Sequence(1, 16, 1)])
        return next(i for i, e in enumerate(log) if 1 in e["tokens"])

    assert steps_until_second(is_async=False) == 3
    assert steps_until_second(is_async=True) == 3  # the step in between is empty and not logged
    scheduler = Scheduler(budgets(is_async=True, max_num_seqs=1), 100)
    submit(scheduler, Sequence(0, 16, 1), Sequence(1, 16, 1))
    first, _ = decide(scheduler)
    assert decide(scheduler)[1] == {}  # 0 has its last token in flight and keeps its seat
    scheduler.update(first)
    assert decide(scheduler)[1] == {1: 16}


def test_fewer_active_seats_than_slots() -> None:
    scheduler = Scheduler(budgets(max_num_active_seqs=2), 100)
    submit(scheduler, *(Sequence(i, 16, 4) for i in range(3)))
    assert decide(scheduler)[1] == {0: 16, 1: 16}


def test_the_token_budget_alone_does_not_make_the_running_set_full() -> None:
    scheduler = Scheduler(budgets(max_num_batched_tokens=32, max_num_seqs=8), 100)
    submit(scheduler, *(Sequence(i, 30, 4) for i in range(3)))
    assert decide(scheduler)[1] == {0: 30, 1: 2}
    assert scheduler.full_s is None


def random_scheduler(rng: random.Random, is_stepwise: bool, windows: tuple[int, ...]) -> Scheduler:
    most = rng.choice([16, 64, 128, 512])
    chosen = budgets(
        max_num_batched_tokens=most,
        max_num_seqs=rng.choice([2, 4, 16]),
        max_model_len=512,
        long_prefill_token_threshold=rng.choice([0, 0, 16, 40]),
        is_threshold_adaptive=rng.random() < 0.2,
        max_num_scheduled_tokens=rng.choice([None, None, 8, most // 2]),
        reserves_full_prompt=rng.random() < 0.7,
        watermark=rng.choice([0, 0, 0.1]),
        is_async=rng.random() < 0.6,
        is_prefix_cached=rng.random() < 0.7,
    )
    return Scheduler(chosen, rng.choice([34, 40, 60, 200]), windows, is_stepwise)


def random_requests(rng: random.Random) -> list[Sequence]:
    requests, arrival = [], 0
    shared = [list(range(1000 * k, 1000 * k + 10)) for k in range(3)]
    for index in range(rng.randint(3, 30)):
        arrival += rng.choice([0, 0, 3, 30])
        prompt = rng.randint(1, 200)
        prefix = blocks(*rng.choice(shared)[: prompt // 16] if rng.random() < 0.5 else [])
        requests.append(Sequence(index, prompt, rng.randint(1, 100), arrival, prefix))
    return requests


def outcome(seed: int, is_stepwise: bool, are_runs_long: bool = False) -> tuple[Any, ...]:
    rng = random.Random(seed)
    windows = rng.choice([(0,), (0, 64), (50,)])
    scheduler = random_scheduler(rng, is_stepwise, windows)
    requests = random_requests(rng)
    if are_runs_long:
        for request in requests:
            request.prefix = as_runs(request.prefix)
    sums: list[Any] = []
    log = drive(scheduler, requests, lambda: sums.append(scheduler.decodes.contexts.at(scheduler.decodes.tick)))
    check_conservation(scheduler, requests)
    return log, sums, [(r.ranges, r.n_preemptions, r.recomputed, r.cached_tokens) for r in requests]


def as_runs(prefix: Prefix) -> Prefix:
    """Blocks 0..3 of each family as one run, 4..6 and 7..9 as others: what a load whose prompts part there has."""
    n, family = len(prefix), prefix.runs[0] // 1000 if prefix.runs else 0
    ends = [min(end, n) for end, start in ((4, 0), (7, 4), (10, 7)) if n > start]
    return Prefix(tuple(10 * family + i for i in range(len(ends))), tuple(ends))


def check_conservation(scheduler: Scheduler, requests: list[Sequence]) -> None:
    """Every block comes back; every token asked for is delivered exactly once, never two in one step."""
    assert scheduler.pool.n_free == scheduler.pool.n_blocks - 1
    assert len(scheduler.decodes) == 0
    for request in requests:
        steps = [i for first, end in request.ranges for i in range(first, end)]
        assert request.state is State.DONE
        assert len(steps) == request.limit
        assert steps == sorted(set(steps))


@pytest.mark.parametrize("block", range(6))
def test_the_short_cut_equals_the_walk(block: int) -> None:
    n_preemptions = 0
    for seed in range(40 * block, 40 * block + 40):
        short, walked = outcome(seed, is_stepwise=False), outcome(seed, is_stepwise=True)
        assert short == walked, f"seed {seed}"
        n_preemptions += sum(len(e["victims"]) for e in short[0])
    assert n_preemptions > 0


@pytest.mark.parametrize("block", range(6))
def test_runs_of_blocks_equal_blocks(block: int) -> None:
    n_hits = 0
    for seed in range(1000 + 40 * block, 1040 + 40 * block):
        one_by_one, in_runs = outcome(seed, False), outcome(seed, False, are_runs_long=True)
        assert one_by_one == in_runs, f"seed {seed}"
        n_hits += sum(r[3] for r in one_by_one[2])
    assert n_hits > 0
