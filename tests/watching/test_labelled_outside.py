"""The labelled set once more, as `diagnose --url` would have seen each server: gauges and histograms only."""

from __future__ import annotations

from collections import defaultdict

import pytest

from optimizer.questions.diagnosis import Diagnosis
from optimizer.watching.diagnosis import WatchDiagnosis, diagnose_watch, exit_code_of, text_of
from tests.questions.labelled import CASES, Case, loaded, verdict
from tests.watching.exported import seen_of

LEAST_RIGHT = 0.9
SEEN = tuple(case for case in CASES if case.label != "client")
"""Nobody outside sees the load generator."""


@pytest.fixture(scope="module")
def judged() -> list[tuple[Case, WatchDiagnosis, Diagnosis]]:
    found = [(case, watched(case)) for case in SEEN]
    return [(case, outside, next(iter(outside.engines.values()))[1]) for case, outside in found]


def watched(case: Case) -> WatchDiagnosis:
    """Of its stress where that is what breaks it, else of its first load."""
    server, (phase,) = loaded(case, [case.loads[-1 if case.label == "peak-broken" else 0]])
    return diagnose_watch(seen_of(phase, server))


def is_right(case: Case, outside: WatchDiagnosis, found: Diagnosis) -> bool:
    if case.label == "peak-broken":
        return outside.health != "healthy" and bool(found.checklist.is_preempting)
    if case.label == "healthy":
        return outside.health == "healthy" and verdict(found, 4) == "fits" and not found.checklist.is_preempting
    return case.says(found)


def test_nine_of_ten_are_right(judged: list[tuple[Case, WatchDiagnosis, Diagnosis]]) -> None:
    right: dict[str, list[bool]] = defaultdict(list)
    for case, outside, found in judged:
        right[case.label].append(is_right(case, outside, found))
    told = {label: f"{sum(rows)}/{len(rows)}" for label, rows in right.items()}
    every = [row for rows in right.values() for row in rows]
    assert sum(every) >= LEAST_RIGHT * len(every), told
    assert all(sum(rows) >= len(rows) / 2 for rows in right.values()), told


def test_a_healthy_server_is_never_surely_called_ill(judged: list[tuple[Case, WatchDiagnosis, Diagnosis]]) -> None:
    for case, outside, found in judged:
        if case.label == "healthy":
            assert exit_code_of(outside) == 0 and not outside.signs, case
            assert not (verdict(found, 2) == "cpu" and found.answers[1].confidence == "high"), case
            assert not any(line.verdict == "cause" for line in found.checklist.lines), case


def test_changes_carry_a_prediction(judged: list[tuple[Case, WatchDiagnosis, Diagnosis]]) -> None:
    changes = [change for case, _, found in judged if case.label == "overloaded" for change in found.changes]
    assert changes and any(change.predicted for change in changes)


def test_what_is_said_for_people_names_the_card_and_the_budgets(
    judged: list[tuple[Case, WatchDiagnosis, Diagnosis]],
) -> None:
    case, outside, _ = next(row for row in judged if row[0].label == "kv-starved")
    text = text_of(outside)
    assert case.gpu in text and "KV budget too small: cause" in text and "http://a-server: degraded" in text
