import csv
import io
import json
import os
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from objectives.objective import Objective
from optimizer import export
from optimizer.cli import run_main
from optimizer.deployment.current import read_current
from optimizer.reporting.front import FrontMember, FrontMeta, save_front
from search_spaces.config import Config


def main(arguments: list[str]) -> int:
    """The command as a person runs it: errors are one line and an exit code."""
    return run_main(export.main, list(arguments))


CURRENT = """model: org/m
served-model-name: [chat, chat-v2]
port: 9000
api-key: sk-PLACEHOLDER
max-num-seqs: 128
quantization: fp8
enable-log-requests: false
"""
THROUGHPUT = "saturation_output_tokens_per_s_per_gpu"
META = FrontMeta(
    study="multitenant-1",
    model="org/m",
    gpu="A100-80",
    engine="simulator 0.1.0 (vLLM 0.32 scheduler)",
    is_simulated=True,
    objectives=(
        Objective(THROUGHPUT, "maximize"),
        Objective("steady_ttft_p99_ms", "minimize"),
        Objective("steady_itl_p99_ms", "minimize"),
    ),
    workload="azure-conv",
    workload_hash="0123456789abcdef",
    rate_per_s=2.5,
    versions={"optimizer": "0.1.0", "vllm": "0.32.0"},
    noise={THROUGHPUT: 0.03},
    reference=0,
    kept=read_current(CURRENT),
)
TUNED = {
    "max_num_batched_tokens": 4096,
    "max_num_seqs": 181,
    "watermark": 0.05,
    "long_prefill_token_threshold": 1024,
    "kv_cache_memory_bytes": 13_421_772_801,
    "enable_prefix_caching": False,
    "max_model_len": 8192,
}


def single(trial: int, *values: float, **fields: object) -> FrontMember:
    config = Config({**TUNED, "max_num_seqs": 100 + trial})
    return FrontMember(trial=trial, configs={"server": config}, values=values or None, **fields)  # type: ignore[arg-type]


MEMBERS = [
    single(0, 2400.0, 800.0, 40.0, label="current"),
    single(1, violations={"boot": 0.4}, cause="weights do not fit"),
    single(42, 2450.0, 1500.0, 39.0, is_on_front=True, is_confirmed=True, picks=("throughput", "knee")),
    single(51, 2300.0, 700.0, 38.0, is_on_front=True, picks=("ttft", "itl")),
]


def study(folder: Path, members: list[FrontMember], meta: FrontMeta = META) -> list[str]:
    path = folder / "studies" / meta.study
    save_front(path / "front" / "front.json", members, meta)
    (path / "manifest.json").write_text(json.dumps({"study": meta.study}))
    return [meta.study, "--studies", str(folder / "studies")]


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    return study(tmp_path, MEMBERS)


def test_a_yaml_carries_its_values_and_where_they_come_from(one: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*one, "--pick", "knee"]) == 0
    text = capsys.readouterr().out
    assert list(yaml.safe_load(text).items())[:5] == [
        ("model", "org/m"),
        ("served-model-name", ["chat", "chat-v2"]),
        ("port", 9000),
        ("max-num-seqs", 142),
        ("no-enable-log-requests", True),
    ]
    assert read_current(text).config == MEMBERS[2].configs["server"]
    for part in (
        "study multitenant-1, trial 42, throughput, knee: on the front, confirmed by a second measurement",
        "SIMULATED, not measured on a GPU: simulator 0.1.0",
        "hash 0123456789abcdef",
        "R 2.5 requests/s",
        "optimizer 0.1.0, vllm 0.32.0",
        f"{THROUGHPUT}: 2450 (≈ +2.1 %)",
        "steady_ttft_p99_ms: 1500 (+87.5 %)",
        "against your current configuration (trial 0): a trade",
        "left out, looks like a secret: api-key",
        "in your configuration but not in what was measured, so left out: quantization fp8",
        "vllm serve --config FILE, the name that you save this under",
    ):
        assert f"# {part}" in text or part in text
    assert "PLACEHOLDER" not in text  # case EDGE-16
    assert "null" not in text


