"""What a real start said corrects the memory arithmetic: narrower, true, and never a false rejection."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from search_spaces.capacity import Capacity, solve_capacity
from search_spaces.hardware import GIB, find_gpu
from search_spaces.known_models import find_model
from search_spaces.memory import Demand
from search_spaces.memory_seen import MemorySeen, seen_from
from search_spaces.memory_use import memory_use, sure_failure
from search_spaces.model import ModelFacts

DATA = Path(__file__).parents[2] / "bench" / "data"
LLAMA = find_model("Llama-3.1-8B")
RTX, A100 = find_gpu("RTX-4090-24"), find_gpu("A100-80")


def recorded() -> tuple[MemorySeen, dict[str, Any], int]:
    """(what the run's start said, its arguments, its KV tokens)"""
    meta = json.loads((DATA / "llmservingsim_rtx4090_llama-3.1-8b" / "meta.json").read_text())
    asked, cache = meta["engine_kwargs"], meta["kv_cache"]
    kv_bytes = cache["num_kv_tokens"] * LLAMA.kv_bytes_per_token()
    seen = MemorySeen(
        asked["max_num_batched_tokens"],
        asked["max_num_seqs"],
        are_graphs_counted=False,  # vLLM 0.19
        non_kv_bytes=cache["gpu_memory_utilization"] * RTX.memory_bytes - kv_bytes,
    )
    return seen, {"utilization": cache["gpu_memory_utilization"], "are_graphs_counted": False}, cache["num_kv_tokens"]


def solve(model: ModelFacts, n_tokens: int = 2048, n_seqs: int = 256, **more: Any) -> Capacity:
    return solve_capacity(model, RTX, max_num_batched_tokens=n_tokens, max_num_seqs=n_seqs, **more)


def width(capacity: Capacity) -> float:
    return capacity.kv_bytes.high - capacity.kv_bytes.low


def test_the_recorded_run_narrows_the_interval_around_the_truth() -> None:
    seen, how, truth = recorded()
    model = replace(LLAMA, memory_seen=(seen,))
    before, after = solve(LLAMA, **how), solve(model, **how)
    assert after.kv_tokens.low < truth < after.kv_tokens.high
    assert after.kv_tokens.likely == pytest.approx(truth, rel=0.005)
    assert width(after) < 0.25 * width(before)


@pytest.mark.parametrize(("n_tokens", "n_seqs"), [(512, 256), (2048, 64), (8192, 256), (8192, 512), (4096, 32)])
def test_it_carries_over_to_other_budgets_and_utilisations(n_tokens: int, n_seqs: int) -> None:
    seen, how, _ = recorded()
    model = replace(LLAMA, memory_seen=(seen,))
    for utilization in (0.85, 0.95):
        other = {**how, "utilization": utilization}
        before, after = solve(LLAMA, n_tokens, n_seqs, **other), solve(model, n_tokens, n_seqs, **other)
        assert width(after) < width(before)
        assert before.kv_bytes.low < after.kv_bytes.likely < before.kv_bytes.high
    bigger = solve(model, n_tokens, n_seqs, **how).demand.profiled
    there = Demand(model, 2048, 256, are_graphs_counted=False).profiled_at(seen)
    if n_tokens > 2048 and n_seqs >= 256:
        assert bigger.likely > there.likely, "activations grow with the token budget, what was seen is the floor"
    if n_tokens <= 2048 and n_seqs <= 256:
        assert bigger.likely <= there.likely


def test_a_start_says_nothing_of_another_model_or_size() -> None:
    seen, how, _ = recorded()
    two = {**how, "tensor_parallel_size": 2}
    told = solve(replace(LLAMA, memory_seen=(seen,)), **two)
    assert told.kv_bytes == solve(LLAMA, **two).kv_bytes
    weighed = replace(seen, weights_bytes=1.01 * LLAMA.weight_bytes(1))
    other = solve(replace(LLAMA, memory_seen=(weighed,)), **two).demand.weights
    assert other.low < LLAMA.weight_bytes(2) < other.likely == pytest.approx(1.01 * LLAMA.weight_bytes(2), rel=1e-3)


class Card:
    """A made-up machine that sizes its KV cache as vLLM does, from costs that nobody assumed."""

    def __init__(self, rng: random.Random, wide: float) -> None:
        self.buffers = rng.uniform(0.2 / wide, 1.2 * wide) * GIB
        self.forward = rng.uniform(4 / wide, 8 * wide)
        self.sampler = rng.uniform(10 / wide, 25 * wide)
        self.graphs = rng.uniform(0.5 / wide, 2 * wide)
        self.weights = LLAMA.weight_bytes(1) * rng.uniform(0.99, 1.05)

    def parts(self, n_tokens: int, n_seqs: int) -> tuple[float, float]:
        plain = Demand(LLAMA, n_tokens, n_seqs)
        forward = n_tokens * plain.forward_width * self.forward
        return self.buffers + max(forward, n_seqs * LLAMA.vocab * self.sampler), self.graphs * plain.graphs.likely

    def start(self, n_tokens: int, n_seqs: int) -> MemorySeen:
        """As its log says it, two digits of a GiB."""
        rest, graphs = self.parts(n_tokens, n_seqs)
        rounded = [round(x / GIB, 2) * GIB for x in (self.weights + rest + graphs, self.weights, graphs)]
        return MemorySeen(n_tokens, n_seqs, non_kv_bytes=rounded[0], weights_bytes=rounded[1], graph_bytes=rounded[2])

    def kv_bytes(self, n_tokens: int, n_seqs: int, utilization: float) -> float:
        return A100.memory_bytes * utilization - self.weights - sum(self.parts(n_tokens, n_seqs))


ROUNDED = 3 * 0.005 * GIB
"""Three figures of a log, two digits each."""
BUDGETS = [(t, s) for t in (256, 512, 2048, 8192, 16384, 32768) for s in (8, 64, 256, 1024) if s <= t]


@pytest.mark.parametrize("wide", [1.0, 2.0])
def test_no_made_up_machine_is_rejected_falsely(wide: float) -> None:
    """Whatever the machine, inside what is assumed or up to twice beyond, one start never rules out what would boot
    and was not ruled out before. Inside, the truth is in the interval; near the start that is narrower."""
    rng = random.Random(7)
    near = []
    for _ in range(150):
        card = Card(rng, wide)
        start = card.start(*rng.choice(BUDGETS))
        model = replace(LLAMA, memory_seen=(start,))
        for n_tokens, n_seqs in rng.sample(BUDGETS, 6):
            utilization = rng.uniform(0.5, 0.95)
            asked = {"max_num_batched_tokens": n_tokens, "max_num_seqs": n_seqs, "utilization": utilization}
            truth = card.kv_bytes(n_tokens, n_seqs, utilization)
            told, before = solve_capacity(model, A100, **asked), solve_capacity(LLAMA, A100, **asked)
            assert told.kv_bytes.high >= min(truth, before.kv_bytes.high) - ROUNDED, (vars(card), start, asked)
            assert wide > 1 or told.kv_bytes.low <= truth + ROUNDED, (vars(card), start, asked)
            if start.distance(n_tokens, n_seqs) <= 1.0:
                near.append(width(told) / width(before))
    assert len(near) > 30 and sum(w < 1 for w in near) >= 0.95 * len(near)
    assert sorted(near)[len(near) // 2] < 0.3


def test_the_nearest_start_decides() -> None:
    rng = random.Random(3)
    card = Card(rng, 1.0)
    both = replace(LLAMA, memory_seen=(card.start(2048, 256), card.start(16384, 1024)))
    one = replace(LLAMA, memory_seen=both.memory_seen[:1])
    for model in (one, both):
        capacity = solve_capacity(model, A100, max_num_batched_tokens=16384, max_num_seqs=1024, utilization=0.9)
        truth = card.kv_bytes(16384, 1024, 0.9)
        assert capacity.kv_bytes.low <= truth <= capacity.kv_bytes.high
    assert width(capacity) < GIB / 2


def test_the_sum_names_the_start() -> None:
    card = Card(random.Random(1), 1.0)
    model = replace(LLAMA, memory_seen=(card.start(2048, 256),))
    text = solve(model, 4096, 256).explain()
    for words in ("as a start logged them", "a start took", "at max_num_batched_tokens 2048, max_num_seqs 256",
                  "activations moved by", "scaled to what a start logged"):  # fmt: skip
        assert words in text, words
    assert "moved by" not in solve(model).explain()
    assert repr(model) == repr(LLAMA), "what was seen is no part of the model: a study's fingerprint stays"


def test_the_simulator_boots_with_what_a_start_left() -> None:
    seen, _, truth = recorded()
    counted = replace(seen, are_graphs_counted=True)
    use = memory_use(
        replace(LLAMA, memory_seen=(counted,)),
        RTX,
        {"max_num_batched_tokens": 2048, "max_num_seqs": 256, "gpu_memory_utilization": 0.9, "max_model_len": 8192},
    )
    assert use.kv_tokens == pytest.approx(truth, rel=0.005)
    assert use.idle_bytes - use.kv_bytes + use.activation_bytes > 15 * GIB


def test_only_what_cannot_boot_is_surely_failing() -> None:
    seen, _, truth = recorded()
    model = replace(LLAMA, memory_seen=(replace(seen, are_graphs_counted=True),))
    base = {"max_num_batched_tokens": 2048, "max_num_seqs": 256, "gpu_memory_utilization": 0.9}

    def failure(**more: Any) -> str | None:
        found = sure_failure([model], RTX, [{**base, **more}])
        return None if found is None else found.kind

    assert failure(max_model_len=truth - 64) is None
    assert failure(max_model_len=truth + 4096) == "kv_capacity"
    assert failure(max_model_len=8192, kv_cache_memory_bytes=int(6.0 * GIB)) is None, "more than 0.9 leaves, there is"
    assert failure(max_model_len=8192, kv_cache_memory_bytes=int(7.5 * GIB)) == "runtime_peak"
    two = {**base, "max_model_len": 4096, "kv_cache_memory_bytes": GIB}
    assert sure_failure([model, model], RTX, [two, two]) is not None, "two copies of the weights"
    assert sure_failure([model], find_gpu("A100-80"), [{**base, "max_model_len": 8192}]) is None


@pytest.mark.parametrize(
    "wrong",
    [{"n_rows": 0}, {"max_num_batched_tokens": -1}, {"weights_bytes": float("nan")}, {"non_kv_bytes": -1.0}, {"x": 1}],
)
def test_impossible_starts_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        seen_from([{"max_num_batched_tokens": 2048, "n_rows": 256, **wrong}])
    seen, _, _ = recorded()
    assert seen_from([seen.to_json()]) == (seen,)
