"""What is said of servers whose figures are given, against what somebody who knows vLLM would say."""

from __future__ import annotations

import pytest

from optimizer.questions.answer import Change
from optimizer.questions.diagnosis import Diagnosis, diagnose
from search_spaces.parameter import Parameter
from search_spaces.space import Server
from search_spaces.vllm import serving_space
from tests.questions.situations import TOLD, Told, find_gpu, find_model, part


def diagnosed(told: Told) -> Diagnosis:
    return diagnose(told.loads, breakage=told.breakage)


@pytest.mark.parametrize("told", TOLD, ids=lambda t: t.name)
def test_what_is_said(told: Told) -> None:
    d = diagnosed(told)
    for name, wanted in told.says.items():
        assert part(d, name).startswith(tuple(wanted.split("|"))), (name, part(d, name))
    found = [(c.name, c.value) for c in d.changes]
    for name, (least, most) in told.changes.items():
        assert any(n == name and isinstance(v, int | float) and least <= v <= most for n, v in found), found
    assert not found if "*" in told.never else not {n for n, _ in found} & set(told.never), found
    text = str(d.to_json())
    assert [w for w in told.words if w not in text] == []
    assert [w for w in told.not_words if w in text] == []


@pytest.mark.parametrize("told", TOLD, ids=lambda t: t.name)
def test_every_answer_says_what_would_change_it(told: Told) -> None:
    d = diagnosed(told)
    assert [a.question for a in d.answers] == [1, 2, 3, 4, 5] and len(d.checklist.lines) == 5
    assert all(a.would_change and a.text for a in d.answers)
    assert all(a.confidence == "unknown" for a in d.answers if a.verdict == "unknown")


def _is_inside(parameter: Parameter, change: Change) -> bool:
    ends = [float(v) for v in parameter.values() if isinstance(v, int | float)]
    return isinstance(change.value, int | float) and min(ends) <= change.value <= max(ends)


@pytest.mark.parametrize("told", TOLD, ids=lambda t: t.name)
def test_what_is_recommended_lies_inside_the_search_space(told: Told) -> None:
    space = serving_space(
        find_model("Llama-3.1-8B"), find_gpu("H100-80"), [Server(name="s", max_model_len=32_768, mean_request_tokens=1000.0)],
        memory_knob="gpu_memory_utilization", memory_span=0.9,
    )  # fmt: skip
    for change in diagnosed(told).changes:
        if change.name != "long_prefill_token_threshold":  # a share of the budget in the space
            assert _is_inside(space.by_name[change.name], change), change
