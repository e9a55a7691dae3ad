"""Proposers: no configuration twice, failing regions left alone, the same proposals after a restart."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import pytest

from optimizer.study.constraints import KEY
from optimizer.study.proposer import Proposer, RandomProposer, TpeProposer, evenly
from optimizer.study.regions import FailingRegions, Region
from optimizer.study.untried import Point, SpaceExhausted, nearest_level
from search_spaces.config import Config
from search_spaces.parameter import Value

DIRECTIONS = ("maximize", "minimize", "minimize")


class GridSpace:
    """Every point is its own configuration."""

    def __init__(self, grid: Mapping[str, Sequence[Value]]) -> None:
        self.grid = grid

    def fingerprint(self, point: Point) -> str:
        return Config(point).fingerprint


SQUARE = GridSpace({"max_num_seqs": (16, 32, 64, 128, 256), "max_num_batched_tokens": (512, 1024, 2048, 4096, 8192)})
WIDE = GridSpace(
    {
        "max_num_seqs": (64, 128, 256, 512, 1024),
        "max_num_batched_tokens": tuple(256 * 2**k for k in range(8)),
        "watermark": (0.0, 0.01, 0.02, 0.05, 0.1),
        "enable_prefix_caching": (False, True),
        "kv_cache_dtype": ("auto",),
    }
)


def measure(point: Point) -> tuple[float, float, float]:
    seqs, tokens = float(point["max_num_seqs"]), float(point["max_num_batched_tokens"])
    return seqs * tokens / (seqs + tokens), 100 / tokens + seqs / 1000, tokens / 1000 + seqs / 500


def run(proposer: Proposer, n: int, fails: Callable[[Point], bool], n_workers: int = 1) -> list[Point]:
    """n proposals with `n_workers` in flight; told in the order they were proposed."""
    flying: list[Point] = []
    done: list[Point] = []
    for k in range(n + n_workers):
        if k < n:
            flying.append(proposer.propose())
        if len(flying) >= n_workers or k >= n:
            if not flying:
                break
            point = flying.pop(0)
            done.append(point)
            if fails(point):
                proposer.tell(point, None, {"boot": 1.0}, "infeasible", "out of memory")
            else:
                proposer.tell(point, measure(point), {"boot": 0.0}, "measured")
    return done


def never(point: Point) -> bool:
    return False


def both(space: GridSpace, seed: int) -> list[Proposer]:
    return [TpeProposer(space, DIRECTIONS, seed), RandomProposer(space, seed)]


@pytest.mark.parametrize("seed", [0, 1])
def test_small_space_is_covered_once_and_then_exhausted(seed: int) -> None:
    # case OPT-05
    for proposer in both(SQUARE, seed):
        done: list[Point] = []
        with pytest.raises(SpaceExhausted, match=r"space exhausted after 25$"):
            flying: list[Point] = []
            for _ in range(60):
                flying.append(proposer.propose())
                if len(flying) == 4:
                    point = flying.pop(0)
                    proposer.tell(point, measure(point), {}, "measured")
                    done.append(point)
        assert len({Config(p) for p in [*done, *flying]}) == len(done) + len(flying) == 25


def test_points_that_resolve_to_the_same_servers_count_as_one() -> None:
    class Folded(GridSpace):
        def fingerprint(self, point: Point) -> str:
            return str(min(int(point["x"]), 3))

    proposer = RandomProposer(Folded({"x": tuple(range(10))}), 0)
    points = [proposer.propose() for _ in range(4)]
    assert len({min(int(p["x"]), 3) for p in points}) == 4
    with pytest.raises(SpaceExhausted, match="after 4"):
        proposer.propose()


@pytest.mark.parametrize("seed", range(6))
def test_a_value_that_always_fails_is_proposed_at_most_once_more_after_two(seed: int) -> None:
    # case TOOL-02
    done = run(TpeProposer(WIDE, DIRECTIONS, seed), 30, lambda p: p["max_num_seqs"] == 1024)
    assert sum(p["max_num_seqs"] == 1024 for p in done) <= 3
    assert len({Config(p) for p in done}) == 30


def test_always_failing_value_in_parallel_and_alone_in_its_space() -> None:
    done = run(TpeProposer(WIDE, DIRECTIONS, 3), 40, lambda p: p["max_num_seqs"] == 1024, n_workers=4)
    assert sum(p["max_num_seqs"] == 1024 for p in done) <= 6, "two known failures, and what was in flight then"
    small = GridSpace({"max_num_seqs": (64, 128, 256, 512, 1024)})
    proposer = TpeProposer(small, DIRECTIONS[:1], 0)
    with pytest.raises(SpaceExhausted, match="after 5"):
        for _ in range(30):
            point = proposer.propose()
            fails = point["max_num_seqs"] == 1024
            proposer.tell(
                point, None if fails else (1.0,), {"b": float(fails)}, "infeasible" if fails else "measured", "oom"
            )


@pytest.mark.parametrize("seed", range(4))
def test_a_failing_tail_is_left_and_the_rest_is_still_searched(seed: int) -> None:
    fine = GridSpace({**WIDE.grid, "max_num_batched_tokens": tuple(256 + 64 * k for k in range(40))})
    done = run(TpeProposer(fine, DIRECTIONS, seed), 60, lambda p: int(p["max_num_batched_tokens"]) > 2000)
    late = [int(p["max_num_batched_tokens"]) > 2000 for p in done[30:]]
    assert sum(late) <= 9, "a third of the space fails"
    assert {p["max_num_seqs"] for p in done} == set(WIDE.grid["max_num_seqs"])


def test_a_repeated_failure_that_is_everywhere_closes_nothing() -> None:
    proposer = TpeProposer(WIDE, DIRECTIONS, 0)
    done = run(proposer, 20, lambda p: True)
    assert len({Config(p) for p in done}) == 20
    assert proposer._untried.regions.closed == ()


def test_a_survivor_opens_a_region_again() -> None:
    regions = FailingRegions([5, 5], [True, True])
    for i in range(3):
        regions.add((4, i), "oom")
    assert regions.excludes((4, 4), ()) and not regions.excludes((3, 4), ())
    regions.add((4, 3), None)
    assert not regions.excludes((4, 4), ())


def test_the_last_chance_of_a_suspect_level_is_given_once() -> None:
    regions = FailingRegions([5, 5], [True, True])
    regions.add((4, 0), "oom")
    regions.add((4, 1), "oom")
    assert not regions.excludes((4, 2), ())
    assert regions.excludes((4, 2), ((4, 3),))
    regions.add((4, 3), "another kind")
    assert regions.closed == ()


def test_a_tail_needs_evidence_against_chance() -> None:
    regions = FailingRegions([10, 3], [True, False])
    for level in range(6):
        regions.add((level, level % 3), None)
    for level in (7, 8, 9):
        regions.add((level, level % 3), "oom")
    assert regions.closed == (), "three of nine: chance 1/84"
    regions.add((7, 0), "oom")
    assert Region(0, 7, 9) in regions.closed or Region(0, 6, 9) in regions.closed


def test_told_trials_rebuild_the_same_proposer() -> None:
    first = TpeProposer(WIDE, DIRECTIONS, 7)
    told = run(first, 20, lambda p: p["watermark"] == 0.1)
    again = TpeProposer(WIDE, DIRECTIONS, 7)
    for point in told:
        if point["watermark"] == 0.1:
            again.tell(point, None, {"boot": 1.0}, "infeasible", "out of memory")
        else:
            again.tell(point, measure(point), {"boot": 0.0}, "measured")
    assert [first.propose() for _ in range(5)] == [again.propose() for _ in range(5)]


def test_other_seeds_propose_other_points() -> None:
    def first(seed: int) -> list[Point]:
        return run(TpeProposer(WIDE, DIRECTIONS, seed), 5, never)

    assert first(0) == first(0) != first(1)


def test_forgotten_points_may_come_again_and_leave_no_trace() -> None:
    one = GridSpace({"x": (1, 2)})
    for proposer in (TpeProposer(one, ("maximize",), 0), RandomProposer(one, 0)):
        points = [proposer.propose(), proposer.propose()]
        proposer.forget(points[0])
        assert proposer.propose() == points[0]


@pytest.mark.parametrize("values", [None, (float("1e300"), 0.0, 0.0)])
def test_outcomes_without_values_or_with_huge_ones_leave_the_sampler_alive(values: tuple[float, ...] | None) -> None:
    # cases OPT-02, OPT-04
    proposer = TpeProposer(WIDE, DIRECTIONS, 0)
    run(proposer, 15, never)
    proposer.tell(proposer.propose(), values, {"limit": float("inf")}, "measured")
    proposer.tell(proposer.propose(), None, {"limit": 0.0}, "stopped")
    assert len(run(proposer, 5, never)) == 5


def test_what_never_ran_ranks_behind_what_misses_a_promise_however_far() -> None:
    """Else a hard promise would draw the search to configurations that do not start."""
    proposer = TpeProposer(WIDE, DIRECTIONS, 0)
    measured, died = proposer.propose(), proposer.propose()
    proposer.tell(measured, measure(measured), {"ttft": 100.0, "itl": 100.0}, "measured")
    proposer.tell(died, None, {"ttft": 1.0, "itl": 1.0, "boot": 0.1}, "infeasible", "out of memory")
    told = [t.system_attrs[KEY][0] for t in proposer._study.get_trials(deepcopy=False)]
    assert 0 < told[0] < told[1]


def test_a_point_that_was_only_told_near_a_baseline_may_still_be_proposed() -> None:
    one = GridSpace({"x": (1, 2)})
    for proposer in (TpeProposer(one, ("maximize",), 0), RandomProposer(one, 0)):
        proposer.tell({"x": 1}, (1.0,), {}, "measured")
        proposer.forget({"x": 1})
        assert {int(proposer.propose()["x"]) for _ in range(2)} == {1, 2}  # type: ignore[arg-type]


def test_baselines_off_the_grid_go_to_the_nearest_level() -> None:
    proposer = TpeProposer(WIDE, DIRECTIONS, 0)
    baseline = {**proposer.propose(), "max_num_seqs": 100, "watermark": 0.03}
    proposer.tell(baseline, (1.0, 2.0, 3.0), {}, "measured")
    assert nearest_level((64, 128), 100) == 1
    assert nearest_level((0.0, 0.1), 0.04) == 0
    with pytest.raises(ValueError, match="not one of"):
        nearest_level((False, True), 1.5)
    with pytest.raises(ValueError, match="lacks watermark"):
        proposer.tell({k: v for k, v in baseline.items() if k != "watermark"}, None, {}, "stopped")


def test_the_first_points_use_every_part_of_every_axis() -> None:
    levels = [tuple(range(10)), tuple(range(3))]
    points = [evenly(levels, 5, k, 10) for k in range(10)]
    assert sorted(p[0] for p in points) == list(range(10))
    assert {p[1] for p in points} == {0, 1, 2}


def test_tpe_beats_random_on_a_plain_hill() -> None:
    hill = GridSpace({"a": tuple(range(1, 31)), "b": tuple(range(1, 31)), "c": tuple(range(1, 31))})

    def best(proposer: Proposer) -> float:
        found = []
        for _ in range(60):
            point = proposer.propose()
            value = -sum((int(v) - 11) ** 2 for v in point.values())
            proposer.tell(point, (float(value),), {}, "measured")
            found.append(value)
        return max(found)

    tpe = sum(best(TpeProposer(hill, ("maximize",), seed)) for seed in range(5))
    random = sum(best(RandomProposer(hill, seed)) for seed in range(5))
    assert tpe > random


def test_a_proposal_is_quick() -> None:
    proposer = TpeProposer(WIDE, DIRECTIONS, 0)
    run(proposer, 59, never)
    started = time.process_time()
    proposer.propose()
    assert time.process_time() - started < 0.05


def test_a_grid_with_two_failing_points_is_finished_and_not_repeated() -> None:
    # case TOOL-07
    grid = GridSpace({"max_num_seqs": (16, 32, 64), "max_num_batched_tokens": (512, 1024, 2048, 4096)})
    failing = [
        {"max_num_seqs": 16, "max_num_batched_tokens": 4096},
        {"max_num_seqs": 32, "max_num_batched_tokens": 4096},
    ]
    proposer = TpeProposer(grid, DIRECTIONS, 0)
    done = run(proposer, 12, lambda p: p in failing)
    assert len({Config(p) for p in done}) == 12
    again = TpeProposer(grid, DIRECTIONS, 0)
    for point in done[:11]:
        again.tell(point, measure(point), {}, "measured")
    assert again.propose() == done[11], "only what is missing"
    with pytest.raises(SpaceExhausted, match="after 12"):
        again.propose()
