"""Whoever is killed or stopped, at whatever moment: within 30 s nothing of a real server is left on the machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from optimizer.engines.vllm import http
from optimizer.engines.vllm.interpreter import VllmInstall
from optimizer.engines.vllm.readiness import Patience
from optimizer.engines.vllm.registry import sweep_leftovers
from optimizer.engines.vllm.server import Server, ServerSpec
from optimizer.engines.vllm.turns import start_lock
from optimizer.errors import EngineFailed
from optimizer.identity import ROOT
from optimizer.processes import existing, is_alive, shared_memory_of, wait_until_ended
from tests.real_engine.conftest import SMALL

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

GONE_WITHIN_S = 30.0


class Traces:
    """What a server has left on the machine so far."""

    def __init__(self, server_pid: int) -> None:
        api_server = psutil.Process(server_pid)
        self.processes = {api_server, *api_server.children(recursive=True)}
        self.scratch = Path(api_server.environ()["TMPDIR"])
        self.shared = shared_memory_of(self.processes)

    def named(self, part: str) -> psutil.Process:
        return next(p for p in self.processes if part in p.name())

    def assert_gone(self, begin_s: float) -> None:
        assert wait_until_ended(lambda: self.processes, GONE_WITHIN_S), [p for p in self.processes if is_alive(p)]
        while self.scratch.exists() or any(path.exists() for path in self.shared):
            assert time.monotonic() - begin_s < GONE_WITHIN_S, (self.scratch, self.shared)
            time.sleep(0.05)
        print(f"gone after {time.monotonic() - begin_s:.1f} s")


def start(install: VllmInstall, model: Path, folder: Path) -> Server:
    return Server(ServerSpec("victim", str(model), SMALL, install, folder))


@pytest.fixture
def ready(install: VllmInstall, tiny_model: Path, tmp_path: Path) -> Iterator[Server]:
    with start_lock(()):
        server = start(install, tiny_model, tmp_path)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(server.stop)
            server.wait_until_ready()
            on_failure.pop_all()
    yield server
    server.stop()


def ask_for_many(server: Server) -> subprocess.Popen[bytes]:
    """Requests in flight, in a process of their own."""
    text = """
        import json, sys, threading, urllib.request
        def ask():
            body = {"model": sys.argv[2], "prompt": [5] * 200, "max_tokens": 1500, "ignore_eos": True}
            request = urllib.request.Request(sys.argv[1] + "/v1/completions", json.dumps(body).encode(),
                                             {"Content-Type": "application/json"})
            try:
                urllib.request.urlopen(request).read()
            except OSError:
                pass
        for _ in range(8):
            threading.Thread(target=ask).start()
    """
    asking = subprocess.Popen([sys.executable, "-c", textwrap.dedent(text), server.url, server.served_model])
    deadline = time.monotonic() + 30
    while (http.n_running_and_waiting(server.url) or (0, 0))[0] < 1:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return asking


def test_the_engine_is_killed_while_it_serves(ready: Server) -> None:  # case PROC-01
    """vLLM may end with status 0 then: the log says what happened."""
    traces = Traces(ready.pids[0])
    asking = ask_for_many(ready)
    begin_s = time.monotonic()
    traces.named("EngineCor").kill()
    while ready.is_alive:
        assert time.monotonic() - begin_s < GONE_WITHIN_S
        time.sleep(0.05)
    traces.assert_gone(begin_s)
    asking.wait(30)
    error = ready.failure()
    print(error, ready.exit_code)
    assert (error.kind, error.phase, error.is_config_fault) == ("killed", "serving", False)


def test_the_api_server_is_killed_while_it_serves(ready: Server) -> None:  # case PROC-01
    traces = Traces(ready.pids[0])
    asking = ask_for_many(ready)
    traces.named("EngineCor").suspend()
    begin_s = time.monotonic()
    os.kill(ready.pids[0], signal.SIGKILL)
    traces.assert_gone(begin_s)
    asking.wait(30)
    assert ready.exit_code == -signal.SIGKILL and ready.failure().kind == "killed"


@pytest.mark.parametrize("delay_s", [8.0])
def test_the_guard_is_killed_while_it_boots(
    install: VllmInstall, tiny_model: Path, tmp_path: Path, delay_s: float
) -> None:
    with start_lock(()):
        server = start(install, tiny_model, tmp_path)
        time.sleep(delay_s)
        traces = Traces(server.pids[0])
        begin_s = time.monotonic()
        psutil.Process(server.guard_pid).kill()
        with pytest.raises(EngineFailed) as raised:
            server.wait_until_ready()
        traces.assert_gone(begin_s)
        server.stop()
    assert raised.value.kind == "killed" and not raised.value.is_config_fault


def names_of(pids: Iterable[int]) -> Iterator[str]:
    """Of those that still live: a boot starts short-lived processes."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid).name()


