"""However a server, its guard or its owner ends, nothing of the server stays. Real processes and signals, no vLLM."""

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

from optimizer.engines.vllm.guard import FIRST_LOOK_AT_MEMORY_S, LOOK_EVERY_S
from optimizer.engines.vllm.guarded import Guarded
from optimizer.engines.vllm.host_directory import host_directory
from optimizer.engines.vllm.registry import STAMP, sweep_leftovers
from optimizer.identity import ROOT
from optimizer.processes import end_all, is_alive, wait_until_ended
from tests.engines.vllm.trees import GONE_WITHIN_S, SERVER, await_tree, code, shared_block, start, wait_for

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="guards rely on Linux")


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A temporary folder of our own; afterwards it holds locks and nothing else."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as own:
        monkeypatch.setenv("TMPDIR", own)
        monkeypatch.setattr(tempfile, "tempdir", own)
        yield
        left = [p for p in Path(own).glob("vco-*") if p != host_directory()]
        assert (left, list(host_directory().glob("servers/*"))) == ([], [])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Guarded, set[psutil.Process]]]:
    """A server of four processes: itself, one that ignores SIGTERM, the tracker of its shared memory, a daemon."""
    guarded = start(tmp_path, "daemon")
    try:
        yield guarded, await_tree(guarded, tmp_path, 4)
    finally:
        guarded.stop(5, 0.1)


def the_guard(guarded: Guarded) -> psutil.Process:
    return psutil.Process(guarded.guard_pid)


def test_a_stop_in_order(server: tuple[Guarded, set[psutil.Process]], tmp_path: Path) -> None:  # case PROC-01
    guarded, tree = server
    block = shared_block(tmp_path)
    assert block.exists() and guarded.is_alive and guarded.pid in {p.pid for p in tree}
    guarded.stop(20, 10)
    assert not any(map(is_alive, tree)) and not psutil.pid_exists(guarded.guard_pid)
    assert guarded.exit_code == -signal.SIGTERM and not guarded.is_alive and guarded.is_over
    assert not block.exists() and not Path(guarded.directory).exists()
    guarded.stop(20, 10)


def test_a_stop_of_one_that_ignores_sigterm(tmp_path: Path) -> None:
    guarded = start(tmp_path, "stubborn")
    tree = await_tree(guarded, tmp_path, 3)
    begin_s = time.monotonic()
    guarded.stop(20, 0.5)
    assert time.monotonic() - begin_s < 5
    assert not any(map(is_alive, tree)) and guarded.exit_code == -signal.SIGKILL


@pytest.mark.parametrize("is_stopped", [False, True])
def test_the_rest_ends_with_the_api_server(
    server: tuple[Guarded, set[psutil.Process]], tmp_path: Path, is_stopped: bool
) -> None:  # case PROC-01
    guarded, tree = server
    if is_stopped:
        for process in tree:
            process.suspend()
    assert guarded.pid is not None
    os.kill(guarded.pid, signal.SIGKILL)
    assert guarded.wait(GONE_WITHIN_S) and not any(map(is_alive, tree))
    assert guarded.exit_code == -signal.SIGKILL and not guarded.is_alive
    assert not shared_block(tmp_path).exists()


def test_shared_memory_goes_even_if_all_die_at_once(tmp_path: Path) -> None:
    """As when the kernel runs out of memory and kills a whole container: nobody is left to ask what it had mapped."""
    guarded = start(tmp_path)
    tree = await_tree(guarded, tmp_path, 3)
    block = shared_block(tmp_path)
    time.sleep(FIRST_LOOK_AT_MEMORY_S + LOOK_EVERY_S + 0.2)
    for process in tree:
        process.suspend()
    for process in tree:
        process.kill()
    assert guarded.wait(GONE_WITHIN_S) and not block.exists()
    guarded.stop(5, 0.1)


def test_a_killed_guard_leaves_nothing(tmp_path: Path) -> None:
    guarded = start(tmp_path)
    tree = await_tree(guarded, tmp_path, 3)
    the_guard(guarded).kill()
    assert guarded.wait(GONE_WITHIN_S) and not any(map(is_alive, tree))
    assert not guarded.is_alive and "guards the server was killed" in guarded.failure
    assert not shared_block(tmp_path).exists()
    guarded.stop(5, 0.1)


def test_a_stopped_guard_does_not_hold_up_a_stop(server: tuple[Guarded, set[psutil.Process]]) -> None:
    guarded, tree = server
    the_guard(guarded).suspend()
    begin_s = time.monotonic()
    guarded.stop(20, 2)
    assert time.monotonic() - begin_s < 10 and not any(map(is_alive, tree))


