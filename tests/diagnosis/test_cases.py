"""The public cases that a log judges, by their own texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from optimizer.diagnosis.failure import Circumstances, Verdict, judge
from optimizer.diagnosis.memory_trend import judge_memory

CASES = {
    row["id"]: row["inputs"]
    for row in map(json.loads, (Path(__file__).parents[1] / "cases" / "open.jsonl").read_text().splitlines())
}
GIB = 2**30


def text(case: str, key: str = "log") -> str:
    found = CASES[case][key]
    return found if isinstance(found, str) else "\n".join(found)


def judged(log: str, **given: Any) -> Verdict:
    verdict = judge(log, Circumstances(**given))
    assert verdict is not None
    return verdict


def summary(verdict: Verdict) -> tuple[str, str | None, bool]:
    return verdict.kind, verdict.phase, verdict.config_fault


def test_weights_are_not_helped_by_a_lower_utilization() -> None:  # case OOM-01
    verdict = judged(text("OOM-01"))
    assert summary(verdict) == ("weights", "load", True)
    advice = " ".join(verdict.advice)
    assert "gpu_memory_utilization" not in advice
    assert "quantised" in advice and "tensor_parallel_size" in advice and "cpu_offload_gb" in advice
    assert "skip every other configuration" in advice


def test_no_kv_gives_the_smallest_utilization() -> None:  # case OOM-03
    arguments = {"gpu_memory_utilization": 0.4}
    verdict = judged(text("OOM-03"), device_memory_bytes=80 * GIB, arguments=arguments)
    assert summary(verdict) == ("kv_capacity", "kv_alloc", True)
    assert verdict.bounds["kv_deficit_bytes"] == pytest.approx(1.24 * GIB, abs=1)
    assert verdict.bounds["gpu_memory_utilization_at_least"] == pytest.approx(0.4 + 1.24 / 80 + 0.01, abs=0.002)
    assert (
        verdict.advice[0]
        == f"raise gpu_memory_utilization to at least {verdict.bounds['gpu_memory_utilization_at_least']:.3f}"
    )
    short = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."
    assert summary(judged(short)) == ("kv_capacity", "kv_alloc", True)
    assert "1.24 GiB" in judged(text("OOM-03")).advice[0]


@pytest.mark.parametrize(
    "said",
    [
        "WARNING 11-29 10:00:05 [autotuner.py:1] skipped: GPU 0 has a total capacity of 80.00 GiB",
        "INFO 11-29 10:00:05 [w.py:1] Free memory on device cuda:0 (78.60/80.00 GiB) on startup.",
        "INFO 05-01 12:00:00 worker.py:267] the current vLLM instance can use total_gpu_memory (80.00GiB) x "
        "gpu_memory_utilization (0.40) = 32.00GiB",
    ],
)
def test_no_kv_reads_the_cards_size_from_the_log(said: str) -> None:  # case OOM-03
    verdict = judged(f"{said}\n{text('OOM-03')}", arguments={"gpu_memory_utilization": 0.4})
    assert verdict.bounds["total_bytes"] == 80 * GIB
    assert verdict.bounds["gpu_memory_utilization_at_least"] == pytest.approx(0.4 + 1.24 / 80 + 0.01, abs=0.002)
    given = judged(f"{said}\n{text('OOM-03')}", device_memory_bytes=40 * GIB)
    assert given.bounds["total_bytes"] == 40 * GIB


@pytest.mark.parametrize(("key", "most"), [("log_old", 43328), ("log_new", 74688)])
def test_a_request_too_long_for_the_cache(key: str, most: int) -> None:  # case OOM-05
    needed = CASES["OOM-05"]["workload_max_total_tokens"]
    verdict = judged(text("OOM-05", key), workload_max_tokens=needed)
    assert summary(verdict) == ("kv_capacity", "kv_alloc", True)
    assert verdict.bounds["max_model_len_at_most"] == most
    assert f"between {needed} (the workload's longest request) and {most}" in verdict.advice[0]
    assert "no request of this workload is affected" in verdict.advice[0]
    assert "infeasible for this workload" in judged(text("OOM-05", key), workload_max_tokens=most + 1).advice[0]


def test_the_sampler_warm_up() -> None:  # case OOM-07
    verdict = judged(text("OOM-07"))
    assert summary(verdict) == ("runtime_peak", "warmup", True)
    assert "max_num_seqs" in verdict.advice[0]
    assert verdict.bounds["max_num_seqs_at_most"] == 1023


def test_graph_capture_is_told_by_its_frame() -> None:  # case OOM-09
    verdict = judged(text("OOM-09"), arguments={"gpu_memory_utilization": 0.98})
    assert summary(verdict) == ("runtime_peak", "graph_capture", True)
    assert "0.96" in verdict.advice[0]
    assert [n for n, line in enumerate(verdict.advice) if "enforce_eager" in line] == [len(verdict.advice) - 1]
    assert "latency" in verdict.advice[-1]
    assert any("cudagraph_capture_sizes" in a for a in verdict.advice)
    assert any("kv_cache_memory_bytes" in a for a in verdict.advice)


def test_a_peak_while_serving_keeps_headroom_and_sizes() -> None:  # cases OOM-11, OOM-13
    verdict = judged(text("OOM-11"), in_flight=((6500, 120), (300, 40)))
    assert summary(verdict) == ("runtime_peak", "serving", True)
    assert verdict.bounds["free_bytes"] == pytest.approx(21.75 * 2**20, abs=1)
    assert verdict.bounds["tried_to_allocate_bytes"] == 50 * 2**20
    assert "in flight: 2 requests, 6960 tokens, the longest 6500 + 120" in verdict.evidence


@pytest.mark.parametrize(
    ("used_gib", "is_steady"),
    [
        (CASES["OOM-15"]["gpu_mem_used_gib_every_min"], False),
        ([70.1] * 10, True),
        ([70.1, 70.9, 70.1, 70.9, 70.1, 70.9, 70.1, 70.9, 70.1, 70.9], True),
    ],
)
def test_memory_that_creeps(used_gib: list[float], is_steady: bool) -> None:  # case OOM-15
    trend = judge_memory([(60.0 * n, g * GIB) for n, g in enumerate(used_gib)], 80 * GIB)
    assert (trend is None) == is_steady
    if trend is not None:
        assert trend.text == "not steady: about +0.2 GiB/min, OOM in ~42 min at this rate"


def test_the_earliest_cause_over_all_processes() -> None:  # case OOM-16
    verdict = judged(text("OOM-16", "log_tail"), exit_code=1)
    assert summary(verdict) == ("runtime_peak", "warmup", True)
    assert "sampler" in verdict.cause and "Worker_TP1" in verdict.cause
    assert "exit code" not in verdict.cause and "initialization failed" not in verdict.cause


def test_rays_memory_monitor() -> None:  # case OOM-18
    assert summary(judged(text("OOM-18"))) == ("host_ram", None, False)
    given: Mapping[str, Any] = {"exit_code": CASES["OOM-18"]["vllm_exit_code"], "extra_logs": text("OOM-18")}
    verdict = judged("INFO 11-29 10:00:00 [gpu_model_runner.py:1595] Starting to load model m...", **given)
    assert summary(verdict) == ("host_ram", "load", False)
    assert "fewer servers at once" in verdict.advice[0]


def test_shared_memory_of_the_host() -> None:  # case OOM-19
    verdict = judged("RuntimeError: Insufficient space in /dev/shm for shared-memory allocation: 160 MiB required")
    assert verdict.kind == "host_ram" and not verdict.config_fault
    assert any("/dev/shm" in line for line in verdict.advice)


def test_state_blocks_bound_the_sequences() -> None:  # case OOM-21
    verdict = judged(text("OOM-21"))
    assert summary(verdict) == ("kv_capacity", "kv_alloc", True)
    assert verdict.bounds["max_num_seqs_at_most"] == 614
    assert verdict.violation == pytest.approx(1 - 614 / 1024)
    assert "614" in verdict.advice[0]


def test_a_neighbour_and_an_orphan_are_told_apart() -> None:  # cases OOM-22, PROC-01
    process = CASES["OOM-22"]["nvidia_smi_processes"][0]
    given = {"foreign_pids": (process["pid"],), "foreign_bytes": {process["pid"]: process["mib"] * 2**20}}
    neighbour = judged(text("OOM-22"), **given)
    assert summary(neighbour) == ("neighbour", "load", False)
    assert "pid 4321: 68000 MiB" in neighbour.cause
    orphan = judged(text("OOM-22"), **given, own_former_pids=(process["pid"],))
    assert summary(orphan) == ("orphan", "load", False)
    assert judged(text("OOM-22")).kind == "neighbour"


def test_a_failure_while_a_neighbour_started_is_a_race() -> None:  # case MULTI-01
    verdict = judged(text("OOM-03"), neighbour_starting=True)
    assert (verdict.kind, verdict.config_fault) == ("profiling_race", False)
    assert "one after another" in verdict.advice[0]


def test_memory_given_back_while_profiling() -> None:  # case MULTI-02
    verdict = judged(text("MULTI-02"), previous_trial_ended_s_ago=CASES["MULTI-02"]["previous_trial_ended_s_ago"])
    assert (verdict.kind, verdict.config_fault) == ("profiling_race", False)


def test_a_port_is_never_the_configurations_fault() -> None:  # case MULTI-06
    assert (judged(text("MULTI-06")).kind, judged(text("MULTI-06")).config_fault) == ("port", False)


def test_a_frozen_engine_is_a_hang() -> None:  # case DIAG-16
    lines = CASES["DIAG-16"]["log_every_10s"] * (CASES["DIAG-16"]["duration_s"] // 10)
    assert judged("\n".join(lines)).kind == "hang"
    assert summary(judged("", hang_s=120.0, was_ready=True)) == ("hang", "serving", False)


STATISTICS = CASES["DIAG-16"]["log_every_10s"][0]


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "(APIServer pid=9) INFO 11-29 10:{m:02d}:{s:02d} [loggers.py:335] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg {}",
        '2026-11-29T10:{m:02d}:{s:02d}Z {}\nINFO:     127.0.0.1:4000 - "GET /health HTTP/1.1" 200 OK',
    ],
)
def test_statistics_that_stand_still_for_two_minutes_are_a_hang(line: str) -> None:  # case DIAG-16
    lines = [line.format(STATISTICS, m=n // 6, s=n % 6 * 10) for n in range(12)]
    assert summary(judged("\n".join(lines))) == ("hang", "serving", False)
    assert judge("\n".join(lines[:3])) is None


def test_statistics_that_come_rarely_are_judged_by_their_times() -> None:  # case DIAG-16
    lines = [f"INFO 11-29 10:{n:02d}:00 [loggers.py:335] {STATISTICS}" for n in range(3)]
    assert judged("\n".join(lines)).kind == "hang"
    assert judge("\n".join(lines[:1])) is None


def test_compilation_while_serving_is_no_failure() -> None:  # case DIAG-04
    assert judge(text("DIAG-04")) is None


def test_preemption_is_no_failure_and_is_not_read_from_logs() -> None:  # case PRE-01
    line = "WARNING 05-01 12:00:00 scheduler.py:1057] Sequence group 5 is preempted by PreemptionMode.RECOMPUTE mode"
    assert judge(line) is None


@pytest.mark.parametrize("flag", CASES["PRE-05"]["study_parameters"])
def test_flags_of_other_versions(flag: str) -> None:  # case PRE-05
    verdict = judged(f"vllm: error: unrecognized arguments: --{flag.replace('_', '-')} 1")
    assert summary(verdict) == ("version", "config", True)
    assert ("yet" in verdict.cause) == (flag == "watermark")


def test_a_mig_uuid_that_vllm_does_not_take() -> None:  # case GPU-01
    log = (
        "ValueError: invalid literal for int() with base 10: 'MIG-2222'\n"
        "ValueError: Model architectures ['LlamaForCausalLM'] failed to be inspected. Please check the logs for more details."
    )
    verdict = judged(log)
    assert (verdict.kind, verdict.config_fault) == ("version", False)
    assert "MIG UUID" in verdict.cause


def test_no_gpu_in_sight() -> None:  # case RAY-01
    verdict = judged("RuntimeError: No CUDA GPUs are available")
    assert not verdict.config_fault and "CUDA_VISIBLE_DEVICES" in verdict.cause


def test_a_missing_tokenizer_is_said_so() -> None:  # case MODEL-01
    verdict = judged("OSError: No tokenizer file found in directory: /models/m")
    assert verdict.kind == "model_missing" and "--tokenizer" in verdict.advice[0]


def test_a_server_that_ends_early_gives_its_own_line() -> None:  # case TOOL-15
    verdict = judged("(Worker pid=3) ERROR 11-29 10:00:10 [x.py:1] KeyError: 'layers.0.mlp.w13'\n", exit_code=1)
    assert verdict.kind == "unknown" and "layers.0.mlp.w13" in verdict.cause