def test_unconfirmed_members_say_so(one: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    main([*one, "--pick", "itl", "--format", "command"])
    assert "NOT confirmed by a second measurement" in capsys.readouterr().out


def test_a_command_is_one_word_per_value(one: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*one, "--trial", "42", "--format", "command"]) == 0
    text = capsys.readouterr().out
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    words = shlex.split("\n".join(lines).replace("\\\n", " "))
    assert words[:3] == ["vllm", "serve", "org/m"]
    assert words[words.index("--watermark") + 1] == "0.05"
    assert "--no-enable-prefix-caching" in words
    assert read_current(text).config == MEMBERS[2].configs["server"]


def test_all_go_into_a_folder(one: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(one) == 0
    assert capsys.readouterr().out.split() == [f"multitenant-1-export/trial-{n}.yaml" for n in ("0042", "0051")]
    assert read_current(tmp_path / "multitenant-1-export" / "trial-0051.yaml").config == MEMBERS[3].configs["server"]


def test_csv_has_units_and_percentages(one: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*one, "--format", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["trial"] for row in rows] == ["42", "51"]
    assert (rows[0][THROUGHPUT], rows[0]["steady_ttft_p99_ms_change_percent"]) == ("2450.0", "87.5")
    assert (rows[0]["verdict_vs_reference"], rows[0]["is_simulated"]) == ("a trade", "true")
    assert (rows[0]["kv_cache_memory_bytes"], rows[0]["watermark"]) == ("13421772801", "0.05")


def test_json_holds_the_whole_member(one: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*one, "--format", "json", "--pick", "knee"]) == 0
    data = json.loads(capsys.readouterr().out)
    (row,) = data["members"]
    assert row["configs"]["server"] == {**TUNED, "max_num_seqs": 142}
    assert row["verdict_vs_reference"] == "a trade"
    assert data["meta"]["workload_hash"] == "0123456789abcdef" and data["others"] == []


