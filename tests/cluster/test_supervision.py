"""However a driver dies, no process and no directory of its local Ray is left. Real Ray, real signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from optimizer.cluster.supervision import LocalRay, daemon_environment, short_temp_dir, sweep_leftovers
from optimizer.identity import ROOT
from optimizer.processes import end_all, is_alive, session_of, wait_until_ended

pytestmark = [pytest.mark.ray, pytest.mark.slow]

GONE_WITHIN_S = 30.0

DRIVER = textwrap.dedent("""
    import subprocess, sys, threading, time
    sys.path.insert(0, {root!r})
    from optimizer.cluster.connection import connect
    from optimizer.cluster.supervision import LocalRay, local_environment

    with local_environment():
        local = LocalRay(2)
        print(local._supervisor.pid, flush=True)
        address = local.address(90)
        joining = threading.Thread(target=connect, args=(address, "test"))
        joining.start()
        joining.join()
        import ray

        class Server:
            def open_session(self):
                return subprocess.Popen(["sleep", "600"], start_new_session=True).pid

            def hang(self):
                time.sleep(600)

        workers = [ray.remote(num_cpus=1)(Server).remote() for _ in range(2)]
        print(*ray.get([w.open_session.remote() for w in workers]), flush=True)
        try:
            ray.get([w.hang.remote() for w in workers])
        except KeyboardInterrupt:
            ray.shutdown()
            local.close()
            print("closed", flush=True)
""")


class Driver:
    """A process that starts a local Ray and two workers, each with a server in a session of its own."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", DRIVER.format(root=str(ROOT))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.supervisor = psutil.Process(int(self.line()))
        self.tree: set[psutil.Process] = {self.supervisor}

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr and self.process.stderr.read()
        return line.strip()

    def await_servers(self) -> None:
        servers = [psutil.Process(int(pid)) for pid in self.line().split()]
        self.tree |= {*session_of(self.supervisor.pid), *servers}
        names = " ".join(p.name() for p in self.tree)
        assert "gcs_server" in names and "raylet" in names and names.count("sleep") == 2

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        end_all(lambda: self.tree, 5)


@pytest.fixture
def driver(no_directory_stays: None) -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


@pytest.fixture(autouse=True)
def no_directory_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A temporary folder of our own, so that another Ray on this machine is neither seen nor swept."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as own:
        monkeypatch.setenv("TMPDIR", own)
        monkeypatch.setattr(tempfile, "tempdir", own)
        assert short_temp_dir() == own
        yield
        assert list(Path(own).glob("vco-ray-*")) == []


def test_after_a_sigkill_of_the_driver_nothing_lives(driver: Driver) -> None:  # case PROC-04
    driver.await_servers()
    start_s = time.monotonic()
    driver.process.kill()
    assert wait_until_ended(lambda: driver.tree, GONE_WITHIN_S), [p for p in driver.tree if is_alive(p)]
    print(f"gone after {time.monotonic() - start_s:.1f} s")


def test_a_driver_killed_while_ray_starts_leaves_nothing(driver: Driver) -> None:
    time.sleep(0.8)
    driver.tree |= session_of(driver.supervisor.pid)
    assert len(driver.tree) > 1
    driver.process.kill()
    assert wait_until_ended(lambda: driver.tree | session_of(driver.supervisor.pid), GONE_WITHIN_S)


def test_ctrl_c_reaches_the_driver_only_and_ends_quietly(driver: Driver) -> None:  # case PROC-04
    driver.await_servers()
    os.killpg(driver.process.pid, signal.SIGINT)
    out, err = driver.process.communicate(timeout=GONE_WITHIN_S)
    assert (out.strip(), err.strip(), driver.process.returncode) == ("closed", "", 0)
    assert not any(map(is_alive, driver.tree))


def test_with_driver_and_supervisor_killed_the_next_start_sweeps_up(driver: Driver) -> None:
    driver.await_servers()
    driver.supervisor.kill()
    driver.process.kill()
    driver.process.wait()
    assert wait_until_ended(lambda: {driver.supervisor}, 5)
    survivors = {p for p in driver.tree if is_alive(p)}
    assert survivors, "this test asserts nothing if Ray ends by itself"
    sweep_leftovers()
    assert not any(map(is_alive, survivors))


def test_close_ends_a_ray_whose_supervisor_was_killed_and_binds_loopback_only() -> None:
    local = LocalRay(2)
    try:
        host, _, port = local.address(90).rpartition(":")
        tree = local.processes()
        assert (host, int(port) > 1024) == ("127.0.0.1", True)
        addresses = {c.laddr.ip for p in tree for c in p.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        assert addresses == {"127.0.0.1"} or addresses == {"127.0.0.1", "::ffff:127.0.0.1"}
        next(p for p in tree if p.pid == local._supervisor.pid).kill()
    finally:
        local.close()
    assert not any(map(is_alive, tree))
    local.close()


def test_workers_get_one_thread_each_and_only_the_chosen_gpus() -> None:
    variables = daemon_environment("/tmp/x", ("GPU-a", "MIG-b"))
    assert variables["OMP_NUM_THREADS"] == variables["OPENBLAS_NUM_THREADS"] == "1"
    assert variables["CUDA_VISIBLE_DEVICES"] == "GPU-a,MIG-b"
    assert str(ROOT) in variables["PYTHONPATH"].split(os.pathsep)


def test_sockets_fit_under_a_long_temporary_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    assert short_temp_dir() == "/tmp"
