"""Nothing of ours outlives a driver or a worker, Ray included, and the study goes on with nothing lost."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.real_engine.studies import descendants, seconds_until_gone, start, study_arguments, wait_for, write_trace

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(1200)]


MORE = ("--n-trials", "1", "--workers", "1", "--confirm", "pick")


def servers_of(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [p for p in processes if p.is_running() and "VLLM" in p.name()]


def test_a_killed_driver_and_a_killed_worker(  # cases PROC-01, PROC-04
    tmp_path: Path, tiny_model: Path, vllm_python: str
) -> None:
    """First the driver, while its server works; then, resumed, the Ray worker: the study still ends with its trial, its
    pick measured again on other traffic, at other rates and as text."""
    write_trace(tmp_path / "light.csv")
    arguments = study_arguments(tiny_model, vllm_python, Path("light.csv"), *MORE)
    driver = start(tmp_path, "optimizer.run", *arguments)
    events = tmp_path / "studies/s/events.jsonl"
    wait_for('"RunFinished"', events, driver)
    ours = descendants(driver)
    assert servers_of(ours) and [p for p in ours if "raylet" in p.name()]
    driver.kill()
    driver.wait()
    print(f"after SIGKILL of the driver all {len(ours)} processes were gone in {seconds_until_gone(ours):.1f} s")
    kept = {p.name for p in (tmp_path / "studies/s/runs").iterdir()}

    driver = start(tmp_path, "optimizer.run", *arguments, "--resume")
    wait_for('"TrialStarted"', events, driver, timeout_s=500)
    worker = next(p for p in descendants(driver) if "SlotWorker" in " ".join(p.cmdline()) or "SlotWorker" in p.name())
    below = worker.children(recursive=True)
    os.kill(worker.pid, signal.SIGKILL)
    print(f"after SIGKILL of the worker its {len(below)} processes were gone in {seconds_until_gone(below):.1f} s")
    assert driver.wait(timeout=600) == 0, (tmp_path / "out.txt").read_text()[-2000:] + (
        tmp_path / "err.txt"
    ).read_text()
    assert kept <= {p.name for p in (tmp_path / "studies/s/runs").iterdir()}, "what was recorded is kept"
    finished = [json.loads(line) for line in events.read_text().splitlines() if '"TrialFinished"' in line]
    assert sorted(e["trial"] for e in finished) == [0] and {e["state"] for e in finished} == {"measured"}
    out = (tmp_path / "out.txt").read_text()
    assert "the picks as text, through the chat endpoint" in out
    (member,) = json.loads((tmp_path / "studies/s/front/front.json").read_text())["members"]
    assert member["is_confirmed"] or member["note"]
