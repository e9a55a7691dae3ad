"""What a study's stored logs say of memory, and what follows for its later starts and for later studies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optimizer.diagnosis.vllm_log import facts_of, read_log
from optimizer.engines.engine import Instance, Placement
from optimizer.engines.simulator.calibration import SimulatorCalibration, calibration_from
from optimizer.study.device import as_started
from optimizer.study.events import Event
from optimizer.study.folder import StudyFolder
from optimizer.study.learned_bounds import LearnedBounds
from optimizer.study.starts import cannot_start, correction_text, memory_check, memory_seen, seen_in
from search_spaces.capacity import solve_capacity
from search_spaces.config import Config
from search_spaces.cpu import host_cpu
from search_spaces.hardware import GIB, find_gpu
from search_spaces.known_models import find_model
from search_spaces.memory_seen import MemorySeen
from tests.small_study import small_setup

LOGS = Path(__file__).parents[1] / "diagnosis" / "logs"
LLAMA, RTX, H100 = find_model("Llama-3.1-8B"), find_gpu("RTX-4090-24"), find_gpu("H100-80")
ASKED = {"max_num_batched_tokens": 2048, "max_num_seqs": 256, "max_model_len": 8192, "gpu_memory_utilization": 0.9}
RTX_4090 = """\
INFO 08-20 23:19:40 [api_server.py:1] vLLM API server version 0.19.0
INFO 08-20 23:20:10 [gpu_model_runner.py:1] Model loading took 14.99 GiB memory and 5.01 seconds
INFO 08-20 23:20:30 [kv_cache_utils.py:1] GPU KV cache size: 41,408 tokens
INFO 08-20 23:20:40 [gpu_model_runner.py:1] Graph capturing finished in 4 secs, took 0.34 GiB
"""
"""The recorded run's KV tokens (bench/data) in its version's words; weights and graphs are what other logs say."""


def store(root: Path, run: str, log: str, **arguments: Any) -> None:
    folder = root / run
    folder.mkdir(parents=True)
    (folder / "outcome.json").write_text(json.dumps({"about": {"parameters": {**ASKED, **arguments}}}))
    (folder / "server.log").write_text(log)


def test_the_recorded_run_is_read_from_its_log(tmp_path: Path) -> None:
    store(tmp_path, "runs/calibration-000", RTX_4090)
    (seen,) = memory_seen(tmp_path, LLAMA, RTX)
    assert not seen.are_graphs_counted, "vLLM 0.19"
    assert seen.weights_bytes == pytest.approx(14.99 * GIB) and seen.graph_bytes == pytest.approx(0.34 * GIB)
    told = replace(LLAMA, memory_seen=(seen,))
    capacity = solve_capacity(
        told, RTX, max_num_batched_tokens=2048, max_num_seqs=256, utilization=0.9, are_graphs_counted=False
    )
    assert capacity.kv_tokens.low < 41_408 < capacity.kv_tokens.high
    assert capacity.kv_tokens.likely == pytest.approx(41_408, rel=0.002)
    assert capacity.kv_tokens.high - capacity.kv_tokens.low < 2_000
    now = solve_capacity(told, RTX, max_num_batched_tokens=2048, max_num_seqs=256, utilization=0.9)
    assert now.kv_tokens.likely < 41_408 - 2_000, "since 0.21 the graphs are taken from it"


def test_a_log_of_this_version_says_weights_graphs_and_the_rest() -> None:
    facts = facts_of(read_log((LOGS / "gpu_boot_ok.log").read_text()))
    seen = seen_in(facts, {**ASKED, "gpu_memory_utilization": 0.92}, LLAMA, H100)
    assert seen is not None and seen.are_graphs_counted
    assert seen.graph_bytes == pytest.approx(0.62 * GIB), "the estimate is what was subtracted, not the 0.58 captured"
    assert seen.weights_bytes == pytest.approx(14.99 * GIB)
    assert seen.non_kv_bytes == pytest.approx(0.92 * H100.memory_bytes - 52.31 * GIB)


def test_a_start_that_failed_for_want_of_memory_tells_as_well() -> None:  # case OOM-03
    log = "(EngineCore pid=11) INFO 11-29 10:01:00 [gpu_worker.py:760] Available KV cache memory: -1.24 GiB\n"
    seen = seen_in(facts_of(read_log(log)), {**ASKED, "gpu_memory_utilization": 0.4}, LLAMA, find_gpu("A100-40"))
    assert seen is not None
    assert seen.non_kv_bytes == pytest.approx(0.4 * find_gpu("A100-40").memory_bytes + 1.24 * GIB)


@pytest.mark.parametrize(
    "arguments", [{"quantization": "fp8"}, {"cpu_offload_gb": 4}, {"enable_lora": True}, {"model": "org/other"}]
)
def test_servers_that_are_loaded_otherwise_say_nothing(arguments: dict[str, Any]) -> None:
    facts = facts_of(read_log(RTX_4090))
    assert seen_in(facts, {**ASKED, **arguments}, LLAMA, RTX) is None
    assert as_started(LLAMA, RTX, calibration((MemorySeen(2048, 256, weights_bytes=1e9),)), arguments) is LLAMA


def test_exact_kv_bytes_tell_weights_and_graphs_only() -> None:
    seen = seen_in(facts_of(read_log(RTX_4090)), {**ASKED, "kv_cache_memory_bytes": 2**30}, LLAMA, RTX)
    assert seen is not None and seen.non_kv_bytes is None and seen.weights_bytes


def test_a_cpus_start_says_nothing_of_memory_and_its_tokens_are_as_predicted() -> None:
    """Its KV bytes are given and its log counts nothing else; what can be checked is bytes a token."""
    host = host_cpu(24 * GIB, 2)
    facts = facts_of(read_log((LOGS / "boot_ok.log").read_text()))
    args = facts.non_default_args
    assert args is not None and facts.kv_tokens
    assert seen_in(facts, args, LLAMA, host) is None
    tiny = replace(LLAMA, n_layers=4, n_heads=4, n_kv_heads=2, head_dim=64, hidden=256, layer_groups=())
    assert facts.kv_tokens * tiny.kv_bytes_per_token() == args["kv_cache_memory_bytes"]


def placement(**more: Any) -> Placement:
    return Placement((Instance("server", Config({**ASKED, **more}), ("default",)),))


def test_what_cannot_start_is_ruled_out_and_what_can_is_not(tmp_path: Path) -> None:
    setup = replace(small_setup(tmp_path), model=LLAMA, gpu=RTX)
    heard: list[Event] = []
    folder = StudyFolder(tmp_path / "s")
    assert memory_check(folder, setup, heard.append) is None and not heard
    store(tmp_path / "s", "runs/calibration-000", RTX_4090)
    check = memory_check(folder, setup, heard.append)
    assert check is not None and "GiB were predicted" in str(heard[0])
    bounds = LearnedBounds(check)
    assert bounds and bounds.rules_out(placement()) is None
    assert bounds.rules_out(placement(max_num_batched_tokens=8192, gpu_memory_utilization=0.95)) is None
    refused = bounds.rules_out(placement(max_model_len=65_536))
    assert refused is not None and "one request of 65536 tokens needs" in refused
    assert bounds.rules_out(placement(kv_cache_memory_bytes=8 * GIB)) is not None
    assert cannot_start(placement(quantization="fp8", max_model_len=65_536), LLAMA, RTX, {}) is None


def test_without_a_sized_cache_there_is_nothing_to_say() -> None:
    assert correction_text(LLAMA, RTX, (MemorySeen(2048, 256, weights_bytes=16e9),)) is None


def test_damaged_or_missing_files_are_passed_over(tmp_path: Path) -> None:
    store(tmp_path, "runs/calibration-000", RTX_4090)
    (tmp_path / "runs/calibration-000/outcome.json").write_text("{")
    (tmp_path / "trials/0000/run-0").mkdir(parents=True)
    assert memory_seen(tmp_path, LLAMA, RTX) == ()


def calibration(memory: tuple[MemorySeen, ...]) -> SimulatorCalibration:
    return SimulatorCalibration(LLAMA.name, RTX.name, "vLLM 0.32.0", "3 trials of study s", {}, memory)


def test_a_calibration_carries_it_to_later_studies() -> None:
    told = calibration((MemorySeen(2048, 256, weights_bytes=1.6e10, non_kv_bytes=1.8e10),))
    again = calibration_from(json.loads(json.dumps(told.to_json())))
    assert again == told and again.fingerprint == told.fingerprint != calibration(()).fingerprint
    assert as_started(LLAMA, RTX, told, ()).memory_seen == told.memory
    with pytest.raises(ValueError, match="no residuals"):
        calibration_from(calibration(()).to_json())