def test_the_death_of_a_server_is_seen_past_a_stopped_guard(server: tuple[Guarded, set[psutil.Process]]) -> None:
    guarded, _ = server
    the_guard(guarded).suspend()
    assert guarded.is_alive and guarded.pid is not None
    os.kill(guarded.pid, signal.SIGKILL)
    wait_for(lambda: not guarded.is_alive, 2)


def test_a_server_that_ends_by_itself(tmp_path: Path) -> None:
    text = "import sys; print('the reason'); sys.stderr.write('and more\\n'); sys.exit(3)"
    guarded = start(tmp_path, text=text)
    assert guarded.wait(GONE_WITHIN_S) and guarded.exit_code == 3 and not guarded.is_alive
    assert sorted((tmp_path / "server.log").read_text().splitlines()) == ["and more", "the reason"]
    guarded.stop(5, 0.1)


def test_last_words_of_the_engine_are_kept(tmp_path: Path) -> None:
    """The API server is often gone before its engine has written what killed it."""
    text = """
        import subprocess, sys
        late = "import time; time.sleep(0.7); print('the engine had a reason', flush=True); time.sleep(60)"
        subprocess.Popen([sys.executable, "-c", late], start_new_session=True)
        sys.exit(1)
    """
    guarded = start(tmp_path, text=text)
    assert guarded.wait(GONE_WITHIN_S) and guarded.exit_code == 1
    assert "the engine had a reason" in (tmp_path / "server.log").read_text()
    guarded.stop(5, 0.1)


def test_a_server_that_lost_its_main_thread_is_ended(tmp_path: Path) -> None:
    """The kernel shows it as a zombie, tells no parent of it, and lets its other threads run on."""
    text = """
        import ctypes, threading, time
        threading.Thread(target=time.sleep, args=(600,)).start()
        print("up", flush=True)
        ctypes.CDLL(None).pthread_exit(None)
    """
    guarded = start(tmp_path, text=text)
    wait_for(lambda: guarded.pid is not None)
    assert guarded.pid is not None
    server = psutil.Process(guarded.pid)
    assert guarded.wait(GONE_WITHIN_S) and not is_alive(server)
    assert guarded.exit_code == -signal.SIGKILL
    guarded.stop(5, 0.1)


def test_a_command_that_cannot_be_started_is_said(tmp_path: Path) -> None:
    guarded = Guarded([str(tmp_path / "no-vllm")], {}, tmp_path / "server.log")
    assert guarded.wait(GONE_WITHIN_S) and "no-vllm" in guarded.failure and not guarded.is_alive
    guarded.stop(5, 0.1)


def test_a_crowd_that_keeps_starting_processes_ends(tmp_path: Path) -> None:
    text = """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        print("up", flush=True)
        def grow(depth):
            while True:
                if depth < 3 and os.fork() == 0:
                    os.setsid()
                    grow(depth + 1)
                time.sleep(0.2)
        grow(0)
    """
    guarded = start(tmp_path, text=text)
    wait_for(lambda: len(guarded.processes()) > 8)
    guarded.stop(20, 0.2)
    assert guarded.is_over and guarded.processes() == set()


def test_a_server_runs_on_its_cores_and_dumps_none(tmp_path: Path) -> None:
    cores = tuple(sorted(os.sched_getaffinity(0)))[:1]
    text = """
        import os, resource
        print(sorted(os.sched_getaffinity(0)), resource.getrlimit(resource.RLIMIT_CORE)[0], os.getcwd(),
              open("/proc/self/oom_score_adj").read(), os.environ["TMPDIR"], flush=True)
    """
    guarded = Guarded(code(text), dict(os.environ), tmp_path / "server.log", cores)
    assert guarded.wait(GONE_WITHIN_S)
    assert (tmp_path / "server.log").read_text().split() == [
        f"[{cores[0]}]",
        "0",
        guarded.directory,
        "500",
        guarded.directory,
    ]
    guarded.stop(5, 0.1)


OWNER = """
    import os, sys, tempfile, time
    sys.path.insert(0, {root!r})
    from pathlib import Path
    from optimizer.engines.vllm.guarded import Guarded
    guarded = Guarded([sys.executable, "-c", sys.argv[1], "daemon"], dict(os.environ), Path(sys.argv[2]))
    print(guarded.guard_pid, guarded.directory, flush=True)
    if os.fork() == 0:
        time.sleep(20)  # a copy that holds the pipe to the guard open
        os._exit(0)
    time.sleep(600)
"""


