"""Confirmation on the simulator: what holds on other traffic is confirmed, what does not says why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from objectives.comparison import compare
from objectives.objective import Limit, Objective
from optimizer.engines.engine import Placement
from optimizer.study.calibration import Calibration
from optimizer.study.confirmation import (
    AGAIN_RUNS,
    CONFIRMATION_RUN,
    Confirmation,
    Scope,
    lost_gains,
    scope_of,
    to_confirm,
)
from optimizer.study.events import RunFinished
from optimizer.study.setup import Setup
from tests.small_study import (
    Bench,
    MoodyEngineSpec,
    bench,
    calibrator,
    confirmer,
    engine_of,
    small_setup,
    values_of,
    with_arguments,
)

OBJECTIVES = (
    Objective("saturation_output_tokens_per_s_per_gpu", "maximize"),
    Objective("steady_ttft_p99_ms", "minimize"),
)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return small_setup(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def calibration(setup: Setup, tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    return calibrator(bench(tmp_path_factory.mktemp("calibrated"), setup)).calibrate(None)


@pytest.fixture(scope="module")
def better(setup: Setup) -> Placement:
    """What the search finds again and again on this card: a small step budget and as many sequences as fit."""
    point = {p.name: p.values()[0] for p in setup.space.parameters} | setup.space.fixed
    top = {name: setup.space.by_name[name].values()[-1] for name in ("max_num_seqs", "kv_cache_memory_bytes")}
    return setup.place({**point, **top, "max_num_batched_tokens": 256})


def confirmed(made: Bench, calibration: Calibration, placement: Placement, **changes: object) -> Confirmation:
    values = values_of(made, calibration, 7, placement)
    return confirmer(made, calibration, **changes).confirm([(7, placement, values)])[0]


def test_a_gain_that_holds_on_other_traffic_is_confirmed_with_its_size(
    setup: Setup, calibration: Calibration, better: Placement, tmp_path: Path
) -> None:
    made = bench(tmp_path, setup)
    found = confirmed(made, calibration, better)
    assert found.is_confirmed, found.note
    assert found.note.startswith("held-out window, other seed: against the reference there throughput (saturation) ")
    assert found.again["steady_itl_p99_ms"] == "better" and len(found.again) == 3
    assert found.values is not None and len(found.values) == 3
    assert list(made.folder.runs_of(7)) == [0, CONFIRMATION_RUN, *AGAIN_RUNS]
    assert [e.detail for e in made.events if isinstance(e, RunFinished)][1:] == ["reference", *["trial 7"] * 3]


def test_the_reference_is_measured_amid_the_members(
    setup: Setup, calibration: Calibration, better: Placement, tmp_path: Path
) -> None:  # case DIAG-12
    made = bench(tmp_path, setup)
    confirmer(made, calibration).confirm([(trial, better, calibration.values) for trial in (7, 8)])
    done = [e.detail for e in made.events if isinstance(e, RunFinished)]
    assert done == ["trial 7", "reference", "trial 8", "trial 7", "trial 7", "trial 8", "trial 8"]


def test_nothing_to_confirm_runs_nothing(setup: Setup, calibration: Calibration, tmp_path: Path) -> None:
    made = bench(tmp_path, setup)
    assert confirmer(made, calibration).confirm([]) == ()
    assert made.runs.n_kept == 0


def test_confirmations_are_not_repeated_by_a_resume(
    setup: Setup, calibration: Calibration, better: Placement, tmp_path: Path
) -> None:
    first = bench(tmp_path, setup)
    found = confirmed(first, calibration, better)
    first.folder.release()
    later = bench(tmp_path, setup)
    again = confirmed(later, calibration, better)
    assert (again.is_confirmed, again.note) == (found.is_confirmed, found.note)
    assert later.runs.n_kept == 0


def test_what_does_not_sustain_r_again_is_not_confirmed(
    setup: Setup, calibration: Calibration, better: Placement, tmp_path: Path
) -> None:
    overload = setup.traffic.loads(3 * calibration.rate_per_s, ("steady",))
    found = confirmed(bench(tmp_path, setup), calibration, better, steady_again=overload)
    assert not found.is_confirmed
    assert found.note == "same window, other seed: it does not sustain R again"


def test_a_gain_that_was_luck_is_not_confirmed(setup: Setup, calibration: Calibration, tmp_path: Path) -> None:
    reference = setup.references[0].placement
    lucky = tuple(v * k for v, k in zip(calibration.values, (1.5, 0.4, 0.5), strict=True))
    found = confirmer(bench(tmp_path, setup), calibration).confirm([(7, reference, lucky)])[0]
    assert not found.is_confirmed
    assert "the gain in throughput (saturation), P99 TTFT (steady)" in found.note


def test_a_limit_that_is_missed_there_is_named(
    setup: Setup, calibration: Calibration, better: Placement, tmp_path: Path
) -> None:
    tight = replace(calibration, limits=(*calibration.limits, Limit("steady_ttft_p99_ms", at_most=1.0)))
    found = confirmed(bench(tmp_path, setup), tight, better)
    assert not found.is_confirmed
    assert found.note == "held-out window, other seed: misses P99 TTFT (steady) at most 1 ms by 100 x or more"


def test_one_that_cannot_be_measured_again_is_not_confirmed(
    setup: Setup, calibration: Calibration, better: Placement, tmp_path: Path
) -> None:
    values = values_of(bench(tmp_path / "a", setup), calibration, 7, better)
    seqs = better.instances[0].config.int_("max_num_seqs")
    broken = bench(tmp_path / "b", setup, MoodyEngineSpec(engine_of(setup), breaking=frozenset({seqs})))
    found = confirmer(broken, calibration).confirm([(7, better, values)])[0]
    assert not found.is_confirmed and found.values is None


def test_without_a_held_out_window_the_same_window_is_used_and_said(
    calibration: Calibration, better: Placement, setup: Setup, tmp_path: Path
) -> None:
    short = replace(setup, traffic=replace(setup.traffic, held_out=None))
    found = confirmed(bench(tmp_path, short), calibration, better)
    assert found.note.startswith("same window, other seed: ")


def test_a_relative_limit_is_relative_to_the_reference_there_but_a_promise_stays(
    setup: Setup, calibration: Calibration, tmp_path: Path
) -> None:
    made = bench(tmp_path, setup)
    base = with_arguments(setup.references[0].placement, max_num_seqs=128)
    found = confirmed(made, calibration, base)
    promise = Limit("steady_stall_p99_ms", at_most=0.5, why="promised by the user")
    held = replace(calibration, limits=(*calibration.limits[:-1], promise))
    broken = confirmed(bench(tmp_path / "promise", setup), held, base)
    assert "longest gap" not in found.note
    assert "misses P99 longest gap (steady) at most 0.5 ms" in broken.note


@pytest.mark.parametrize(
    ("after", "lost"),
    [
        ((1150.0, 60.0), ()),
        ((1150.0, 100.0), ()),
        ((1000.0, 60.0), ()),
        ((1000.0, 130.0), ("saturation_output_tokens_per_s_per_gpu", "steady_ttft_p99_ms")),
        ((1150.0, 130.0), ("steady_ttft_p99_ms",)),
        ((1000.0, 100.0), ("saturation_output_tokens_per_s_per_gpu", "steady_ttft_p99_ms")),
    ],
)
def test_a_gain_is_lost_when_it_turns_or_when_none_is_left(after: tuple[float, float], lost: tuple[str, ...]) -> None:
    reference, floors = (1000.0, 100.0), (0.05, 0.05)
    before = compare((1200.0, 50.0), reference, OBJECTIVES, floors)
    assert lost_gains(before, compare(after, reference, OBJECTIVES, floors), OBJECTIVES) == lost


@dataclass(frozen=True)
class Member:
    trial: int
    picks: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("scope", "confirmed", "trials"),
    [("front", (), [1, 2, 3]), ("front", (2,), [1, 3]), ("pick", (), [1, 3]), ("pick", (1, 3), []), ("none", (), [])],
)
def test_who_is_measured_again(scope: Scope, confirmed: tuple[int, ...], trials: list[int]) -> None:
    members = [Member(1, ("knee",)), Member(2), Member(3, ("ttft", "itl"))]
    assert [m.trial for m in to_confirm(members, scope, confirmed)] == trials


def test_the_whole_front_only_where_it_costs_virtual_time() -> None:
    assert (scope_of(None, is_simulated=True), scope_of(None, is_simulated=False)) == ("front", "pick")
    assert scope_of("none", is_simulated=True) == "none" and scope_of("front", is_simulated=False) == "front"
