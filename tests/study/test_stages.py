"""The stable region: bisection that asks for the top first and never for more than it can use."""

from __future__ import annotations

import pytest

from objectives.objective import Scorecard
from optimizer.study.proposer import Point
from optimizer.study.stages import Probe, StableRegion, at_level, has_survived_stress, is_within, seqs_names

GRID = {
    "chat.max_num_seqs": (8, 16, 32, 64, 128),
    "batch.max_num_seqs": (8, 16, 32),
    "chat.max_num_batched_tokens": (512, 1024, 2048),
}


def settle(region: StableRegion, limit: int, n_slots: int) -> int:
    """Run the stage with `n_slots` probes in flight; levels above `limit` fail. Returns the number of probes."""
    running: list[int] = []
    n = 0
    while True:
        while len(running) < n_slots and (level := region.next_level()) is not None:
            running.append(level)
            n += 1
        if not running:
            return n
        level = running.pop(0)
        region.tell(Probe(level, level <= limit))


@pytest.mark.parametrize("n_slots", [1, 2, 4])
@pytest.mark.parametrize("limit", range(-1, 16))
def test_finds_the_highest_level_that_survives(limit: int, n_slots: int) -> None:
    region = StableRegion(16, 20)
    n = settle(region, limit, n_slots)
    assert region.is_settled
    assert region.bounds == (limit, limit + 1 if limit < 15 else None)
    assert n <= (5 if n_slots == 1 else 12)


def test_if_the_top_survives_nothing_else_is_asked() -> None:
    region = StableRegion(16, 20)
    assert settle(region, 15, 1) == 1
    assert region.highest == 15


def test_the_budget_is_kept_and_the_region_stays_usable() -> None:
    region = StableRegion(64, 3)
    assert settle(region, 5, 2) == 3
    low, high = region.bounds
    assert low <= 5
    assert high is not None and high > 5
    assert 0 <= region.highest <= high


def test_nothing_survives() -> None:
    region = StableRegion(8, 20)
    settle(region, -1, 1)
    assert region.bounds == (-1, 0)
    assert region.highest == 0


def test_a_probe_adopted_after_a_crash_is_not_asked_again() -> None:
    region = StableRegion(8, 20)
    region.start(7)
    asked = region.next_level()
    assert asked is not None and asked != 7
    assert not region.is_settled


def test_one_level_needs_one_probe() -> None:
    region = StableRegion(1, 20)
    assert settle(region, 0, 2) == 1


def test_levels_are_shares_of_every_instances_own_grid() -> None:
    point: Point = {"chat.max_num_seqs": 8, "batch.max_num_seqs": 8, "chat.max_num_batched_tokens": 512}
    assert seqs_names(GRID) == ("chat.max_num_seqs", "batch.max_num_seqs")
    top = at_level(point, GRID, 4, 5)
    assert top == {"chat.max_num_seqs": 128, "batch.max_num_seqs": 32, "chat.max_num_batched_tokens": 512}
    middle = at_level(point, GRID, 2, 5)
    assert (middle["chat.max_num_seqs"], middle["batch.max_num_seqs"]) == (32, 16)
    assert is_within(middle, GRID, 2, 5)
    assert not is_within(top, GRID, 2, 5)


@pytest.mark.parametrize(
    ("violations", "values", "survived"),
    [
        ({"stress_failed_share <= 0": 0.0, "steady_ttft_p99_ms <= 1": 5.0}, (1.0,), True),
        ({"stress_failed_share <= 0": 0.2}, (1.0,), False),
        ({"boot": 1.0}, None, False),
        ({"stress_failed_share <= 0": -1.0}, None, False),
    ],
)
def test_survival_is_about_the_stress_load_alone(
    violations: dict[str, float], values: tuple[float, ...] | None, survived: bool
) -> None:
    assert has_survived_stress(Scorecard(values, violations, {})) is survived


def test_a_broken_trial_survived_nothing() -> None:
    assert not has_survived_stress(None)
