"""The main job on local Ray workers: the same study, nothing left running, whatever ends it."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.integration.conftest import child
from tests.integration.test_interruption import check_whole, start, wait_for

pytestmark = pytest.mark.ray

ON_RAY = ("--profile", "small.yaml", "--study", "s", "--n-trials", "8", "--workers", "2")


def family(pid: int) -> list[psutil.Process]:
    """The process, its children, and what Ray starts apart from them."""
    driver = psutil.Process(pid)
    return [driver, *driver.children(recursive=True)]


def assert_gone(processes: list[psutil.Process], within_s: float = 20) -> None:
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    alive = [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]
    assert not alive, [p.name() for p in alive]


def test_two_workers_make_the_same_kind_of_study(folder: Path) -> None:
    ran = child(folder, *ON_RAY)
    assert (ran.code, ran.err) == (0, ""), ran.err
    check_whole(ran, 8)
    workers = {t.attributes["worker"] for t in ran.trials("s")}
    assert len(workers) == 2, workers
    assert [m["label"] for m in ran.members("s")[:2]] == ["vLLM defaults", "safe"]
    assert ran.front("s")["members"] and "exported: studies/s/front" in ran.out
    assert [e["n_done"] for e in ran.events("s") if e["event"] == "TrialFinished"] == list(range(1, 9))


def test_ctrl_c_ends_ray_too_and_the_study_goes_on_inline(folder: Path) -> None:
    process = start(folder, *ON_RAY)
    wait_for(process, "[2/8]")
    processes = family(process.pid)
    assert len(processes) > 3, "Ray runs beside the driver"
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip().startswith("interrupted; nothing recorded is lost, go on with: ") and "\n" not in err.strip()
    assert time.monotonic() - begin < 30
    assert_gone(processes)
    ran = child(folder, *ON_RAY[:-1], "0", "--resume")
    assert ran.code == 0
    check_whole(ran, 8)


def test_a_killed_driver_takes_its_ray_with_it_and_the_study_goes_on(folder: Path) -> None:
    process = start(folder, *ON_RAY)
    wait_for(process, "[3/8]")
    processes = family(process.pid)
    process.kill()
    process.communicate(timeout=60)
    assert_gone(processes, within_s=40)
    ran = child(folder, *ON_RAY[:-1], "0", "--resume")
    assert ran.code == 0, ran.err
    check_whole(ran, 8)
