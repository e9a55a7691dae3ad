from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.comparison import compare
from objectives.hypervolume import Axes, hypervolume
from objectives.objective import Objective
from objectives.pareto import TieBreak, dominates, front, knee, picks

THROUGHPUT = Objective("saturation_output_tokens_per_s_per_gpu", "maximize")
TTFT = Objective("steady_ttft_p99_ms", "minimize")
ITL = Objective("steady_itl_p99_ms", "minimize")
OBJECTIVES = (THROUGHPUT, TTFT, ITL)
AXES = Axes(OBJECTIVES, (1000.0, 400.0, 40.0))

positive = st.floats(0.1, 1e4)
points = st.lists(st.tuples(positive, positive, positive), min_size=1, max_size=12)
cubes = st.lists(st.tuples(*[st.floats(0, 1)] * 3), min_size=1, max_size=6)


def test_more_throughput_and_less_latency_dominate() -> None:
    assert dominates((1100, 300, 30), (1000, 400, 40), OBJECTIVES)
    assert not dominates((1000, 400, 40), (1100, 300, 30), OBJECTIVES)
    assert not dominates((1100, 500, 40), (1000, 400, 40), OBJECTIVES)
    assert not dominates((1000, 400, 40), (1000, 400, 40), OBJECTIVES)


def test_inside_the_floor_is_a_tie() -> None:
    floors = (0.02, 0.05, 0.05)
    assert not dominates((1019, 400, 40), (1000, 400, 40), OBJECTIVES, floors)
    assert dominates((1021, 400, 40), (1000, 400, 40), OBJECTIVES, floors)
    assert dominates((990, 300, 40), (1000, 400, 40), OBJECTIVES, floors)


def test_two_sequences_a_step_trade_itl_for_ttft_and_both_stay() -> None:  # case DIAG-05
    assert front([(8.235, 900), (9.417, 240)], (ITL, TTFT)) == (0, 1)


@given(points)
def test_front_is_what_nothing_dominates(values: list[tuple[float, float, float]]) -> None:
    expected = [i for i, v in enumerate(values) if not any(dominates(w, v, OBJECTIVES) for w in values)]
    assert list(front(values, OBJECTIVES)) == expected


@given(points, st.floats(0, 0.5))
def test_a_front_with_a_floor_is_never_empty_and_covers_the_rest(
    values: list[tuple[float, float, float]], floor: float
) -> None:
    floors = (floor,) * 3
    members = front(values, OBJECTIVES, floors)
    assert members
    for i in set(range(len(values))) - set(members):
        assert any(dominates(values[k], values[i], OBJECTIVES, floors) for k in members)


def test_a_point_stays_when_only_points_that_are_left_out_beat_it() -> None:
    """Each of the chain ties with the next in TTFT; the first has a TTFT that the last does not come near."""
    quick, between, last = (899, 981, 229), (866, 1222, 155), (939, 1589, 42)
    floors = (0.057, 0.405, 0.065)
    assert dominates(between, quick, OBJECTIVES, floors) and dominates(last, between, OBJECTIVES, floors)
    assert not dominates(last, quick, OBJECTIVES, floors)
    assert front([quick, between, last], OBJECTIVES, floors) == (0, 2)


def test_a_circle_of_dominance_is_a_tie() -> None:
    circle = [tuple(1.1**x for x in steps) for steps in ((1.6, 0.8, 0.0), (0.0, 1.6, 0.8), (0.8, 0.0, 1.6))]
    maximize = tuple(Objective(f"steady_{n}", "maximize") for n in "abc")
    floors = (0.1,) * 3
    assert all(dominates(circle[i], circle[(i + 1) % 3], maximize, floors) for i in range(3))
    assert front(circle, maximize, floors) == (0, 1, 2)
    worse = (0.5, 0.5, 0.5)
    assert front([worse, *circle], maximize, floors) == (1, 2, 3)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_unread_values_are_refused(bad: float) -> None:  # cases OPT-02, OPT-04
    with pytest.raises(ValueError, match="finite"):
        front([(1000, bad, 40)], OBJECTIVES)
    with pytest.raises(ValueError, match="finite"):
        AXES.volume([(1000, bad, 40)])


@pytest.mark.parametrize("floors", [(0.1,), (0.1, -0.1, 0.1), (0.1, math.nan, 0.1)])
def test_a_floor_per_objective(floors: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="floor"):
        front([(1000, 400, 40)], OBJECTIVES, floors)


def test_nothing_in_nothing_out() -> None:
    assert front([], OBJECTIVES) == ()
    assert picks([], OBJECTIVES, AXES) == ()
    assert knee([], OBJECTIVES, AXES) is None
    assert AXES.volume([]) == 0.0


FRONT = [(1300, 900, 80), (1000, 150, 60), (900, 500, 15), (1200, 300, 30), (800, 1000, 100)]