def test_a_trial_off_the_front_is_labelled(one: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*one, "--trial", "0"]) == 0
    said = capsys.readouterr()
    assert "trial 0 is not on the front" in said.err
    assert "# study multitenant-1, trial 0, current: not on the front" in said.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trial", "7"], "--trial 7: study 'multitenant-1' has no such trial"),
        (["--trial", "1"], "--trial 1: was not measured (weights do not fit)"),
        (["--format", "csv", "--check"], "--check: vLLM reads vllm-yaml and command"),
    ],
)
def test_bad_choices_get_one_line(
    one: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main([*one, *arguments]) == 2
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1
    assert "Traceback" not in said.err


def test_an_unknown_study_names_what_there_is(one: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["multitenent-1", *one[1:]]) == 2
    assert "'multitenant-1'" in capsys.readouterr().err


def test_a_study_without_a_file_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = study(tmp_path, MEMBERS)
    (tmp_path / "studies" / "multitenant-1" / "front" / "front.json").unlink()
    assert main(arguments) == 2
    assert "no trial has ended yet" in capsys.readouterr().err


def test_nothing_feasible_says_what_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # case OPT-01
    limit, said = "stress_preemptions_per_request <= 0.1", "preemptions per request (stress) at most 0.1"
    missed = single(3, 1.0, 2.0, 3.0, violations={limit: 0.5}, metrics={"stress_preemptions_per_request": 0.15})
    arguments = study(tmp_path, [missed, MEMBERS[1]])
    assert main(arguments) == 1
    text = capsys.readouterr().out
    assert "no feasible configuration yet" in text and said in text and "50.0 %" in text
    assert main([*arguments, "--trial", "3"]) == 0  # measured, so it can still be taken
    assert f"not on the front, misses {said}" in capsys.readouterr().out


def several() -> FrontMember:
    configs = {
        "chat": Config({**TUNED, "kv_cache_memory_bytes": 8_000_000_001}),
        "batch": Config({**TUNED, "kv_cache_memory_bytes": 4_000_000_003}),
    }
    return replace(single(9, 2500.0, 0.8, 0.9, is_on_front=True, picks=("knee",)), configs=configs)


def test_each_instance_gets_a_file_and_the_order_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = study(tmp_path, [several()], replace(META, sharing="mps", reference=None))
    assert main([*arguments, "--pick", "knee", "--output", "out"]) == 0
    names = ("chat.yaml", "batch.yaml", "README.txt")
    assert capsys.readouterr().out.split() == [f"out/{n}" for n in names]
    chat, batch, readme = ((tmp_path / "out" / n).read_text() for n in names)
    assert yaml.safe_load(chat)["kv-cache-memory-bytes"] == 8_000_000_001
    assert yaml.safe_load(batch)["kv-cache-memory-bytes"] == 4_000_000_003
    assert (yaml.safe_load(chat)["port"], yaml.safe_load(batch)["port"]) == (9000, 9001)
    assert yaml.safe_load(batch)["gpu-memory-utilization"] == 0.05, "else the second server would not start"
    assert readme.index("1. vllm serve --config chat.yaml") < readme.index("2. vllm serve --config batch.yaml")
    for part in ("one after another", "kv-cache-memory-bytes 4000000003", "nvidia-cuda-mps-control", "SIMULATED"):
        assert part in readme


def test_several_members_of_several_instances_get_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = study(tmp_path, [several(), replace(several(), trial=12)], replace(META, reference=None))
    assert main([*arguments, "--output", str(tmp_path / "out")]) == 0
    found = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.yaml"))
    assert found == [f"trial-{n}/{i}.yaml" for n in ("0009", "0012") for i in ("batch", "chat")]
    assert main([*arguments, "--format", "command", "--output", "-"]) == 0
    assert "# ==> trial-0012/batch.sh" in capsys.readouterr().out


def test_texts_cannot_escape_their_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # case EDGE-16
    meta = replace(META, model="org/m; rm -rf x", kept=None, workload="w\nport: 1", engine="=cmd()")
    odd = replace(several(), configs={"../a b": several().configs["chat"], "b": several().configs["batch"]})
    arguments = study(tmp_path, [odd], replace(meta, reference=None))
    assert main([*arguments, "--pick", "knee", "--output", str(tmp_path / "out")]) == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"a-b.yaml", "b.yaml", "README.txt"}
    assert yaml.safe_load((tmp_path / "out" / "b.yaml").read_text())["port"] == 8001
    assert main([*arguments, "--format", "csv"]) == 0
    assert "'=cmd()" in capsys.readouterr().out


def test_another_checkpoint_is_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    variant = replace(MEMBERS[2], configs={"server": Config({**TUNED, "model": "org/m-fp8"})})
    assert main([*study(tmp_path, [variant]), "--pick", "knee"]) == 0
    text = capsys.readouterr().out
    assert text.count("model: ") == 1 and yaml.safe_load(text)["model"] == "org/m-fp8"


def test_a_folder_that_cannot_be_written(one: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert main([*one, "--output", str(tmp_path / "file" / "x")]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.vllm
@pytest.mark.parametrize("format", ["vllm-yaml", "command"])
def test_exports_pass_vllms_own_parser(one: list[str], capsys: pytest.CaptureFixture[str], format: str) -> None:
    check = ["--check", "--vllm-python", os.environ["VLLM_PYTHON"]]
    assert main([*one, "--format", format, *check]) == 0
    assert capsys.readouterr().err.count("vLLM parses it to the values measured") == 2


def test_check_without_vllm_says_so(one: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*one, "--check", "--vllm-python", "no-such-python"]) == 3
    assert "--vllm-python no-such-python: cannot be run" in capsys.readouterr().err


def test_help_is_quick_and_light() -> None:
    start = time.monotonic()
    code = "import sys; from optimizer.export import build_parser; build_parser().format_help(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "optuna", "ray", "rich", "pandas", "yaml"} & set(done.stdout.split())
    assert time.monotonic() - start < 10  # a busy machine; the light imports are the point
