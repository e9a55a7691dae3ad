"""Parameters or workload, by what the best budgets would carry: simulated, and said so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optimizer.questions.achievable import achievable
from optimizer.questions.demand import parameters_or_workload
from optimizer.questions.situation import Situation
from tests.questions.situations import gap, known, lengths, queue, tokens


def overloaded(offered_per_s: float, seats: int) -> Situation:
    return known(
        **lengths(300, 200), **queue(seats, 150, 2.0, most=seats), **gap(8), **tokens(1700), config={"max_num_seqs": seats},
        offered_per_s=offered_per_s, finished_per_s=8.0, is_sustained=False,
    )  # fmt: skip


@pytest.mark.parametrize(("offered_per_s", "verdict"), [(16.0, "parameters"), (800.0, "workload")])
def test_what_the_best_budgets_carry_decides(offered_per_s: float, verdict: str) -> None:
    answer = parameters_or_workload(overloaded(offered_per_s, 16))
    assert (answer.verdict, answer.confidence) == (verdict, "medium")
    assert any(line.startswith("predicted: ") and "by simulation" in line for line in answer.evidence)
    assert [c.name for c in answer.changes] == ["max_num_seqs"] and bool(answer.advice) == (verdict == "workload")


def test_a_card_that_is_full_gains_nothing() -> None:
    seen = overloaded(80.0, 256)
    found = achievable(seen)
    assert found is not None and 1.0 <= found.gain < 1.3
    assert parameters_or_workload(seen).verdict == "workload"


def test_near_the_brink_it_is_not_sure() -> None:
    seen = overloaded(16.0, 16)
    found = achievable(seen)
    assert found is not None
    near = replace(seen, offered_per_s=8.0 * found.gain * 1.02)
    assert parameters_or_workload(near).confidence == "low"


def test_what_is_not_known_is_not_simulated() -> None:
    seen = overloaded(16.0, 16)
    for missing in ({"model": None}, {"gpu": None}, {"outputs": None}, {"config": {}}, {"is_alone": False}):
        assert achievable(replace(seen, **missing)) is None  # type: ignore[arg-type]
