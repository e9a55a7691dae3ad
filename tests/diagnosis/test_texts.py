"""Short logs of many versions and machines: kind, phase, blame, and advice that can help."""

from __future__ import annotations

from pathlib import Path

import pytest

from optimizer.cli import run_main
from optimizer.diagnose import main
from optimizer.diagnosis.failure import judge
from tests.diagnosis.texts import HEALTHY, MACHINE, MEMORY, OTHER, REFUSED, WRAPPED, Text


@pytest.mark.parametrize("text", (rows := {**MEMORY, **MACHINE, **REFUSED}).values(), ids=rows.keys())
def test_what_failed(text: Text) -> None:
    verdict = judge(text.log)
    assert verdict is not None and text.kinds is not None
    assert verdict.kind in text.kinds and verdict.config_fault == text.is_config_fault
    assert text.phase is None or verdict.phase == text.phase
    advice = " ".join(verdict.advice)
    assert [w for w in text.words if w not in f"{verdict.cause} {advice}"] == []
    assert advice and [w for w in text.not_advised if w in advice] == []


@pytest.mark.parametrize("text", HEALTHY.values(), ids=HEALTHY.keys())
def test_nothing_failed(text: Text) -> None:
    assert judge(text.log) is None


@pytest.mark.parametrize("log", WRAPPED.values(), ids=WRAPPED.keys())
def test_whatever_the_log_went_through(log: str) -> None:
    verdict = judge(log)
    assert verdict is not None and verdict.kind == "kv_capacity" and verdict.bounds["max_num_seqs_at_most"] == 310


@pytest.mark.parametrize("engine", OTHER)
def test_another_engines_log_is_refused(engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.log"
    path.write_text(OTHER[engine])
    assert run_main(main, ["--log", str(path)]) == 2
    assert f"is a log of {engine}; only vLLM's" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"), [("preemptions of V0", "51 preemptions"), ("preemptions in the statistics", "12 preemptions")]
)
def test_preemptions_are_told_as_no_failure(
    name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # case PRE-01
    path = tmp_path / "x.log"
    path.write_text(HEALTHY[name].log)
    assert run_main(main, ["--log", str(path)]) == 0
    out = capsys.readouterr().out
    assert "nothing failed" in out and words in out and "no out-of-memory" in out


def test_kernels_compiled_while_serving_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # case DIAG-04
    path = tmp_path / "x.log"
    path.write_text(
        "(Worker_TP0 pid=74) WARNING 11-29 10:00:00 [jit_monitor.py:103] Triton kernel JIT compilation during inference:"
        " _gumbel_sample_kernel. This causes a latency spike; consider extending warmup to cover this shape/config.\n"
    )
    assert run_main(main, ["--log", str(path)]) == 0
    assert "_gumbel_sample_kernel" in capsys.readouterr().out