def test_a_boot_that_stands_still_is_given_up(install: VllmInstall, tiny_model: Path, tmp_path: Path) -> None:
    """A stopped EngineCore: the API server waits for it for ten minutes, and says nothing."""
    with start_lock(()):
        server = start(install, tiny_model, tmp_path)
        try:
            while not any("EngineCor" in name for name in names_of(server.pids)):
                time.sleep(0.1)
            traces = Traces(server.pids[0])
            traces.named("EngineCor").suspend()
            with pytest.raises(EngineFailed, match="was stopped by a signal") as raised:
                server.wait_until_ready(Patience(time.monotonic(), stopped_limit_s=3))
        finally:
            begin_s = time.monotonic()
            server.stop()
    traces.assert_gone(begin_s)
    assert raised.value.kind == "hang" and not raised.value.is_config_fault


OWNER = """
    import sys, time
    from pathlib import Path
    sys.path[:0] = [{root!r}]
    from optimizer.engines.vllm.interpreter import find_vllm
    from optimizer.engines.vllm.server import Server, ServerSpec
    from search_spaces.config import Config

    python, model, folder, config = sys.argv[1:]
    server = Server(ServerSpec("owned", model, Config(eval(config)), find_vllm(python), Path(folder)))
    while not server.pids:
        time.sleep(0.01)
    print(server.pids[0], server.guard_pid, flush=True)
    server.wait_until_ready()
    print("ready", flush=True)
    time.sleep(600)
"""


class Owner:
    """A driver, or a worker's actor, that is not asked before it dies."""

    def __init__(self, install: VllmInstall, model: Path, folder: Path) -> None:
        words = [install.python, str(model), str(folder), repr(dict(SMALL))]
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(OWNER.format(root=str(ROOT))), *words],
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        self.server_pid, self.guard_pid = map(int, self.line().split())

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line
        return line

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def owner(install: VllmInstall, tiny_model: Path, tmp_path: Path) -> Iterator[Callable[[], Owner]]:
    owners: list[Owner] = []

    def make() -> Owner:
        owners.append(Owner(install, tiny_model, tmp_path))
        return owners[-1]

    with start_lock(()):
        yield make
        for one in owners:
            one.close()


@pytest.mark.parametrize("delay_s", [0.3, 14.0])
def test_the_owner_is_killed_while_it_boots(owner: Callable[[], Owner], delay_s: float) -> None:  # case PROC-04
    driver = owner()
    time.sleep(delay_s)
    traces = Traces(driver.server_pid)
    begin_s = time.monotonic()
    driver.process.kill()
    traces.assert_gone(begin_s)


def test_the_owner_is_killed_while_it_serves(owner: Callable[[], Owner]) -> None:  # case PROC-04
    """With the guard stopped as well: the kernel wakes it."""
    driver = owner()
    assert driver.line() == "ready\n"
    traces = Traces(driver.server_pid)
    os.kill(driver.guard_pid, signal.SIGSTOP)
    begin_s = time.monotonic()
    driver.process.kill()
    traces.assert_gone(begin_s)


def test_owner_and_guard_are_killed_together(owner: Callable[[], Owner]) -> None:
    """The API server dies with its guard; what its engine leaves, the next start ends."""
    driver = owner()
    assert driver.line() == "ready\n"
    traces = Traces(driver.server_pid)
    begin_s = time.monotonic()
    os.kill(driver.guard_pid, signal.SIGKILL)
    driver.process.kill()
    assert wait_until_ended(lambda: existing([driver.guard_pid]), 5)
    print("left over:", [p.name() for p in traces.processes if is_alive(p)])
    sweep_leftovers()
    traces.assert_gone(begin_s)
