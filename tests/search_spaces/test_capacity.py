"""Capacity: the recorded truth, no false rejection, and three kinds of running out of memory kept apart."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from search_spaces.capacity import KV_STEP_BYTES, MARGIN_SHARE, risk_of, solve_capacity, state_slots
from search_spaces.hardware import GIB, batch_defaults, find_gpu
from search_spaces.known_models import find_model
from search_spaces.memory import Interval, n_capture_sizes
from search_spaces.memory_use import check_card, free_bytes_at_peak, memory_use, peak_bytes, runtime_risk

DATA = Path(__file__).parents[2] / "bench" / "data"
LLAMA = find_model("Llama-3.1-8B")
A100 = find_gpu("A100-80")


def test_the_recorded_rtx_4090_run_lies_inside_and_near_the_likely_end() -> None:
    meta = json.loads((DATA / "llmservingsim_rtx4090_llama-3.1-8b" / "meta.json").read_text())
    asked, cache = meta["engine_kwargs"], meta["kv_cache"]
    gpu = find_gpu(meta["hardware"]["device_name"])
    assert gpu.memory_bytes == meta["hardware"]["device_total_memory_bytes"]
    capacity = solve_capacity(
        find_model(asked["model"]),
        gpu,
        max_num_batched_tokens=asked["max_num_batched_tokens"],
        max_num_seqs=asked["max_num_seqs"],
        utilization=cache["gpu_memory_utilization"],
        max_model_len=asked["max_model_len"],
        are_graphs_counted=False,  # vLLM 0.19
    )
    tokens = capacity.kv_tokens
    assert tokens.low < cache["num_kv_tokens"] < tokens.high
    assert tokens.likely == pytest.approx(cache["num_kv_tokens"], rel=0.08)
    assert capacity.n_blocks.likely == tokens.likely // 16


def test_no_measured_run_is_rejected() -> None:
    """Every row of every tier ran; the optimistic end must let all of them pass."""
    with (DATA / "measured_points.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sum(r["tier"] == "A" for r in rows) > 70
    for row in rows:
        gpu, model = find_gpu(row["gpu"]), find_model(row["model"])
        if row["dtype"] == "fp8":
            model = find_model("Llama-3.1-8B-FP8")
        tokens, seqs = batch_defaults(gpu)
        capacity = solve_capacity(
            model,
            gpu,
            max_num_batched_tokens=_whole(row["max_num_batched_tokens"], tokens),
            max_num_seqs=_whole(row["max_num_seqs"], seqs),
            tensor_parallel_size=int(row["tp"]),
            utilization=0.9,
            max_model_len=_whole(row["input_len"], 4096) + _whole(row["output_len"], 1024),
            are_graphs_counted=False,
        )
        assert capacity.failure is None, (row["id"], capacity.failure)


def _whole(text: str, default: int) -> int:
    return int(float(text)) if text.replace(".", "").isdigit() else default


def test_weights_that_exceed_the_card_are_certain() -> None:  # case OOM-01
    capacity = solve_capacity(find_model("Qwen3-14B"), find_gpu("L4-24"), max_num_batched_tokens=2048, max_num_seqs=256)
    failure = capacity.failure
    assert failure is not None and failure.kind == "weights"
    assert failure.deficit_bytes > 4 * GIB
    assert "gpu_memory_utilization" not in failure.cause  # lowering it cannot help
    assert "quantised" in failure.cause and "GPUs" in failure.cause


def test_no_room_for_one_request_gives_the_length_that_fits() -> None:  # case OOM-05
    capacity = solve_capacity(
        LLAMA, find_gpu("RTX-4090-24"), max_num_batched_tokens=2048, max_num_seqs=256, max_model_len=131072
    )
    failure = capacity.failure
    assert failure is not None and failure.kind == "kv_capacity"
    assert failure.bound is not None and 30_000 < failure.bound < 60_000
    again = solve_capacity(
        LLAMA, find_gpu("RTX-4090-24"), max_num_batched_tokens=2048, max_num_seqs=256, max_model_len=failure.bound
    )
    assert again.failure is None


def test_a_small_utilisation_leaves_nothing() -> None:  # case OOM-03
    capacity = solve_capacity(
        find_model("Qwen3-8B"), find_gpu("A100-40"), max_num_batched_tokens=2048, max_num_seqs=256, utilization=0.4
    )
    assert capacity.failure is not None and capacity.failure.kind == "kv_capacity"
    assert "nothing is left" in capacity.failure.cause


def test_run_time_peak_is_a_risk_that_grows_with_utilisation() -> None:  # cases OOM-09, OOM-13
    def risk(utilization: float) -> float:
        return solve_capacity(
            LLAMA, find_gpu("RTX-4090-24"), max_num_batched_tokens=2048, max_num_seqs=256, utilization=utilization
        ).risk

    risks = [risk(u) for u in (0.85, 0.92, 0.95, 0.97, 0.98, 1.0)]
    assert risks == sorted(risks)
    assert risks[0] == 0.0 and 0 < risks[3] < 1 and risks[-1] == 1.0


def test_several_instances_share_what_is_left() -> None:
    one = solve_capacity(LLAMA, A100, max_num_batched_tokens=2048, max_num_seqs=256)
    two = solve_capacity(LLAMA, A100, max_num_batched_tokens=2048, max_num_seqs=256, n_instances=2)
    costs = one.demand.inside.likely + one.demand.outside.likely
    assert two.kv_bytes.likely == pytest.approx(A100.memory_bytes * (1 - MARGIN_SHARE) - 2 * costs, rel=1e-6)
    assert two.kv_budget(0.3) + two.kv_budget(0.7) <= two.ceiling_bytes
    assert two.kv_budget(0.3) % KV_STEP_BYTES == 0
    assert two.ceiling_bytes <= two.optimistic_bytes


def test_explanation_spells_the_sum_out() -> None:
    text = solve_capacity(LLAMA, A100, max_num_batched_tokens=2048, max_num_seqs=256, max_model_len=8192).explain()
    for word in (
        "weights",
        "activations",
        "CUDA graphs",
        "CUDA context",
        "8.03 B = ",
        "0.92 x",
        "tokens",
        "blocks of 16",
    ):
        assert word in text, word
    failing = solve_capacity(find_model("Llama-3.1-70B"), A100, max_num_batched_tokens=2048, max_num_seqs=256).explain()
    assert "does not fit even at the optimistic end (weights)" in failing
    assert (
        "NCCL"
        in solve_capacity(LLAMA, A100, max_num_batched_tokens=2048, max_num_seqs=256, tensor_parallel_size=2).explain()
    )
    assert (
        "uncalibrated" in solve_capacity(LLAMA, find_gpu("A10G"), max_num_batched_tokens=512, max_num_seqs=8).explain()
    )


@pytest.mark.parametrize(
    "wrong", [{"max_num_seqs": 0}, {"utilization": 0.0}, {"utilization": 1.2}, {"tensor_parallel_size": 0}]
)
def test_impossible_sizes_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        solve_capacity(LLAMA, A100, **{"max_num_batched_tokens": 2048, "max_num_seqs": 8, **wrong})  # type: ignore[arg-type]


def test_bigger_budgets_cost_memory() -> None:
    small = peak_bytes(
        LLAMA, A100, {"max_num_batched_tokens": 2048, "max_num_seqs": 64, "kv_cache_memory_bytes": 2**30}
    )
    wide = peak_bytes(
        LLAMA, A100, {"max_num_batched_tokens": 32768, "max_num_seqs": 64, "kv_cache_memory_bytes": 2**30}
    )
    deep = peak_bytes(
        LLAMA, A100, {"max_num_batched_tokens": 2048, "max_num_seqs": 1024, "kv_cache_memory_bytes": 2**30}
    )
    assert small < wide and small < deep


def test_exact_bytes_override_utilisation() -> None:
    use = memory_use(
        LLAMA, A100, {"kv_cache_memory_bytes": 2**30, "gpu_memory_utilization": 0.9, "max_model_len": 4096}
    )
    assert use.kv_bytes == 2**30
    assert use.kv_tokens == 8192 and use.kv_blocks == 512


def test_fp8_cache_doubles_the_tokens() -> None:
    base = {"kv_cache_memory_bytes": 2**30, "max_model_len": 4096}
    assert (
        memory_use(LLAMA, A100, {**base, "kv_cache_dtype": "fp8"}).kv_tokens
        == 2 * memory_use(LLAMA, A100, base).kv_tokens
    )


def test_boot_failures_come_with_their_phase() -> None:
    def outcome(model: str, gpu: str, config: dict[str, object]) -> tuple[str, str] | None:
        card = find_gpu(gpu)
        found = check_card([memory_use(find_model(model), card, config)], card, [config])
        return None if found is None else (found[0].kind, found[1])

    assert outcome("Llama-3.1-8B", "A100-80", {"max_model_len": 8192}) is None
    assert outcome("Qwen3-14B", "L4-24", {}) == ("weights", "load")
    assert outcome("Llama-3.1-8B", "RTX-4090-24", {"max_model_len": 131072}) == ("kv_capacity", "kv_alloc")
    assert outcome("Llama-3.1-8B", "RTX-4090-24", {"gpu_memory_utilization": 1.0}) == ("runtime_peak", "startup")
    huge = {"max_num_batched_tokens": 131072, "max_num_seqs": 1024, "max_model_len": 4096}
    assert outcome("Llama-3.1-8B", "RTX-4090-24", huge) == ("runtime_peak", "profile")  # case OOM-07
    exact = {"kv_cache_memory_bytes": 8 * 2**30, "max_model_len": 4096}
    assert outcome("Llama-3.1-8B", "RTX-4090-24", exact) == ("runtime_peak", "kv_alloc")


def test_two_servers_on_one_card_add_up() -> None:
    config = {"kv_cache_memory_bytes": 4 * 2**30, "max_model_len": 4096}
    use = memory_use(LLAMA, find_gpu("RTX-4090-24"), config)
    assert check_card([use], find_gpu("RTX-4090-24"), [config]) is None
    failure = check_card([use, use], find_gpu("RTX-4090-24"), [config, config])
    assert failure is not None and failure[0].kind == "weights"
    assert free_bytes_at_peak([use, use], A100) < free_bytes_at_peak([use], A100)
    assert runtime_risk([use], A100) == 0.0


def test_state_models_bound_the_number_of_sequences() -> None:  # case OOM-21
    model, gpu = find_model("Qwen3-Next-80B-A3B-Instruct-FP8"), find_gpu("H100-NVL-94")
    config = {
        "max_num_seqs": 1024,
        "max_num_batched_tokens": 2048,
        "max_model_len": 8192,
        "kv_cache_memory_bytes": 2**30,
    }
    failure = memory_use(model, gpu, config).failure
    assert failure is not None and failure.kind == "kv_capacity"
    assert failure.bound is not None and 0 < failure.bound < 1024
    assert memory_use(model, gpu, {**config, "max_num_seqs": failure.bound}).failure is None
    assert state_slots(LLAMA, 2**30, 1) is None


def test_capture_sizes_follow_vllm() -> None:
    meta = json.loads((DATA / "llmservingsim_rtx4090_llama-3.1-8b" / "meta.json").read_text())
    sizes = meta["resolved_config"]["compilation_config"]["cudagraph_capture_sizes"]
    assert n_capture_sizes(256, 2048) == len(sizes)
    assert n_capture_sizes(4, 2048) == len([1, 2, 4, 8])


def test_risk_is_monotone() -> None:
    need = Interval(1, 2, 4)
    assert [risk_of(f, need) for f in (0, 1, 2, 4, 5)] == [1, 1, 0.5, 0, 0]
