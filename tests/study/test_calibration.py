"""Calibration on the simulator: R, the noise floor, limits relative to the reference, and what makes a reference."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from objectives.objective import Limit, Objective
from optimizer.errors import UserError
from optimizer.study.calibration import MAX_STEPS_DOWN, MIN_NOISE, STEP_DOWN, Calibration, Reference
from optimizer.study.events import Notice, RunFinished
from optimizer.study.setup import DEFAULTS, SAFE, Setup
from tests.small_study import SHARED, bench, calibrator, engine_of, small_setup, with_arguments


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return small_setup(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def calibration(setup: Setup, tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    return calibrator(bench(tmp_path_factory.mktemp("calibrated"), setup)).calibrate(None)


def details(events: list[object]) -> list[str]:
    return [e.detail for e in events if isinstance(e, RunFinished)]


def warnings(events: list[object]) -> list[str]:
    return [e.text for e in events if isinstance(e, Notice) and e.is_warning]


def test_r_is_a_share_of_what_the_reference_finishes_when_saturated(setup: Setup, calibration: Calibration) -> None:
    assert calibration.reference == DEFAULTS
    assert calibration.capacity_per_s is not None
    assert calibration.rate_per_s == pytest.approx(0.8 * calibration.capacity_per_s)
    assert calibration.is_sustained
    assert calibration.how.startswith("0.80 of the capacity of vLLM defaults")
    assert len(calibration.values) == len(setup.profile.objectives)
    assert all(v > 0 for v in calibration.values)


def test_relative_limits_are_resolved_and_the_users_own_come_last(setup: Setup, tmp_path: Path) -> None:
    own = Limit("steady_ttft_p99_ms", at_most=500.0, why="promised by the user")
    found = calibrator(bench(tmp_path, setup), own_limits=(own,)).calibrate(0.8)
    stall = next(x for x in found.limits if x.metric == "steady_stall_p99_ms")
    assert stall.at_most == pytest.approx(3.0 * (found.metrics["steady_stall_p99_ms"] or 0))
    assert found.limits[-1] == own
    assert [x.metric for x in found.limits[:3]] == [x.metric for x in setup.profile.limits]


def test_repeats_with_other_seeds_give_the_noise_floor(setup: Setup, calibration: Calibration, tmp_path: Path) -> None:
    assert all(MIN_NOISE <= n < 1 for n in calibration.noise)
    assert max(calibration.noise) > MIN_NOISE
    still = bench(tmp_path, setup, engine_of(setup, noise=0.0))
    assert set(calibrator(still).calibrate(calibration.rate_per_s).noise) == {MIN_NOISE}


def test_a_rate_that_is_given_is_taken_and_said_to_be_too_much_if_it_is(setup: Setup, tmp_path: Path) -> None:
    made = bench(tmp_path, setup)
    found = calibrator(made).calibrate(6.0)
    assert (found.rate_per_s, found.how, found.capacity_per_s) == (6.0, "as given", None)
    assert not found.is_sustained
    assert "does not sustain R = 6 requests/s" in warnings(made.events)[0]
    assert all("not sustained" in text for text in details(made.events))


def test_a_rate_that_is_not_sustained_is_lowered_three_times(setup: Setup, tmp_path: Path) -> None:
    eager = replace(setup.profile, load=replace(setup.profile.load, sustain_share=1.6))
    made = bench(tmp_path, setup)
    found = calibrator(made, profile=eager).calibrate(None)
    assert found.capacity_per_s is not None
    tried = [text for text in details(made.events) if "/s: " in text]
    assert 2 <= len(tried) <= MAX_STEPS_DOWN + 1
    assert found.rate_per_s == pytest.approx(1.6 * STEP_DOWN ** (len(tried) - 1) * found.capacity_per_s)
    assert tried[0].endswith("not sustained")


def test_progress_says_what_was_run_and_what_came_of_it(setup: Setup, tmp_path: Path) -> None:
    made = bench(tmp_path, setup)
    calibrator(made).calibrate(None)
    first, second, *repeats = details(made.events)
    assert first.startswith("vLLM defaults, saturated, finishes 1.") and first.endswith("requests/s")
    assert second.startswith("vLLM defaults at 0.9") and second.endswith("/s: sustained")
    assert repeats == ["vLLM defaults at R again: sustained"] * 2


def test_the_next_reference_is_taken_when_one_does_not_start(setup: Setup, tmp_path: Path) -> None:
    starved = Reference("current", with_arguments(setup.references[0].placement, gpu_memory_utilization=0.5))
    made = bench(tmp_path, setup)
    found = calibrator(made, references=(starved, *setup.references)).calibrate(None)
    assert found.reference == DEFAULTS
    assert "of the capacity of vLLM defaults" in found.how
    assert warnings(made.events)[0].startswith("current cannot be the reference: one request of 14336 tokens needs")


def test_a_reference_that_rejects_the_workload_is_left_with_the_reason(setup: Setup, tmp_path: Path) -> None:
    short = Reference("current", with_arguments(setup.references[0].placement, max_model_len=1024))
    made = bench(tmp_path, setup)
    found = calibrator(made, references=(short, *setup.references)).calibrate(0.8)
    assert found.reference == DEFAULTS
    assert "requests failed" in warnings(made.events)[0] and "max_model_len 1024" in warnings(made.events)[0]


def test_no_reference_at_all_names_every_reason(setup: Setup, tmp_path: Path) -> None:
    starved = with_arguments(setup.references[0].placement, gpu_memory_utilization=0.5)
    references = (Reference("current", starved), Reference(SAFE, starved))
    with pytest.raises(UserError, match=r"no reference configuration can be measured: current: one .*; safe: one "):
        calibrator(bench(tmp_path, setup), references=references).calibrate(None)


def test_an_objective_that_is_zero_for_the_reference_is_refused(setup: Setup, tmp_path: Path) -> None:
    objectives = (*setup.profile.objectives[:2], Objective("steady_failed_share", "minimize"))
    profile = replace(setup.profile, objectives=objectives)
    with pytest.raises(UserError, match=r"its steady_failed_share is 0, .*make it a limit instead of an objective"):
        calibrator(bench(tmp_path, setup), profile=profile).calibrate(0.8)


def test_a_resumed_calibration_repeats_nothing(setup: Setup, calibration: Calibration, tmp_path: Path) -> None:
    first = bench(tmp_path, setup)
    found = calibrator(first).calibrate(None)
    first.folder.release()
    later = bench(tmp_path, setup)
    again = calibrator(later).calibrate(None)
    assert later.runs.n_kept == 0
    assert found == calibration, "the same seed gives the same figures"
    assert (again.how, again.reference) == (found.how, found.reference)
    assert again.values == pytest.approx(found.values)


def test_survives_json(calibration: Calibration) -> None:
    assert Calibration.from_json(json.loads(json.dumps(calibration.to_json()))) == calibration


def test_several_instances_are_measured_against_one_server_and_held_to_the_references_tails(tmp_path: Path) -> None:
    setup = small_setup(tmp_path, *SHARED)
    found = calibrator(bench(tmp_path, setup)).calibrate(None)
    assert found.single_server is not None
    assert (found.single_server["saturation_output_tokens_per_s_per_gpu"] or 0) > 0
    assert set(found.targets) == {"chat", "batch"}
    assert all((t.ttft_ms or 0) > 0 and (t.itl_ms or 0) > 0 for t in found.targets.values())