class Owner:
    """A process with a server, and a forked copy of itself."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [*code(OWNER.format(root=str(ROOT))), textwrap.dedent(SERVER), str(folder / "server.log")],
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        assert self.process.stdout is not None
        pid, self.directory = self.process.stdout.readline().split()
        self.guard = psutil.Process(int(pid))

    def tree(self) -> set[psutil.Process]:
        try:
            return {self.guard, *self.guard.children(recursive=True)}
        except psutil.Error:
            return set()

    def close(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    owner = Owner(tmp_path)
    yield owner
    owner.close()


def await_up(owner: Owner, folder: Path) -> set[psutil.Process]:
    log = folder / "server.log"
    wait_for(lambda: log.exists() and {"up", "mapped"} <= set(log.read_text().split()))
    wait_for(lambda: len(owner.tree()) >= 5)
    return owner.tree()


def is_daemon(process: psutil.Process) -> bool:
    return process.cmdline()[:1] == ["VLLM::Worker"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_dead_owner_leaves_nothing(owner: Owner, tmp_path: Path, number: signal.Signals) -> None:  # case PROC-04
    tree = await_up(owner, tmp_path)
    owner.process.send_signal(number)
    assert wait_until_ended(lambda: tree, GONE_WITHIN_S)
    wait_for(lambda: not Path(owner.directory).exists())


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.05, 0.1, 0.2])
def test_an_owner_killed_while_its_server_starts_leaves_nothing(owner: Owner, delay_s: float) -> None:
    time.sleep(delay_s)
    tree = owner.tree()
    owner.process.kill()
    wait_for(lambda: not Path(owner.directory).exists() or not any(map(is_alive, owner.tree())))
    assert wait_until_ended(lambda: tree | owner.tree(), GONE_WITHIN_S)
    sweep_leftovers()
    if Path(owner.directory).exists():  # the guard had not even been told what to start
        Path(owner.directory).rmdir()


def test_a_stopped_guard_wakes_when_its_owner_dies(owner: Owner, tmp_path: Path) -> None:
    tree = await_up(owner, tmp_path)
    owner.guard.suspend()
    owner.process.kill()
    assert wait_until_ended(lambda: tree, GONE_WITHIN_S)
    wait_for(lambda: not Path(owner.directory).exists())


def test_a_stopped_owner_is_waited_for(owner: Owner, tmp_path: Path) -> None:
    tree = await_up(owner, tmp_path)
    owner.process.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    assert all(map(is_alive, tree))
    owner.process.kill()
    assert wait_until_ended(lambda: tree, GONE_WITHIN_S)
    wait_for(lambda: not Path(owner.directory).exists())


def test_the_next_start_ends_what_nobody_could(owner: Owner, tmp_path: Path) -> None:
    """Owner and guard killed together: what vLLM leaves is found by session and by stamp."""
    tree = await_up(owner, tmp_path)
    wait_for(lambda: any(map(is_daemon, tree)))
    daemon = set(filter(is_daemon, tree))
    tree -= daemon
    block = shared_block(tmp_path)
    wait_for(lambda: str(block) in next(host_directory().glob("servers/*.json")).read_text())
    for process in (owner.guard, psutil.Process(owner.process.pid)):
        process.suspend()
    for process in (owner.guard, psutil.Process(owner.process.pid)):
        process.kill()
    assert wait_until_ended(lambda: {owner.guard}, GONE_WITHIN_S)
    assert any(map(is_alive, tree)), "nothing is left to sweep"
    sweep_leftovers()
    assert not any(map(is_alive, tree))
    assert not block.exists() and not Path(owner.directory).exists()
    end_all(lambda: daemon, 5)  # without session, stamp and parent nobody finds it: vLLM starts none such


def test_a_sweep_spares_the_living_and_the_strangers(server: tuple[Guarded, set[psutil.Process]]) -> None:
    _, tree = server
    stranger = subprocess.Popen([*code("import time; time.sleep(60)")], env={**os.environ, STAMP: "not-in-a-record"})
    foreign = host_directory() / "servers" / "elsewhere.json"
    foreign.write_text('{"machine": "another boot", "stamp": "x"}')
    sweep_leftovers()
    assert all(map(is_alive, tree)) and stranger.poll() is None and foreign.exists()
    foreign.unlink()
    stranger.kill()
    stranger.wait()
