"""What is said of servers whose figures are given, against what somebody who knows vLLM would say."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import pytest

from optimizer.questions.answer import Change
from optimizer.questions.diagnosis import Diagnosis, diagnose
from optimizer.questions.pool import held_tokens
from optimizer.questions.situation import Situation
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model
from search_spaces.parameter import Parameter
from search_spaces.space import Server
from search_spaces.vllm import MemoryKnob, serving_space
from tests.questions.several_loads import SEVERAL
from tests.questions.situations import Told, part
from tests.questions.told_situations import TOLD

EVERY = (*TOLD, *SEVERAL)
TRIES = 400


def diagnosed(told: Told) -> Diagnosis:
    return diagnose(told.loads, breakage=told.breakage)


@pytest.mark.parametrize("told", EVERY, ids=lambda t: t.name)
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


@pytest.mark.parametrize("told", EVERY, ids=lambda t: t.name)
def test_every_answer_says_what_would_change_it(told: Told) -> None:
    d = diagnosed(told)
    assert [a.question for a in d.answers] == [1, 2, 3, 4, 5] and len(d.checklist.lines) == 5
    assert all(a.would_change and a.text for a in d.answers)
    assert all(a.confidence == "unknown" for a in d.answers if a.verdict == "unknown")


def _is_inside(parameter: Parameter, change: Change) -> bool:
    """A pool that holds fewer requests than the space's least is told so."""
    ends = [float(v) for v in parameter.values() if isinstance(v, int | float)]
    least = 1.0 if parameter.name == "max_num_seqs" else min(ends)
    return isinstance(change.value, int | float) and least <= change.value <= max(ends)


def _parameters(s: Situation) -> dict[str, Parameter]:
    """Of this server's own space, with either memory knob."""
    server = Server(
        name="s",
        max_model_len=s.whole("max_model_len") or 32_768,
        mean_request_tokens=held_tokens(s) or 1000.0,
    )
    found: dict[str, Parameter] = {}
    knobs: tuple[MemoryKnob, ...] = ("kv_cache_memory_bytes", "gpu_memory_utilization")
    for knob in knobs:
        space = serving_space(
            s.model or find_model("Llama-3.1-8B"), s.gpu or find_gpu("H100-80"), [server], memory_knob=knob,
            memory_span=0.9, n_gpus=s.n_gpus,
        )  # fmt: skip
        found |= space.by_name
    return found


@pytest.mark.parametrize("told", EVERY, ids=lambda t: t.name)
def test_what_is_recommended_lies_inside_the_search_space(told: Told) -> None:
    changes = [c for c in diagnosed(told).changes if c.name not in ("long_prefill_token_threshold", "enforce_eager")]
    parameters = _parameters(told.loads[0]) if changes else {}  # the threshold is a share of the budget there
    for change in changes:
        assert _is_inside(parameters[change.name], change), change


OPTIONAL = [f.name for f in fields(Situation) if f.default is None and f.name != "load"]
"""Which load it was is known: nobody could tell saturation, unnamed, from an overload."""


def _with_gaps(s: Situation, chance: random.Random, share: float) -> Situation:
    return replace(s, **{name: None for name in OPTIONAL if chance.random() < share})  # type: ignore[arg-type]


def test_whatever_is_missing_no_healthy_server_is_surely_ill() -> None:
    chance = random.Random(7)
    for _ in range(TRIES):
        told, share = chance.choice(EVERY), chance.choice([0.05, 0.2, 0.5, 0.8])
        d = diagnose([_with_gaps(s, chance, share) for s in told.loads])
        assert all(a.would_change for a in d.answers), told.name
        is_honest = told.name not in ("the load generator is late, not the server",) and "first token" not in told.name
        if told.says.get("health") == "healthy" and is_honest:  # these two are told apart by what may be missing
            assert d.health in ("healthy", "unknown"), (told.name, d.problems)
            assert "cpu" in told.says.get("q2", "") or part(d, "q2") != "cpu high", told.name
        if told.says.get("health") in ("degraded", "broken"):
            assert part(d, "q3") != "healthy high", told.name
