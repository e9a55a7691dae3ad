"""`--metrics-port`: a study is scraped while it runs; a port that cannot be had is refused before anything starts."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

from tests.integration.conftest import SMALL, Run
from tests.integration.test_interruption import start, wait_for


def test_a_running_study_is_scraped(folder: Path) -> None:
    process = start(folder, *SMALL, "--study", "s", "--n-trials", "8", "--metrics-port", "0")
    url = wait_for(process, "metrics: ")[-1].removeprefix("metrics: ")
    wait_for(process, "[2/8]")
    with urllib.request.urlopen(url, timeout=30) as answer:
        page = answer.read().decode()
    _, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (0, "")
    assert 'vllm_optimizer_study_info{engine="simulator' in page and 'study="s"' in page
    done = next(float(line.split()[1]) for line in page.splitlines() if line.startswith("vllm_optimizer_trials_done "))
    assert 2 <= done <= 8
    assert 'state="running",worker="inline"' in page or 'state="idle",worker="inline"' in page


def test_a_port_that_is_taken_starts_nothing(run: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ran = run(*SMALL, "--metrics-port", str(taken.getsockname()[1]))
    assert ran.code == 2 and "--metrics-port" in ran.error and "in use" in ran.error
    assert not (ran.folder / "studies").exists()
