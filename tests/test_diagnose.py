"""`python -m optimizer.diagnose`, as a user runs it."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

from optimizer.cli import run_main
from optimizer.diagnose import main
from tests.diagnosis.known_logs import LOGS, known_log


def run(*argv: str) -> int:
    return run_main(main, list(argv))


def test_a_failure_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--log", str(LOGS / "gpu_kv_request.log"), "--json") == 1
    row = json.loads(capsys.readouterr().out)
    assert list(row) == ["kind", "phase", "cause", "config_fault", "evidence", "bounds", "advice", "trigger"]
    assert (row["kind"], row["phase"], row["config_fault"]) == ("kv_capacity", "kv_alloc", True)
    assert row["bounds"]["max_model_len_at_most"] == 74688


def test_a_failure_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--log", str(LOGS / "gpu_neighbour.log")) == 1
    out = capsys.readouterr().out
    assert out.startswith("neighbour (load): ")
    assert "fault: not the configuration's" in out and "free_bytes = 11.20 GiB" in out and "  1. " in out


def test_a_healthy_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--log", str(LOGS / "boot_ok.log")) == 0
    assert capsys.readouterr().out.strip().endswith("boot_ok.log: nothing failed in this log")
    assert run("--log", str(LOGS / "boot_ok.log"), "--json") == 0
    assert json.loads(capsys.readouterr().out) is None


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    data = io.TextIOWrapper(io.BytesIO(known_log("port_taken").encode()))
    monkeypatch.setattr(sys, "stdin", data)
    assert run("--log", "-") == 1
    assert capsys.readouterr().out.startswith("port (config)")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"It was a dark night.\nERROR: the dog barked; nothing else failed.\n", "no line of a vLLM server in it"),
        (b" \n\n", "no line of a vLLM server in it"),
        ("A letter, \u00e4 la carte.\n".encode("utf-32"), "no line of a vLLM server in it"),
        (b"\xff\xfe\x00\x00" + "A letter.\n".encode("utf-32-le"), "no line of a vLLM server in it"),
        (bytes(range(256)) * 40, "is no text"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (gzip.compress(b"x" * 999, mtime=0)[:20], "gzip"),
    ],
)
def test_what_is_no_log(data: bytes, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(data)
    assert run("--log", str(path)) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: --log ") and words in err and err.count("\n") == 1


def test_missing_files_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--log", str(tmp_path / "none.log")) == 2
    assert run("--log", str(tmp_path)) == 2
    assert run() == 2
    assert capsys.readouterr().err.count("\n") == 3


@pytest.mark.parametrize(
    "encode",
    [
        gzip.compress,
        lambda b: b.decode().encode("utf-16"),
        lambda b: b.decode().encode("utf-32"),
        lambda b: b"\xef\xbb\xbf" + b,
    ],
)
def test_other_encodings(encode: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(encode(known_log("gpu_profile").encode()))  # type: ignore[operator]
    assert run("--log", str(path)) == 1
    assert capsys.readouterr().out.startswith("runtime_peak (warmup)")


def test_bytes_that_are_no_utf8_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"\xff\xfe broken \x80\n" * 1 + known_log("boot_ok").encode())
    assert run("--log", str(path)) in (0, 2)
    path.write_bytes(b"caf\xe9 \x80\n" + known_log("gpu_profile").encode())
    assert run("--log", str(path)) == 1


def test_what_the_user_knows_beside_the_log(capsys: pytest.CaptureFixture[str]) -> None:  # cases OOM-03, OOM-05
    log = str(LOGS / "gpu_kv_request.log")
    assert run("--log", log, "--longest-request", "18000", "--gpu", "H100-80") == 1
    out = capsys.readouterr().out
    assert "between 18000 (the workload's longest request) and 74688: no request of this workload is affected" in out
    assert run("--log", log, "--longest-request", "80000") == 1
    assert "infeasible for this workload" in capsys.readouterr().out
    assert run("--log", log, "--longest-request", "0") == 2
    assert run("--log", log, "--gpu", "H1000") == 2
    assert "--gpu H1000: unknown GPU" in capsys.readouterr().err


def test_headroom_is_told_to_the_hundredth_of_a_mib(capsys: pytest.CaptureFixture[str]) -> None:  # case OOM-11
    assert run("--log", str(LOGS / "gpu_serving.log")) == 1
    assert "free_bytes = 21.75 MiB" in capsys.readouterr().out


def test_a_request_that_made_the_peak_is_told_to_programs(capsys: pytest.CaptureFixture[str]) -> None:  # case OOM-12
    assert run("--log", str(LOGS / "gpu_serving_prompt_logprobs.log"), "--json") == 1
    row = json.loads(capsys.readouterr().out)
    assert (row["kind"], row["trigger"]) == ("runtime_peak", "request_params")
