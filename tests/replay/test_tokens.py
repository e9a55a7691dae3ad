"""Prompts: exact lengths, shared where the trace shares, nowhere else, the same in every process."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.replay.bodies import Bodies
from optimizer.replay.plan import ReplayPlan
from optimizer.replay.tokens import safe_ids
from tests.replay.traces import plan_of, target_of, trace_of

TARGET = target_of("http://127.0.0.1:1")


def prompts(plan: ReplayPlan) -> list[list[int]]:
    return [json.loads(Bodies(plan).body(row))["prompt"] for row in range(len(plan.trace))]


def runs(prompt: list[int], n: int) -> set[tuple[int, ...]]:
    """Every run of n tokens, at any alignment."""
    return {tuple(prompt[i : i + n]) for i in range(len(prompt) - n + 1)}


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 200), st.lists(st.integers(-(2**62), 2**62), max_size=6)), min_size=1, max_size=6
    ),
    block=st.sampled_from([16, 32, 50]),
    vocabulary=st.sampled_from([512, 32_000, 262_144]),
)
def test_prompts_have_their_lengths_and_share_their_blocks_only(
    rows: list[tuple[int, list[int]]], block: int, vocabulary: int
) -> None:
    trace = trace_of(
        np.zeros(len(rows)),
        [n for n, _ in rows],
        blocks=[ids for _, ids in rows],
        prefix_block_tokens=block,
    )
    made = prompts(plan_of(trace, TARGET, vocabulary=vocabulary))
    usable = set(safe_ids(vocabulary).tolist())
    content: dict[int, list[int]] = {}
    for prompt, (n, ids) in zip(made, rows, strict=True):
        assert len(prompt) == n and usable.issuperset(prompt)
        for place, block_id in enumerate(ids):
            run = prompt[place * block : (place + 1) * block]
            known = content.setdefault(block_id, run)
            assert known[: len(run)] == run[: len(known)]
            content[block_id] = max(known, run, key=len)
    n_runs = 16
    shared = set().union(*(runs(run, n_runs) for run in content.values()), set())
    own = [runs(p[len(ids) * block :], n_runs) for p, (_, ids) in zip(made, rows, strict=True)]
    for i, mine in enumerate(own):
        assert not mine & shared
        assert not any(mine & other for other in own[:i])


def test_rows_differ_from_their_first_tokens_on() -> None:
    """A cache that hashes blocks in a chain finds nothing of another row."""
    made = prompts(plan_of(trace_of(np.zeros(2000), 3), TARGET))
    assert len({tuple(p[:2]) for p in made}) == 2000


def test_other_seeds_give_other_prompts_of_the_same_sharing() -> None:  # case TOOL-12
    trace = trace_of([0.0, 0.0], 64, blocks=[[1, 2], [1, 3]], prefix_block_tokens=16)
    first, again, other = (prompts(plan_of(trace, TARGET, seed=seed)) for seed in (0, 0, 1))
    assert first == again
    assert other[0][:16] == other[1][:16] != first[0][:16]
    assert not runs(first[0], 8) & runs(other[0], 8)


def test_another_process_makes_the_same_prompts() -> None:
    code = (
        "import json, sys; sys.path.insert(0, '.')\n"
        "from tests.replay.test_tokens import TARGET, prompts\n"
        "from tests.replay.traces import plan_of, trace_of\n"
        "print(json.dumps(prompts(plan_of(trace_of([0.0], 100, blocks=[[7]], prefix_block_tokens=60), TARGET))))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == prompts(plan_of(trace_of([0.0], 100, blocks=[[7]], prefix_block_tokens=60), TARGET))


@pytest.mark.parametrize("vocabulary", [64, 512, 32_000, 128_256, 151_936, 202_048])
def test_safe_ids_leave_the_ends_of_a_vocabulary_alone(vocabulary: int) -> None:
    ids = safe_ids(vocabulary)
    assert ids.size > vocabulary / 2 and ids[0] >= min(1000, vocabulary // 8) and ids[-1] < vocabulary * 0.97


def fields(**more: Any) -> dict[str, Any]:
    trace = trace_of([0.0], 40, 7)
    target = target_of("http://h:1", model='m "quoted"', extra_body=more.pop("extra_body", {}))
    body: dict[str, Any] = json.loads(Bodies(plan_of(trace, target, **more)).body(0))
    return body


def test_lengths_are_exact_and_tokens_counted_by_the_server() -> None:
    body = fields()
    assert len(body.pop("prompt")) == 40
    assert body == {
        "model": 'm "quoted"',
        "max_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "ignore_eos": True,
        "temperature": 0,
    }


def test_a_salt_and_sampling_parameters_are_sent_along() -> None:  # cases TOOL-12, OOM-12
    body = fields(cache_salt="s", extra_body={"logprobs": 5, "temperature": 0.7, "n": 2})
    assert (body["cache_salt"], body["logprobs"], body["temperature"], body["n"]) == ("s", 5, 0.7, 2)


def test_prompt_logprobs_are_asked_for_without_a_stream() -> None:  # case OOM-12
    body = fields(extra_body={"prompt_logprobs": 1})
    assert body["stream"] is False and "stream_options" not in body


def test_chat_is_text_with_the_servers_own_sampling() -> None:
    body = fields(style="chat")
    (message,) = body["messages"]
    assert message["role"] == "user" and len(message["content"].split()) == 40
    assert not {"prompt", "ignore_eos", "temperature"} & body.keys()
