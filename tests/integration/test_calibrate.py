"""`--simulator-calibration`: what it changes, what it refuses; `optimizer.calibrate` on a study that is not real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from optimizer.calibrate import main
from optimizer.cli import run_main
from tests.integration.conftest import SMALL, Run


def write(path: Path, **fields: Any) -> Path:
    body = {
        "format": 1, "model": "meta-llama/Llama-3.1-8B", "gpu": "A10G-24", "engine": "vLLM 0.32.0",
        "learned_from": "3 trials of study real", "residuals": {"1": {"step": 2.0, "prefill": 1.0, "front_end_s": 0.0}},
    } | fields  # fmt: skip
    path.write_text(json.dumps(body))
    return path


def throughput(body: dict[str, Any]) -> float:
    reference = next(m for m in body["members"] + body["others"] if m["trial"] == 0)
    return float(reference["metrics"]["saturation_output_tokens_per_s_per_gpu"])


def test_steps_twice_as_long_halve_the_throughput_and_a_resume_keeps_them(run: Run, folder: Path) -> None:
    plain = run(*SMALL, "--study", "plain", "--n-trials", "2")
    meta = plain.front("plain")["meta"]
    file = write(folder / "real.json", model=meta["model"], gpu=meta["gpu"])
    slow = run(*SMALL, "--study", "slow", "--n-trials", "2", "--simulator-calibration", "real.json")
    assert slow.code in (0, 1) and "step times calibrated from 3 trials of study real" in slow.out
    ratio = throughput(slow.front("slow")) / throughput(plain.front("plain"))
    assert ratio == pytest.approx(0.5, rel=0.1)
    write(file, model=meta["model"], gpu=meta["gpu"], residuals={"1": {"step": 1.5}})
    other = run(*SMALL, "--study", "slow", "--n-trials", "2", "--simulator-calibration", "real.json", "--resume")
    assert other.code == 2 and "engine: simulator" in other.error


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gpu": "H100-80"}, "was learned on GPU 'H100-80'"),
        ({"model": "other/model", "gpu": "any"}, "was learned on model 'other/model'"),
        ({"residuals": {}}, "no residuals"),
        ({"residuals": {"1": {"step": 900}}}, "the residual step is 900"),
        ({"residuals": {"1": {"stride": 1}}}, "stride"),
        ({"format": 9}, "format 9"),
    ],
)
def test_a_calibration_that_does_not_fit_is_one_line(run: Run, folder: Path, fields: dict[str, Any], said: str) -> None:
    write(folder / "real.json", **fields)
    ran = run(*SMALL, "--simulator-calibration", "real.json")
    assert ran.code == 2 and said in ran.error and "real.json" in ran.error
    assert not (folder / "studies").exists()


def test_files_that_are_none(run: Run, folder: Path) -> None:
    assert "No such file" in run(*SMALL, "--simulator-calibration", "none.json").error
    (folder / "bad.json").write_text("{")
    assert "no calibration of the simulator" in run(*SMALL, "--simulator-calibration", "bad.json").error
    (folder / "list.json").write_text("[]")
    assert "no calibration of the simulator" in run(*SMALL, "--simulator-calibration", "list.json").error


def test_a_simulated_study_has_nothing_to_teach(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run(*SMALL, "--study", "s", "--n-trials", "2")
    assert call("s") == 2
    error = capsys.readouterr().err
    assert "was simulated" in error and len(error.strip().splitlines()) == 1
    assert call("none") == 2
    assert call("s", "--most-trials", "0") == 2


def call(*argv: str) -> int:
    return run_main(lambda _: main(list(argv)))


def test_one_simulation_uses_it_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from optimizer.simulate import main as simulate

    write(folder / "real.json", gpu="A100-40", model="meta-llama/Llama-3.1-8B")
    words = ["--model", "Llama-3.1-8B", "--gpu", "A100-40", "--trace", "azure-conv", "--requests", "60", "--json"]
    found = []
    for more in ([], ["--simulator-calibration", "real.json"]):
        assert run_main(lambda _, more=more: simulate([*words, *more])) == 0  # type: ignore[misc]
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["warnings"] and not found[1]["warnings"]
    assert found[1] != found[0]
    assert run_main(lambda _: simulate([*words, "--gpu", "H100-80", "--simulator-calibration", "real.json"])) == 2
    assert "was learned on GPU" in capsys.readouterr().err