def test_named_picks() -> None:
    found = {p.name: p.index for p in picks(FRONT, OBJECTIVES, AXES)}
    assert found == {"most throughput": 0, "lowest TTFT": 1, "lowest ITL": 2, "knee": 3}
    assert knee(FRONT, OBJECTIVES, AXES) == 3


def test_ties_go_to_fewest_preemptions_then_nearness_then_most_memory() -> None:
    values = [(1300, 900, 80), (1290, 500, 70), (1295, 700, 60)]
    floors = (0.02, 0.0, 0.0)
    ties = [TieBreak(0.01, 5e9), TieBreak(0.0, 1e9), TieBreak(0.0, 2e9)]
    best = picks(values, OBJECTIVES, AXES, floors, ties)[0]
    assert (best.name, best.index, best.tied) == ("most throughput", 1, (2,))
    same = [(1290, 500, 70), (1290, 500, 70)]
    assert picks(same, OBJECTIVES, AXES, floors, [TieBreak(0.0, 1e9), TieBreak(0.0, 2e9)])[0].index == 1
    unknown = [TieBreak(None, 9e9), TieBreak(None, 9e9), TieBreak(0.0, None)]
    assert picks(values, OBJECTIVES, AXES, floors, unknown)[0].index == 2


def test_the_reference_lies_in_the_middle_of_every_axis() -> None:
    assert AXES.unit([(1000, 400, 40)]).tolist() == [[0.5, 0.5, 0.5]]
    assert AXES.volume([(1000, 400, 40)]) == pytest.approx(1 / 8)


def test_axes_are_clipped_at_half_an_octave_and_two() -> None:
    assert AXES.unit([(1000 * 2**0.5, 100, 10)])[0] == pytest.approx([1, 1, 1])
    assert AXES.unit([(1e9, 1e-9, 1e-9)]).tolist() == [[1, 1, 1]]
    assert AXES.unit([(1000 / 2**0.5, 1600, 160)])[0] == pytest.approx([0, 0, 0], abs=1e-12)
    assert AXES.unit([(0.0, 1e12, 1e12)]).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("reference", [(0.0, 1, 1), (1, math.nan, 1), (1, 1, -1)])
def test_axes_need_a_reference_above_zero(reference: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Axes(OBJECTIVES, reference)


def by_inclusion_and_exclusion(cube: list[tuple[float, ...]]) -> float:
    total = 0.0
    for size in range(1, len(cube) + 1):
        for chosen in itertools.combinations(cube, size):
            total += (-1) ** (size + 1) * float(np.prod(np.min(chosen, axis=0)))
    return total


@given(cubes)
def test_hypervolume_is_exact(cube: list[tuple[float, ...]]) -> None:
    assert hypervolume(cube) == pytest.approx(by_inclusion_and_exclusion(cube), abs=1e-9)


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5])
def test_hypervolume_in_any_small_dimension(d: int) -> None:
    cube = np.random.default_rng(d).random((7, d))
    assert hypervolume(cube) == pytest.approx(by_inclusion_and_exclusion([tuple(p) for p in cube]), abs=1e-9)


def test_hypervolume_against_sampling() -> None:
    rng = np.random.default_rng(0)
    cube, darts = rng.random((60, 3)), rng.random((40_000, 3))
    is_hit = (darts[:, None, :] <= cube[None, :, :]).all(axis=2).any(axis=1)
    assert hypervolume(cube) == pytest.approx(is_hit.mean(), abs=0.01)


@given(cubes, st.tuples(*[st.floats(0, 1)] * 3))
def test_another_point_never_takes_volume_away(cube: list[tuple[float, ...]], more: tuple[float, ...]) -> None:
    assert hypervolume([*cube, more]) >= hypervolume(cube) - 1e-12


def test_hypervolume_refuses_what_lies_outside() -> None:
    for bad in ([(-0.1, 1, 1)], [(math.nan, 1, 1)]):
        with pytest.raises(ValueError, match="finite points"):
            hypervolume(bad)


def test_a_best_that_loses_elsewhere_is_a_trade() -> None:  # case TOOL-16
    result = compare((2450, 1500, 39), (2400, 800, 40), OBJECTIVES, (0.01, 0.05, 0.02))
    assert result.verdict == "trade"
    assert [d.verdict for d in result.deltas] == ["better", "worse", "better"]
    assert result.deltas[0].text.endswith("2450 (+2.1%, noise +-1.0%: better)")
    noisier = compare((2450, 1500, 39), (2400, 800, 40), OBJECTIVES, (0.03, 0.05, 0.03))
    assert noisier.verdict == "worse"
    assert compare((2450, 700, 39), (2400, 800, 40), OBJECTIVES, (0.03, 0.05, 0.03)).verdict == "improvement"
    assert compare((2400, 800, 40), (2400, 800, 40), OBJECTIVES).verdict == "tie"
    assert compare((2400, 800, 40), (0.0, 800, 40), OBJECTIVES).deltas[0].change is None
