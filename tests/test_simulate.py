"""`optimizer.simulate`: one configuration from a command line to its figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from optimizer.engines.simulator.steps import read_steps
from optimizer.errors import UserError
from optimizer.reporting.simulated import sparkline
from optimizer.simulate import main

BASE = ["--model", "Llama-3.1-8B", "--gpu", "A100-80", "--trace", "azure-conv", "--requests", "120"]


def answer(capsys: pytest.CaptureFixture[str], *more: str, code: int = 0) -> str:
    assert main([*BASE, *more]) == code
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *more: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer(capsys, "--json", *more, code=code))
    return found


def test_the_text_says_what_it_is_and_what_it_stands_on(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys)
    assert text.startswith("SIMULATED, not measured: ")
    assert "UNCALIBRATED: step times are a roofline" in text
    for part in ("P50", "P90", "P99", "time to first token, ms", "inter-token latency, ms", "output tokens/s/GPU"):
        assert part in text
    for part in ("preemptions per request", "prefix hit share", "KV usage", "waiting", "  - weights", "  KV = 0.92 x"):
        assert part in text


def test_a_card_without_kernel_data_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "UNCALIBRATED card: no kernel of L4-24 was measured" in answer(capsys, "--gpu", "L4-24")


def test_json_has_what_the_text_has(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys)
    assert found["simulated"] is True
    assert found["feasible"] is True
    assert found["warnings"]
    metrics = found["metrics"]
    for name in ("ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms", "itl_p50_ms", "itl_p90_ms", "itl_p99_ms"):
        assert metrics[f"steady_{name}"] > 0
    assert metrics["steady_finished_requests"] == found["n_requests"] == 120
    series = found["over_time"]["server"]
    assert {len(v) for v in series.values()} == {len(series["time_s"])}
    assert max(series["kv_usage"]) == metrics["steady_kv_usage_max"]
    server = found["instances"]["server"]
    assert server["predicted_kv_tokens"]["low"] < server["predicted_kv_tokens"]["high"]


def test_given_blocks_are_the_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "--kv-blocks", "900")
    assert found["kv_blocks"] == {"server": 900}
    assert "900 blocks, 14,400 tokens (given with --kv-blocks)" in answer(capsys, "--kv-blocks", "900")


def test_fewer_blocks_fill_up_and_preempt(capsys: pytest.CaptureFixture[str]) -> None:
    wide, narrow = as_json(capsys), as_json(capsys, "--kv-blocks", "700", "--set", "max_model_len=8192")
    assert narrow["metrics"]["steady_kv_usage_mean"] > wide["metrics"]["steady_kv_usage_mean"]
    assert narrow["metrics"]["steady_waiting_max"] > wide["metrics"]["steady_waiting_max"]


def test_a_configuration_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text("model: Qwen/Qwen3-14B\nmax-num-seqs: 8\nmax-model-len: 8192\nport: 8000\n")
    assert main(["--gpu", "A100-80", "--trace", "azure-conv", "--requests", "50", "--json", "--config",
                 str(tmp_path / "serve.yaml"), "--set", "max_num_batched_tokens=512"]) == 0  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert found["model"].endswith("Qwen3-14B")
    assert found["instances"]["server"]["arguments"] == {
        "max_num_seqs": 8,
        "max_model_len": 8192,
        "max_num_batched_tokens": 512,
    }
    assert max(found["over_time"]["server"]["running"]) <= 8


def test_two_servers_on_one_card(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("chat", "code"):
        (tmp_path / f"{name}.yaml").write_text("max-model-len: 16384\nkv-cache-memory-bytes: 8G\n")
    command = ["--model", "Llama-3.1-8B", "--gpu", "A100-80", "--requests", "60", "--json", "--sharing", "mps"]
    for name in ("chat", "code"):
        command += [
            "--trace",
            f"{name}=azure-{name.replace('chat', 'conv')}",
            "--config",
            f"{name}={tmp_path / name}.yaml",
        ]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sharing"] == "mps"
    assert set(found["over_time"]) == {"chat", "code"}
    assert found["metrics"]["chat:steady_ttft_p99_ms"] > 0


def test_a_step_log_for_whoever_asks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    found = as_json(capsys, "--step-log", str(path))
    assert found["step_logs"] == {"server": str(path)}
    steps = read_steps(path)
    assert sum(s.n_sampled or 0 for s in steps) > 0
    assert steps[-1].end_s == pytest.approx(found["simulated_s"], abs=0.01)


@pytest.mark.parametrize("load", ["saturation", "stress"])
def test_other_loads(capsys: pytest.CaptureFixture[str], load: str) -> None:
    found = as_json(capsys, "--load", load)
    assert found["load"] == load
    assert found["metrics"][f"{load}_output_tokens_per_s_per_gpu"] > 0


def test_a_rate_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert as_json(capsys, "--rate", "2")["offered_per_s"] == pytest.approx(2, rel=0.06)


def test_what_does_not_boot_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    text = answer(capsys, "--set", "max_model_len=131072", "--gpu", "RTX-4090-24", code=1)
    assert "REFUSED at kv_alloc (kv_capacity)" in text
    assert "  - weights" in text
    found = as_json(capsys, "--set", "max_model_len=131072", "--gpu", "RTX-4090-24", code=1)
    assert found["feasible"] is False
    assert found["failure"]["kind"] == "kv_capacity"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--gpu", "A100-81"], "--gpu: unknown GPU 'A100-81'; did you mean A100-80"),
        (["--model", "Llama-3.1-9B"], "--model: unknown model"),
        (["--trace", "nope.csv"], "given twice"),
        (["--set", "max_num_seq=4"], "--set max_num_seq: vLLM 0.32 has no such argument; did you mean max_num_seqs?"),
        (["--set", "max_num_seqs=many"], "--set max_num_seqs: 'many' is not allowed"),
        (["--set", "chat.max_num_seqs=4"], "--set chat.max_num_seqs: no such server"),
        (["--set", "api_key=abcdef"], "--set: api_key looks like a secret"),
        (["--config", "nope.yaml"], "nope.yaml: cannot be read"),
        (["--config", "chat=nope.yaml", "--config", "other.yaml"], "name every server's file"),
        (["--kv-blocks", "1"], "--kv-blocks 1: give at least 2"),
        (["--rate", "nan"], "--rate nan: give requests per second"),
        (["--rate", "2", "--load", "saturation"], "--rate: in saturation"),
        (["--noise", "-1"], "--noise -1: give a scale"),
        (["--time-limit", "0"], "--time-limit 0: give seconds, above 0"),
        (["--step-log", "/nowhere/at/all.jsonl"], "step log /nowhere/at/all.jsonl: No such file or directory"),
        (["--step-log", ""], "--step-log: the file's name is empty"),
        (["--requests", "0"], "--requests 0: give at least 1"),
    ],
)
def test_bad_input_is_one_line(more: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        main([*BASE, *more])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_sparkline_keeps_peaks_and_the_scale() -> None:
    assert sparkline([0, 1, 2, 3], [0, 1, 0.5, 0], 1.0) == "▁█▅▁"
    assert sparkline([0, 1], [0, 0]) == "▁▁"
    assert sparkline([5.0], [3.0]) == "█"
    times = [i / 10 for i in range(1000)]
    values = [1.0 if i == 437 else 0.0 for i in range(1000)]
    line = sparkline(times, values)
    assert len(line) == 60
    assert line.count("█") == 1
