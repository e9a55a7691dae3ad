"""A whole study on real vLLM, through the command line: a measured front, exported, validated on fresh servers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.real_engine.studies import run, study_arguments, write_trace

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("study")
    write_trace(made / "light.csv")
    return made


@pytest.fixture(scope="module")
def done(folder: Path, tiny_model: Path, vllm_python: str) -> subprocess.CompletedProcess[str]:
    """One study for the whole module: a few trials. What comes after a search, `test_study_killed` shows."""
    more = ("--n-trials", "3", "--workers", "0", "--confirm", "none")
    arguments = study_arguments(tiny_model, vllm_python, Path("light.csv"), *more)
    return run(folder, "optimizer.run", *arguments, timeout_s=1200)


def test_it_ends_with_a_measured_front(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-3000:] + done.stderr
    assert "measuring on this machine's CPU with vLLM 0.32" in done.stdout
    assert "SIMULATED" not in done.stdout.upper().replace("NOT SIMULATED", "")
    front = json.loads((folder / "studies/s/front/front.json").read_text())
    assert front["meta"]["is_simulated"] is False and front["meta"]["engine"].startswith("vLLM 0.32")
    assert front["members"]
    assert sorted(t["trial"] for t in [*front["members"], *front["others"]]) == [0, 1, 2]


def test_its_tails_say_what_they_are(done: subprocess.CompletedProcess[str]) -> None:
    assert "max of 60" in done.stdout and "its figures decide nothing" in done.stdout


def test_every_trial_is_recorded_with_what_ran(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    run_0 = folder / "studies/s/trials/0001/run-0"
    outcome = json.loads((run_0 / "outcome.json").read_text())
    server = outcome["boot"]["facts"]["servers"]["server"]
    asked = outcome["about"]["parameters"]
    assert server["resolved"]["scheduler_config"]["max_num_seqs"] == asked["max_num_seqs"]
    assert server["resolved"]["cache_config"]["kv_cache_memory_bytes"] == asked["kv_cache_memory_bytes"]
    assert server["versions"]["vllm"].startswith("0.32") and outcome["boot"]["kv_tokens"]["server"] > 0
    assert set(outcome["engine_seconds"]) >= {"boot", "steady", "stress", "saturation"}
    assert "Application startup complete" in (run_0 / "server.log").read_text()
    spent = outcome["engine_seconds"]
    assert outcome["wall_s"] - sum(spent.values()) < 3, spent


def test_a_pick_is_validated_on_fresh_servers_and_other_traffic(
    done: subprocess.CompletedProcess[str], folder: Path
) -> None:
    again = run(
        folder, "optimizer.validate", "s", "--pick", "knee", "--repeats", "1", "--trace", "held-out", "--json",
        timeout_s=900,
    )  # fmt: skip
    assert again.returncode in (0, 1), again.stderr
    verdict = json.loads(again.stdout)
    assert verdict["again"]["values"] and verdict["other_member"]["values"] and verdict["other_reference"]["values"]
    assert verdict["is_inside_noise"] is (again.returncode == 0) or verdict["gain_persists"] is False
    assert (folder / "studies/s/validations/000.json").exists()


def test_the_simulator_learns_from_it(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    """One factor cannot please every figure: some is nearer afterwards. Three smoke trials prove no more."""
    learned = run(folder, "optimizer.calibrate", "s", "--json", timeout_s=300)
    assert learned.returncode == 0, learned.stderr
    found = json.loads(learned.stdout)
    assert found["gpu"] == "CPU"
    assert found["learned_from"] in ("2 trials of study s", "3 trials of study s"), "a busy machine may cost one"
    errors = found["errors"]["1"]
    before, after = ({figure: e["median"] for figure, e in errors[when].items()} for when in ("before", "after"))
    assert {"TPOT", "TTFT"} <= set(before) and before.keys() == after.keys()
    assert any(after[figure] <= before[figure] for figure in before), errors
    assert json.loads((folder / "s.calibration.json").read_text())["residuals"] == found["residuals"]
