"""Judging on the simulator: every outcome held against the same constraints, in the same order."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from objectives.measurement import LOADS, DeviceSample, Measurement
from objectives.objective import MAX_VIOLATION, MISSING_VIOLATION, Limit
from optimizer.study.judge import BOOT, UNSUSTAINED, Judge, missed_text, reason_of
from optimizer.study.setup import Setup
from optimizer.trial import Broken, Infeasible, Measured, Outcome, Stopped, StopRule, TrialPlan, run_trial
from search_spaces.hardware import GIB
from tests.small_study import engine_of, small_setup, with_arguments


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return small_setup(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def judge(setup: Setup) -> Judge:
    return Judge(setup.profile.objectives, (*setup.profile.limits, Limit("steady_ttft_p99_ms", at_most=60_000.0)), {})


def outcome(setup: Setup, rate: float, stop_rule: StopRule | None = None, **changes: object) -> Outcome:
    placement = with_arguments(setup.references[0].placement, **changes)  # type: ignore[arg-type]
    plan = TrialPlan(0, 0, "search", placement, setup.traffic.loads(rate, LOADS), 1, stop_rule)
    return run_trial(plan, engine_of(setup).build())


def test_every_outcome_has_every_constraint_in_one_order(setup: Setup, judge: Judge) -> None:
    found = [
        outcome(setup, 0.5),
        outcome(setup, 8.0, StopRule()),
        outcome(setup, 0.5, gpu_memory_utilization=0.5),
        outcome(setup, 0.5, max_model_len=2),
    ]
    assert [type(o) for o in found] == [Measured, Stopped, Infeasible, Measured]
    names = (*(x.text for x in judge.limits), UNSUSTAINED, BOOT)
    assert judge.constraint_names == names
    for one in found:
        card = judge.score(one)
        assert card is not None and tuple(card.violations) == names
        assert all(math.isfinite(v) for v in card.violations.values())


def test_a_feasible_trial_has_true_values_and_no_reason(setup: Setup, judge: Judge) -> None:
    one = outcome(setup, 0.5)
    card = judge.score(one)
    assert card is not None and card.is_feasible and card.values is not None
    assert card.values[0] > 0 and card.violations[BOOT] == 0.0 and card.violations[UNSUSTAINED] < 0
    assert reason_of(one, card) == ""


def test_memory_that_creeps_is_not_recommended(setup: Setup, judge: Judge) -> None:  # case OOM-15
    used = [70.1, 70.1, 70.2, 70.4, 70.6, 70.8, 71.0, 71.2, 71.4, 71.6]
    devices = tuple(
        DeviceSample(60.0 * i, "GPU-1", int(gib * GIB), int((80 - gib) * GIB)) for i, gib in enumerate(used)
    )
    one = outcome(setup, 0.5)
    assert isinstance(one, Measured)
    steady = replace(one.measurement.phases["steady"], devices=devices)
    creeping = replace(one, measurement=replace(one.measurement, phases={**one.measurement.phases, "steady": steady}))
    card = judge.score(creeping)
    assert card is not None and not card.is_feasible and card.binding[0] == BOOT
    assert "OOM in ~42 min at this rate; not to be recommended without a soak run" in reason_of(creeping, card)


def test_a_stopped_trial_has_its_bound_and_what_was_not_reached_counts_as_missed(setup: Setup, judge: Judge) -> None:
    one = outcome(setup, 8.0, StopRule())
    card = judge.score(one)
    assert isinstance(one, Stopped) and card is not None
    assert card.values is None and not card.is_feasible
    assert card.violations[UNSUSTAINED] == one.violation > 0.5
    assert card.violations["stress_failed_share <= 0"] == MISSING_VIOLATION
    assert reason_of(one, card).startswith("not sustainable at 8")


def test_a_bound_that_is_no_constraint_is_held_against_the_boot(judge: Judge) -> None:
    empty = Measurement({}, is_simulated=True, engine="simulator")
    one = Stopped(measurement=empty, bound="another rule", violation=3.0, reason="too slow")
    card = judge.score(one)
    assert card is not None and card.violations[BOOT] == 3.0
    assert reason_of(one, card) == "too slow"


def test_one_that_does_not_start_is_graded_by_its_boot_alone(setup: Setup, judge: Judge) -> None:
    little, less = (outcome(setup, 0.5, gpu_memory_utilization=u) for u in (0.6, 0.4))
    cards = [judge.score(o) for o in (little, less)]
    assert all(c is not None and c.values is None and c.metrics == {} for c in cards)
    boots = [c.violations[BOOT] for c in cards if c is not None]
    assert 0 < boots[0] < boots[1]
    assert reason_of(little, cards[0]).startswith("kv_capacity at kv_alloc: ")


def test_one_that_answers_nobody_is_measured_and_never_a_candidate(setup: Setup, judge: Judge) -> None:  # case OPT-02
    one = outcome(setup, 0.5, max_model_len=2)
    card = judge.score(one)
    assert isinstance(one, Measured) and card is not None
    assert card.values is None and not card.is_feasible
    assert reason_of(one, card).startswith("an objective could not be read: ")


def test_a_broken_run_says_nothing_about_the_configuration(judge: Judge) -> None:
    one = Broken(cause="the node was lost")
    assert judge.score(one) is None
    assert reason_of(one, None) == "broken: the node was lost"


@pytest.mark.parametrize(
    ("name", "violation", "text"),
    [
        ("steady_ttft_p99_ms <= 500", 0.126, "misses P99 TTFT (steady) at most 500 ms by 12.6%"),
        ("steady_ttft_p99_ms <= 1", MAX_VIOLATION, "misses P99 TTFT (steady) at most 1 ms by 100 x or more"),
        (UNSUSTAINED, 0.004, "does not keep up with R, short by 0.4%"),
        (BOOT, 1.0, "does not start, or dies"),
    ],
)
def test_a_missed_constraint_in_words(name: str, violation: float, text: str) -> None:
    assert missed_text(name, violation) == text


def test_the_worst_miss_is_the_reason(setup: Setup) -> None:
    limits = (Limit("steady_ttft_p99_ms", at_most=1.0), Limit("steady_itl_p99_ms", at_most=1.0))
    one = outcome(setup, 0.5)
    card = Judge(setup.profile.objectives, limits, {}).score(one)
    assert card is not None
    assert reason_of(one, card) == "misses P99 TTFT (steady) at most 1 ms by 100 x or more"
