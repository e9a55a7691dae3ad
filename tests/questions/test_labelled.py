"""The labelled set: the verdict is right in at least nine of ten, and never sure of trouble where there is none."""

from __future__ import annotations

from collections import defaultdict

import pytest

from optimizer.questions.diagnosis import Diagnosis
from tests.questions.labelled import CASES, Case, measured, verdict

LEAST_RIGHT = 0.9


@pytest.fixture(scope="module")
def judged() -> list[tuple[Case, Diagnosis]]:
    return [(case, measured(case)) for case in CASES]


def test_nine_of_ten_are_right(judged: list[tuple[Case, Diagnosis]]) -> None:
    right: dict[str, list[bool]] = defaultdict(list)
    for case, diagnosis in judged:
        right[case.label].append(case.says(diagnosis))
    told = {label: f"{sum(rows)}/{len(rows)}" for label, rows in right.items()}
    print(told)
    every = [row for rows in right.values() for row in rows]
    assert sum(every) >= LEAST_RIGHT * len(every), told
    assert all(sum(rows) >= len(rows) / 2 for rows in right.values()), told


def test_a_healthy_server_is_never_surely_called_ill(judged: list[tuple[Case, Diagnosis]]) -> None:
    for case, diagnosis in judged:
        if case.label != "healthy":
            continue
        assert diagnosis.health == "healthy" and not diagnosis.problems, case
        assert verdict(diagnosis, 3) == "healthy" and verdict(diagnosis, 4) == "fits", case
        assert not (verdict(diagnosis, 2) == "cpu" and diagnosis.answers[1].confidence == "high"), case
        assert not any(line.verdict == "cause" for line in diagnosis.checklist.lines), case


def test_every_answer_has_evidence_a_confidence_and_what_would_change_it(
    judged: list[tuple[Case, Diagnosis]],
) -> None:
    for case, diagnosis in judged:
        assert [a.question for a in diagnosis.answers] == [1, 2, 3, 4, 5]
        for answer in diagnosis.answers:
            assert answer.would_change, (case, answer)
            assert answer.evidence or answer.verdict in ("unknown", "client"), (case, answer)
        assert len(diagnosis.checklist.lines) == 5
