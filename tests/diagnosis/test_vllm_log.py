"""Lines, facts and progress of logs."""

from __future__ import annotations

import pytest

from optimizer.diagnosis.vllm_log import BootProgress, LogFacts, facts_of, parse_line, phase_of_boot, read_log
from tests.diagnosis.known_logs import known_log

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "process", "pid", "level", "source", "message"),
    [
        ("(EngineCore pid=7) ERROR 11-29 10:00:02 [core.py:1108] no", "EngineCore", 7, "ERROR", "core.py:1108", "no"),
        ("(Worker_TP1 pid=7) INFO 11-29 10:00:02 [a/b.py:8] x: y", "Worker_TP1", 7, "INFO", "a/b.py:8", "x: y"),
        ("(VllmWorker rank=1 pid=7) INFO 05-10 16:00:15 [a.py:8] x", "VllmWorker_1", 7, "INFO", "a.py:8", "x"),
        ("INFO 05-01 12:00:00 llm_engine.py:161] old", "", None, "INFO", "llm_engine.py:161", "old"),
        (
            "(VllmWorkerProcess pid=9) WARNING 05-01 12:00:00 a.py:1] x",
            "VllmWorkerProcess",
            9,
            "WARNING",
            "a.py:1",
            "x",
        ),
        ("(EngineCore_DP0 pid=6) (RayWorkerWrapper pid=9, ip=192.0.2.3) x", "RayWorkerWrapper", 9, "", "", "x"),
        ("[rank0]: ValueError: x", "rank0", None, "", "", "ValueError: x"),
        ("ERROR:    [Errno 98] error while", "", None, "ERROR", "", "[Errno 98] error while"),
        ("(Worker_TP1 pid=77) ERROR ... torch.X: y", "Worker_TP1", 77, "ERROR", "", "torch.X: y"),
        ("W1130 01:18:48.257000 201 torch/x.py:53] Triton", "", None, "WARNING", "torch/x.py:53", "Triton"),
        ("2024-12-19 21:40:35 ERROR 56542 [a.py:64] x", "", None, "ERROR", "a.py:64", "x"),
        (
            "/x/y.py:138: FutureWarning: RuntimeError: z",
            "",
            None,
            "WARNING",
            "",
            "/x/y.py:138: FutureWarning: RuntimeError: z",
        ),
        ("│ ERROR 09-27 06:46:46 engine.py:157] x        │", "", None, "ERROR", "engine.py:157", "x"),
        (
            "INFO 2026-11-19T20:16:36.096Z [resource.labels.containerName: vllm] (EngineCore_DP0 pid=2) ERROR 11-19 12:16:36 [core.py:8] x",
            *("EngineCore_DP0", 2, "ERROR", "core.py:8", "x"),
        ),
        ("> - 2026-06-22T20:16:34.700+00:00 ERROR 06-22 20:16:34 a.py:52] x", "", None, "ERROR", "a.py:52", "x"),
        ("2026-06-25 12:27:29.905 ValueError: x", "", None, "", "", "ValueError: x"),
        (
            "(EngineCore pid=2) [Stage-2] ERROR 02-02 18:25:19 [core.py:936] x",
            "EngineCore",
            2,
            "ERROR",
            "core.py:936",
            "x",
        ),
        ("(raylet) node_manager.cc:3069: 1 Workers", "raylet", None, "", "", "node_manager.cc:3069: 1 Workers"),
        ("a prompt about (EngineCore pid=7) ERROR", "EngineCore", 7, "", "", "ERROR"),
        (
            "INFO 11-29 10:00:02 [a.py:8] said (EngineCore pid=7) x",
            "",
            None,
            "INFO",
            "a.py:8",
            "said (EngineCore pid=7) x",
        ),
    ],
)
def test_a_line(text: str, process: str, pid: int | None, level: str, source: str, message: str) -> None:
    line = parse_line(3, text)
    assert (line.process, line.pid, line.level, line.source, line.message) == (process, pid, level, source, message)
    assert line.number == 3


def test_times_are_comparable_within_a_year() -> None:
    times = [
        parse_line(1, f"INFO {t} [a.py:1] x").time_s for t in ("02-28 23:59:59", "03-01 00:00:00", "03-01 00:01:00.5")
    ]
    assert times[0] is not None and times[1] is not None and times[2] is not None
    assert times[2] - times[1] == 60.5
    assert times[1] - times[0] == 86401  # a leap day between them: the year is unknown
    assert parse_line(1, "INFO 13-45 99:00:00 [a.py:1] x").time_s is None


