"""The client's processes: what is left behind, whoever dies."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from objectives.measurement import RequestRecord
from optimizer.errors import EngineFailed
from optimizer.identity import ROOT
from optimizer.replay.client import Replay
from tests.replay.replaying import endless, replayed, wait_for
from tests.replay.streaming_peer import Peer
from tests.replay.traces import plan_of, target_of, trace_of


def gone(pids: tuple[int, ...]) -> bool:
    return not any(psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE for p in pids)


def test_leaving_ends_every_process(peer: Peer) -> None:
    with pytest.raises(KeyError), Replay(plan_of(trace_of([60.0]), target_of(peer.url), n_processes=2)) as replay:
        pids = replay.pids
        assert len(set(pids)) == 2 and all(os.getsid(pid) == pid for pid in pids)
        raise KeyError
    assert gone(pids)
    replay.close()


def test_a_client_that_dies_is_nobodys_configuration() -> None:
    with (
        Peer(endless) as peer,
        Replay(plan_of(trace_of([0.0] * 4, output=9999), target_of(peer.url), n_processes=2)) as replay,
    ):
        wait_for(lambda: replay.progress().n_answered == 4)
        os.kill(replay.pids[1], signal.SIGKILL)
        with pytest.raises(EngineFailed, match=r"client process \(pid \d+\) ended with signal 9") as caught:
            replay.result(20)
        assert replay.is_over() and caught.value.kind == "client" and not caught.value.is_config_fault


def test_a_client_that_cannot_start_says_why(peer: Peer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "aiohttp.py").write_text("raise ImportError('broken on purpose')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(EngineFailed, match="broken on purpose"):
        Replay(plan_of(trace_of([0.0]), target_of(peer.url)))


def test_a_stray_optimizer_folder_is_not_what_runs(peer: Peer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "optimizer").mkdir()
    (tmp_path / "optimizer" / "__init__.py").write_text("raise SystemExit('the wrong optimizer')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert [r.failure for r in replayed(plan_of(trace_of([0.0]), target_of(peer.url))).records] == [None]


OWNER = """
import sys, time; sys.path.insert(0, {root!r})
from optimizer.replay.client import Replay
from tests.replay.traces import plan_of, target_of, trace_of
if __name__ == "__main__":
    replay = Replay(plan_of(trace_of([0.0] * 8, output=9999), target_of({url!r}), n_processes=2))
    while replay.progress().n_answered < 8:
        time.sleep(0.01)
    print(*replay.pids, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_clients_die_with_their_owner(number: signal.Signals) -> None:
    with Peer(endless) as peer:
        code = OWNER.format(root=str(ROOT), url=peer.url)
        owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert owner.stdout is not None
        with owner.stdout:
            pids = tuple(map(int, owner.stdout.readline().split()))
            assert len(pids) == 2 and not gone(pids)
            owner.send_signal(number)
            owner.wait()
        wait_for(lambda: gone(pids), 5.0)
        wait_for(lambda: all(q.gone_s is not None for q in peer.requests), 5.0)


def test_a_replay_survives_the_thread_that_started_it(peer: Peer) -> None:
    """The kernel's word of a parent's death comes when its *thread* ends."""
    import threading

    started: list[Replay] = []
    plan = plan_of(trace_of([0.0, 1.0]), target_of(peer.url))
    thread = threading.Thread(target=lambda: started.append(Replay(plan)))
    thread.start()
    thread.join()
    with started[0] as replay:
        assert [r.failure for r in replay.result(30).records] == [None, None]


def test_the_client_is_light() -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import optimizer.replay.child; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"pandas", "optuna", "ray", "plotly", "rich", "psutil", "vllm", "torch"} & set(loaded)


def test_records_are_sound(peer: Peer) -> None:
    result = replayed(plan_of(trace_of(np.linspace(0, 0.3, 10)), target_of(peer.url), cores=(0,)))
    for record in result.records:
        assert isinstance(record, RequestRecord) and (np.diff(record.token_times_s) >= 0).all()
    assert result.client.read_lag_p99_ms is not None and result.client.cores is not None
