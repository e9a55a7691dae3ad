"""What a failed start said would fit rules out what cannot, and nothing else."""

from __future__ import annotations

import pytest

from optimizer.engines.engine import Instance, Placement
from optimizer.study.learned_bounds import LearnedBounds
from search_spaces.config import Config
from search_spaces.parameter import Value

BASE: dict[str, Value] = {
    "max_num_batched_tokens": 2048, "max_num_seqs": 1024, "max_model_len": 132_000, "gpu_memory_utilization": 0.9,
}  # fmt: skip
GIB = 1024**3


def one(**changes: Value) -> Placement:
    return Placement((Instance("server", Config({**BASE, **changes}), ("default",)),))


def two(chat: int, batch: int, **changes: Value) -> Placement:
    configs = {n: Config({**BASE, **changes, "max_num_seqs": seqs}) for n, seqs in (("chat", chat), ("batch", batch))}
    return Placement(tuple(Instance(n, c, (n,)) for n, c in configs.items()), "time-slice")


def test_nothing_known_rules_nothing_out() -> None:
    bounds = LearnedBounds()
    assert not bounds and bounds.rules_out(one()) is None
    assert bounds.learn(one(), "runtime_peak", "serving", {}) == () and not bounds


def test_state_blocks_bound_the_sequences_at_the_same_memory_and_length() -> None:  # case OOM-21
    bounds = LearnedBounds()
    assert bounds.learn(one(), "kv_capacity", "graph_capture", {"max_num_seqs_at_most": 614.0}) == (
        "max_num_seqs above 614",
    )
    assert bounds.rules_out(one(max_num_seqs=615)) == "max_num_seqs above 614"
    assert bounds.rules_out(one(max_num_seqs=614)) is None
    assert bounds.rules_out(one(max_num_seqs=615, max_num_batched_tokens=8192)) is not None
    assert bounds.rules_out(one(gpu_memory_utilization=0.95)) is None, "learned anew"
    assert bounds.rules_out(one(max_model_len=32_000)) is None, "learned anew"
    assert bounds.learn(one(), "kv_capacity", "graph_capture", {"max_num_seqs_at_most": 614.0}) == (), "known"


def test_the_samplers_warm_up_bounds_the_sequences_of_the_model_whatever_the_memory() -> None:  # case OOM-07
    bounds = LearnedBounds()
    bounds.learn(one(), "runtime_peak", "warmup", {"max_num_seqs_at_most": 1023.0, "free_bytes": 1e6})
    assert bounds.rules_out(one(gpu_memory_utilization=0.8, max_model_len=4096)) is not None
    assert bounds.rules_out(one(max_num_seqs=512)) is None
    assert bounds.rules_out(one(tensor_parallel_size=2)) is None
    assert bounds.rules_out(one(model="org/half-size")) is None


def test_overweight_checkpoints_are_not_started_again_whatever_else_changes() -> None:  # case OOM-01
    bounds = LearnedBounds()
    assert bounds.learn(one(), "weights", "load", {}) == (
        "every other configuration with this checkpoint and these parallel sizes",
    )
    assert bounds.rules_out(one(max_num_seqs=1, gpu_memory_utilization=0.5)) == "its weights do not fit"
    for other in ({"tensor_parallel_size": 2}, {"quantization": "fp8"}, {"model": "org/half-size"}):
        assert bounds.rules_out(one(**other)) is None
    assert bounds.rules_out(two(8, 8)) is None, "another number of servers is another sum"


def test_too_little_kv_cache_rules_out_less_of_it() -> None:
    bounds = LearnedBounds()
    given = {"gpu_memory_utilization": None, "kv_cache_memory_bytes": 4 * GIB}
    bounds.learn(one(**given), "kv_capacity", "kv_alloc", {"max_model_len_at_most": 74_688.0, "kv_deficit_bytes": GIB})
    for size, is_out in ((3 * GIB, True), (4 * GIB, True), (5 * GIB - 1, True), (5 * GIB, False)):
        assert (bounds.rules_out(one(**{**given, "kv_cache_memory_bytes": size})) is not None) == is_out
    assert bounds.rules_out(one(**{**given, "max_model_len": 70_000})) is None
    assert bounds.rules_out(one(**{**given, "kv_cache_dtype": "fp8"})) is None


def test_the_least_utilisation_holds_at_its_length() -> None:
    bounds = LearnedBounds()
    bounds.learn(one(), "kv_capacity", "kv_alloc", {"gpu_memory_utilization_at_least": 0.94})
    assert bounds.rules_out(one(gpu_memory_utilization=0.93)) == "gpu_memory_utilization below 0.94"
    assert bounds.rules_out(one(gpu_memory_utilization=0.94)) is None
    assert bounds.rules_out(one(gpu_memory_utilization=0.93, max_model_len=8192)) is None


def test_refused_arguments_rule_out_only_what_is_equal_otherwise() -> None:
    bounds = LearnedBounds()
    bounds.learn(one(max_num_batched_tokens=512), "arguments", "config", {"max_num_batched_tokens_at_least": 1024.0})
    assert bounds.rules_out(one(max_num_batched_tokens=512)) is not None
    assert bounds.rules_out(one(max_num_batched_tokens=512, max_num_seqs=512)) is None


def test_of_several_servers_only_the_named_one_is_bound() -> None:
    bounds = LearnedBounds()
    assert bounds.learn(two(64, 64), "kv_capacity", "graph_capture", {"max_num_seqs_at_most": 32.0}) == ()
    bounds.learn(two(64, 64), "kv_capacity", "graph_capture", {"chat.max_num_seqs_at_most": 32.0})
    assert bounds.rules_out(two(64, 8)) is not None and bounds.rules_out(two(32, 8)) is None


@pytest.mark.parametrize("said", [{"free_bytes": 1e9}, {"max_num_seqs_at_most": 10.0}, {"swap_space_at_most": 3.0}])
def test_bounds_on_what_was_not_given_are_left_alone(said: dict[str, float]) -> None:
    bounds = LearnedBounds()
    plain = Placement((Instance("server", Config({"max_model_len": 4096}), ("default",)),))
    assert bounds.learn(plain, "kv_capacity", "kv_alloc", said) == () and not bounds