def test_json_lines_are_unwrapped_with_their_traceback() -> None:
    log = '{"levelname": "ERROR", "message": "it broke", "exc_info": "Traceback (most recent call last):\\nValueError: x"}'
    assert [(line.level, line.message) for line in read_log(log)] == [
        ("ERROR", "it broke"),
        ("ERROR", "Traceback (most recent call last):"),
        ("ERROR", "ValueError: x"),
    ]


def test_facts_of_a_real_cpu_server() -> None:
    facts = facts_of(read_log(known_log("boot_ok")))
    assert (facts.vllm_version, facts.kv_tokens, facts.max_model_len, facts.init_s) == ("0.32.0", 32768, 2048, 0.03)
    assert facts.is_ready
    assert facts.non_default_args is not None and facts.non_default_args["kv_cache_memory_bytes"] == 67108864
    assert facts.kv_available_bytes == pytest.approx(0.06 * GIB)
    assert sum(facts.phases.values()) == 15 and set(facts.phases) <= {"config", "load", "kv_alloc", "warmup"}


def test_facts_of_a_gpu_server() -> None:
    facts = facts_of(read_log(known_log("gpu_boot_ok")))
    assert facts == LogFacts(
        vllm_version="0.32.0",
        kv_tokens=428512,
        kv_available_bytes=52.31 * GIB,
        model_weights_bytes=14.99 * GIB,
        graph_bytes=0.62 * GIB,
        model_weights_s=5.012345,
        compile_s=25.91,
        graph_capture_s=6.0,
        init_s=47.2,
        non_default_args={"model": "/models/m", "gpu_memory_utilization": 0.95},
        max_model_len=32768,
        device_memory_bytes=79.19 * GIB,
        gpu_memory_utilization=0.95,
        is_ready=True,
        phases=facts.phases,
    )
    assert set(facts.phases) == {"config", "load", "warmup", "kv_alloc", "graph_capture"}


def test_facts_of_an_old_server_and_of_nothing() -> None:
    facts = facts_of(read_log(known_log("v0_kv_tokens")))
    assert (facts.vllm_version, facts.kv_blocks, facts.is_ready) == ("0.6.4", 2708, False)
    assert facts_of([]) == LogFacts()


def test_arguments_that_are_no_literals_and_secrets() -> None:
    line = "INFO 11-30 01:18:48 [a.py:1] non-default args: {'port': 8000, 'kv': <Kind.A: 'a'>, 'model': 'm', 'api_key': 'sk-1'}"
    assert facts_of(read_log(line)).non_default_args == {"port": 8000, "model": "m"}


PHASES = {
    "model_len_over_derived": "config",
    "worker_killed_boot": "load",
    "gpu_weights_v2_runner": "load",
    "gpu_profile": "warmup",
    "kv_too_small": "kv_alloc",
    "gpu_graph_capture": "graph_capture",
    "boot_ok": "serving",
    "gpu_boot_ok": "serving",
}


@pytest.mark.parametrize("name", PHASES)
def test_the_phase_of_a_boot(name: str) -> None:
    assert phase_of_boot(read_log(known_log(name))) == PHASES[name]


def test_progress_is_what_moves() -> None:
    progress = BootProgress()
    bar = "Loading safetensors checkpoint shards:  {}% Completed | {}/4 [00:02<00:02,  1.01s/it]"
    assert progress.feed(bar.format(25, 1)) and progress.phase == "load"
    assert not progress.feed(bar.format(25, 1))
    assert progress.feed(bar.format(50, 2))
    assert not progress.feed("(APIServer pid=1) INFO 11-30 01:18:48 [a.py:1] still waiting for the engine")
    assert not progress.feed("(EngineCore pid=1) ERROR 11-30 01:18:48 [a.py:1] Starting to load model failed")
    assert progress.feed("Capturing CUDA graphs (decode, FULL):  24%|##3    | 12/51 [00:01<00:03, 11.20it/s]")
    assert (progress.phase, progress.is_ready, progress.n_steps) == ("graph_capture", False, 3)
    assert progress.feed("INFO:     Application startup complete.") and progress.is_ready
    assert not progress.feed("Generating:  24%|##3    | 12/51 [00:01<00:03, 11.20it/s]")
    assert progress.phase == "serving"
