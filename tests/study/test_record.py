"""The record: arguments as run, one way of telling, nothing lost, nothing told twice."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from objectives.objective import MAX_VIOLATION, MISSING_VIOLATION, Objective, Scorecard
from optimizer.errors import StudyMismatch, UserError
from optimizer.study.constraints import constraint_vector
from optimizer.study.distributions import can_record, standing_distributions
from optimizer.study.record import MAX_LOST, StudyRecord
from optimizer.trial import Outcome
from tests.study.recording import (
    BROKEN,
    CONSTRAINTS,
    EMPTY,
    INFEASIBLE,
    LABELS,
    MEASURED,
    OBJECTIVES,
    PARAMETERS,
    STOPPED,
    add,
    card,
    terms,
    url_of,
)


def test_a_trial_is_recorded_with_the_very_arguments(record: StudyRecord) -> None:
    odd = {**PARAMETERS, "max_num_batched_tokens": 1472, "watermark": 0.1, "dtype": None}
    number = record.open_trial(odd, stage="fast", point={"max_num_seqs": 128}, attributes={"n": np.int64(3)})
    running = record.trial(number)
    assert running.state == "running" and running.stage == "fast" and running.attributes["n"] == 3
    assert dict(running.parameters) == {k: v for k, v in odd.items() if v is not None}
    assert all(type(running.parameters[k]) is type(v) for k, v in odd.items() if v is not None)
    assert running.point == {"max_num_seqs": 128}


def test_outcomes_are_told_one_way_each(record: StudyRecord) -> None:
    told: list[tuple[Outcome, Scorecard | None]] = [
        (MEASURED, card()), (MEASURED, card(preemptions=3.0)), (INFEASIBLE, card(None, boot=0.4)),
        (STOPPED, card(None, unsustained=0.7)), (BROKEN, None), (MEASURED, card(None)),
    ]  # fmt: skip
    for outcome, scorecard in told:
        assert record.close(record.open_trial(PARAMETERS), outcome, scorecard, reason="r")
    states = [t.state for t in record.study.get_trials()]
    complete, pruned, fail = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL
    assert states == [complete, complete, pruned, pruned, fail, pruned]
    back = record.trials()
    assert [t.state for t in back] == ["measured", "measured", "infeasible", "stopped", "broken", "measured"]
    assert [t.is_feasible for t in back] == [True, False, False, False, False, False]
    assert back[0].values == (1000.0, 200.0, 20.0) and all(t.values is None for t in back[2:])
    assert back[1].binding == ((CONSTRAINTS[0], 3.0),)
    assert back[2].failure == "weights_do_not_fit" and back[2].violations["boot"] == 0.4
    assert list(back[4].violations) == []
    assert [t.number for t in record.front()] == [0]
    assert record.study.best_trials[0].number == 0 and len(record.study.best_trials) == 1


def test_a_scorecard_that_looks_feasible_without_values_is_not() -> None:
    met = dict.fromkeys(CONSTRAINTS, -1.0)
    assert constraint_vector(CONSTRAINTS, met, has_values=False) == [-1.0, -1.0, MISSING_VIOLATION]
    assert constraint_vector(CONSTRAINTS, met, has_values=True) == [-1.0, -1.0, -1.0]


def test_constraints_are_finite_complete_and_ordered() -> None:
    # case OPT-02
    given = {"boot": math.inf, CONSTRAINTS[0]: math.nan}
    assert constraint_vector(CONSTRAINTS, given, has_values=True) == [
        MISSING_VIOLATION,
        MISSING_VIOLATION,
        MAX_VIOLATION,
    ]
    with pytest.raises(ValueError, match="'other' is not one of"):
        constraint_vector(CONSTRAINTS, {"other": 0.0}, has_values=True)


def test_unreadable_metrics_never_reach_optuna(record: StudyRecord) -> None:
    # case OPT-02
    number = record.open_trial(PARAMETERS)
    unread = Scorecard(None, {CONSTRAINTS[0]: math.nan}, {"preemptions": math.nan, "ttft": None})
    assert record.close(number, MEASURED, unread)
    assert record.trial(number).metrics == {"preemptions": None, "ttft": None}
    with pytest.raises(ValueError, match="finite"):
        record.close(record.open_trial(PARAMETERS), MEASURED, card((1200.0, math.nan, 31.0)))
    add(record)
    assert [t.number for t in record.front()] == [2]


def test_all_infeasible_is_told_with_what_stands_in_the_way(record: StudyRecord) -> None:
    # case OPT-01
    for i in range(10):
        add(record, preemptions=10.0 - i, unsustained=0.1)
    assert record.front() == () and record.study.best_trials == []
    assert record.trials()[9].binding == ((CONSTRAINTS[0], 1.0), ("unsustained", 0.1))


def test_one_failed_trial_among_forty_is_not_a_number(record: StudyRecord) -> None:
    # case OPT-04
    for i in range(40):
        number = record.open_trial(PARAMETERS)
        if i == 20:
            record.close(number, INFEASIBLE, card(None, boot=1.0))
        else:
            record.close(number, MEASURED, card((1000.0 + i, 200.0 + i, 20.0)))
    assert record.study.get_trials()[20].values is None
    assert len(record.front()) == 39


def test_worst_values_stand_in_for_samplers_that_ignore_pruned(tmp_path: Path) -> None:
    record = StudyRecord.open(url_of(tmp_path), "s", terms(told_infeasible="COMPLETE"))
    add(record, (900.0, 300.0, 10.0))
    add(record, (1000.0, 200.0, 30.0))
    number = record.open_trial(PARAMETERS)
    record.close(number, INFEASIBLE, card(None, boot=1.0))
    stored = record.study.get_trials()[number]
    assert stored.state == TrialState.COMPLETE and stored.values == [900.0, 300.0, 30.0]
    assert record.trial(number).values is None and number not in [t.number for t in record.front()]
    record.close_storage()


def test_late_and_double_results_are_dropped(record: StudyRecord, caplog: pytest.LogCaptureFixture) -> None:
    # case OPT-09
    number = record.open_trial(PARAMETERS)
    assert record.close(number, BROKEN, None, reason="worker lost")
    with caplog.at_level("INFO"):
        assert not record.close(number, MEASURED, card())
    assert "a late result (measured) is dropped" in caplog.text
    assert record.trial(number).state == "broken" and record.n_trials == 1
    with pytest.raises(ValueError, match="trial 5 is not in study"):
        record.close(5, MEASURED, card())


def test_running_trials_are_adopted_under_their_number_and_at_last_closed(tmp_path: Path) -> None:
    # case OPT-09
    url = url_of(tmp_path)
    record = StudyRecord.open(url, "s", terms())
    add(record)
    number = record.open_trial(PARAMETERS, point={"x": 1})
    for n_lost in range(1, MAX_LOST):
        record.close_storage()
        record = StudyRecord.open(url, "s", terms())
        (adopted,) = record.adopt_running()
        assert (adopted.number, adopted.n_lost, adopted.point) == (number, n_lost, {"x": 1})
    assert record.n_trials == 2
    assert record.adopt_running() == ()
    assert record.trial(number).state == "broken" and "died 3 times" in record.trial(number).reason
    record.close_storage()


def test_a_driver_stopped_on_purpose_loses_no_trial(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    record = StudyRecord.open(url, "s", terms())
    number = record.open_trial(PARAMETERS, point={"x": 1})
    for _ in range(MAX_LOST + 2):
        record.forgive_running()
        record.close_storage()
        record = StudyRecord.open(url, "s", terms())
        (adopted,) = record.adopt_running()
        assert adopted.number == number and adopted.n_lost <= 0
    record.close_storage()


def test_an_adopted_trial_takes_its_true_result(record: StudyRecord) -> None:
    number = record.open_trial(PARAMETERS)
    record.adopt_running()
    assert record.close(number, MEASURED, card())
    assert record.trial(number).is_feasible and record.n_trials == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"objectives": OBJECTIVES[:1], "labels": LABELS[:1]}, "directions"),
        ({"objectives": (*OBJECTIVES[:2], Objective("steady_itl_p95_ms", "minimize"))}, "steady_itl_p95_ms"),
        ({"constraint_names": ("boot",)}, "constraint_names"),
        ({"told_infeasible": "COMPLETE"}, "told_infeasible"),
    ],
)
def test_other_terms_are_refused(record: StudyRecord, changes: dict[str, object], words: str) -> None:
    # case OPT-07
    with pytest.raises(StudyMismatch, match=words):
        StudyRecord.open(record.url, "demo", terms(**changes))


def test_stored_distributions_stand(record: StudyRecord) -> None:
    add(record)
    again = StudyRecord.open(record.url, "demo", terms(distributions={}))
    assert again.terms.distributions == record.terms.distributions
    number = again.open_trial(PARAMETERS)
    again.close(number, MEASURED, card())
    assert set(optuna.search_space.intersection_search_space(again.study.get_trials())) == set(PARAMETERS)
    again.close_storage()


def test_values_nobody_announced_are_still_recorded(record: StudyRecord) -> None:
    wide = {
        **PARAMETERS,
        "max_num_seqs": 100_000,
        "max_num_batched_tokens": "auto",
        "enforce_eager": True,
        "block_size": 16,
    }
    number = record.open_trial(wide)
    record.close(number, MEASURED, card())
    assert dict(record.trial(number).parameters) == wide
    assert "max_num_batched_tokens" not in record.study.get_trials()[number].params
    add(record)


def test_distributions_are_wide_and_of_one_kind() -> None:
    seen = standing_distributions(
        [
            {"tokens": 256, "share": 0, "bytes": 10**10, "watermark": 0.0, "eager": False, "dtype": "auto", "fixed": 7},
            {"tokens": 8192, "share": 64, "bytes": 11 * 10**9, "watermark": 0.1, "dtype": "fp8", "fixed": 7},
        ]
    )
    assert seen["tokens"] == optuna.distributions.IntDistribution(128, 16384, log=True)
    assert not seen["share"].log and seen["share"].low == 0  # type: ignore[attr-defined]
    assert seen["watermark"].low == 0.0 and seen["watermark"].high > 0.1  # type: ignore[attr-defined]
    assert seen["eager"] == optuna.distributions.CategoricalDistribution((False, True))
    assert seen["fixed"].single()
    assert can_record(seen["dtype"], "fp8") and not can_record(seen["dtype"], "fp4")
    assert can_record(seen["eager"], True) and not can_record(seen["eager"], 1)


def test_secrets_are_masked_in_the_study(record: StudyRecord) -> None:
    # case EDGE-16
    number = record.open_trial({**PARAMETERS, "api_key": "sk-" + "PLACEHOLDER00000"})
    assert record.trial(number).parameters["api_key"] == "***"


def test_studies_of_others_are_not_touched(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    other = optuna.create_study(storage=url, study_name="theirs", directions=["maximize", "minimize", "minimize"])
    other.add_trial(optuna.create_trial(values=[1.0, 2.0, 3.0]))
    with pytest.raises(StudyMismatch, match="written by another program"):
        StudyRecord.open(url, "theirs", terms())
    with pytest.raises(UserError, match="written by another program"):
        StudyRecord.load(url, "theirs")
    with pytest.raises(UserError, match=r"no study 'mine' in .*: there is 'theirs'"):
        StudyRecord.load(url, "mine")


def test_reading_needs_no_terms(record: StudyRecord) -> None:
    add(record)
    reader = StudyRecord.load(record.url, "demo")
    assert reader.front()[0].values == (1000.0, 200.0, 20.0)
    assert reader.terms.labels == LABELS and reader.study.metric_names == list(LABELS)
    reader.close_storage()


def test_values_are_what_was_measured_to_the_last_bit(record: StudyRecord) -> None:
    exact = (np.float64(1 / 3) * 1e4, np.nextafter(0.1, 1), 1e-300)
    number = record.open_trial({**PARAMETERS, "watermark": 0.1 + 0.2, "kv_cache_memory_bytes": 2**46 + 1})
    record.close(number, replace(MEASURED, measurement=EMPTY), card(exact))
    back = record.trial(number)
    assert back.values == tuple(float(v) for v in exact)
    assert back.parameters["watermark"] == 0.1 + 0.2 and back.parameters["kv_cache_memory_bytes"] == 2**46 + 1
