"""Rates on the simulator: the picks below and above R, and the highest rate at which a promise is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from objectives.objective import Limit, Scorecard
from optimizer.study.calibration import Calibration
from optimizer.study.events import RunFinished
from optimizer.study.rates import LOWEST_SHARE, N_BISECTIONS, Survival, is_steady_limit, steady_holds
from optimizer.study.setup import Setup
from tests.small_study import bench, calibrator, probe, small_setup, with_arguments


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return small_setup(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def calibration(setup: Setup, tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    return calibrator(bench(tmp_path_factory.mktemp("calibrated"), setup)).calibrate(None)


def promising(calibration: Calibration, ttft_ms: float) -> Calibration:
    return replace(calibration, limits=(Limit("steady_ttft_p99_ms", at_most=ttft_ms, why="promised by the user"),))


def test_every_member_is_shown_at_half_at_once_and_at_a_fifth_more(
    setup: Setup, calibration: Calibration, tmp_path: Path
) -> None:
    made = bench(tmp_path, setup)
    placement = setup.references[0].placement
    found = probe(made, calibration).figures([(4, placement)])
    assert [f.share_of_r for f in found] == [0.5, 1.0, 1.2]
    assert [f.rate_per_s for f in found] == pytest.approx([s * calibration.rate_per_s for s in (0.5, 1, 1.2)])
    ttft = [f.metrics["steady_ttft_p99_ms"] or 0.0 for f in found]
    assert 0 < ttft[0] < ttft[2]
    assert [f.is_sustained for f in found][:2] == [True, True]
    details = [e.detail for e in made.events if isinstance(e, RunFinished)]
    assert details == ["trial 4 at 0.5 R", "trial 4 at 1 R", "trial 4 at 1.2 R"]


def test_one_that_does_not_start_has_no_figures_and_sustains_nothing(
    setup: Setup, calibration: Calibration, tmp_path: Path
) -> None:
    starved = with_arguments(setup.references[0].placement, gpu_memory_utilization=0.5)
    found = probe(bench(tmp_path, setup), calibration).figures([(4, starved)])
    assert [(dict(f.metrics), f.is_sustained) for f in found] == [({}, False)] * 3


def test_the_surviving_rate_lies_between_one_that_held_and_one_that_did_not(
    setup: Setup, calibration: Calibration, tmp_path: Path
) -> None:
    made = bench(tmp_path, setup)
    generous = promising(calibration, 1.05 * (calibration.metrics["steady_ttft_p99_ms"] or 0))
    placement, top = setup.references[0].placement, 2 * calibration.rate_per_s
    found = probe(made, generous).survival([(4, placement, top)])[0]
    assert not found.is_at_least
    assert calibration.rate_per_s <= found.rate_per_s < top
    said = [e.detail for e in made.events if isinstance(e, RunFinished)]
    kept, broken = ([float(t.split()[-1][:-2]) for t in said if word in t] for word in ("keeps", "breaks"))
    assert len(kept) + len(broken) == N_BISECTIONS
    assert max(kept, default=calibration.rate_per_s) == pytest.approx(found.rate_per_s, rel=0.01)
    assert found.rate_per_s < min(broken) * 1.001


def test_a_promise_that_holds_as_far_up_as_was_tried_says_at_least(
    setup: Setup, calibration: Calibration, tmp_path: Path
) -> None:
    made = bench(tmp_path, setup)
    placement, top = setup.references[0].placement, 1.02 * calibration.rate_per_s
    found = probe(made, promising(calibration, 1e9)).survival([(4, placement, top)])[0]
    assert found.is_at_least
    assert found.rate_per_s == pytest.approx(1.05 * calibration.rate_per_s), "never less than 5 % above R"
    assert made.runs.n_kept == 1


def test_a_promise_that_breaks_at_r_may_hold_at_a_lower_rate(
    setup: Setup, calibration: Calibration, tmp_path: Path
) -> None:
    made = bench(tmp_path, setup)
    placement = setup.references[0].placement
    half = probe(made, calibration).figures([(4, placement)])[0].metrics["steady_ttft_p99_ms"] or 0.0
    found = probe(made, promising(calibration, 1.1 * half)).survival_below([(4, placement)])
    assert [f.trial for f in found] == [4]
    assert 0.3 * calibration.rate_per_s < found[0].rate_per_s < calibration.rate_per_s


def test_a_promise_that_breaks_at_every_rate_is_left_out_after_one_try(
    setup: Setup, calibration: Calibration, tmp_path: Path
) -> None:
    made = bench(tmp_path, setup)
    assert probe(made, promising(calibration, 0.01)).survival_below([(4, setup.references[0].placement)]) == ()
    detail = [e.detail for e in made.events if isinstance(e, RunFinished)]
    assert detail == [f"trial 4 breaks the promise at {LOWEST_SHARE * calibration.rate_per_s:.3g}/s"]


@pytest.mark.parametrize(("traffic", "n"), [(1.0, 1), (2.0, 1), (2.01, 2), (4.0, 2), (0.0, 0)])
def test_replicas_are_whole_servers(traffic: float, n: int) -> None:
    assert Survival(0, 2.0, False).replicas(traffic) == n


def test_a_survivor_of_nothing_needs_no_division() -> None:
    assert Survival(0, 0.0, False).replicas(5.0) == 0


def test_only_what_the_steady_load_decides_counts() -> None:
    assert is_steady_limit("steady_ttft_p99_ms <= 5") and is_steady_limit("chat:steady_itl_p99_ms <= 5")
    assert is_steady_limit("unsustained") and not is_steady_limit("stress_failed_share <= 0")
    kept = {"steady_ttft_p99_ms <= 5": -0.1, "stress_failed_share <= 0": 1.0, "unsustained": -0.03}
    assert steady_holds(Scorecard(None, kept, {}))
    assert not steady_holds(Scorecard(None, {**kept, "unsustained": 0.1}, {}))
