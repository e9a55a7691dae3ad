"""A real server made healthy and ill in known ways, watched from outside while our client loads it: is the diagnosis
right, for `diagnose --url` and for the load as a trial records it? The simulated half is `tests/questions/labelled.py`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import psutil
import pytest

from optimizer.engines.vllm.devices import open_devices
from optimizer.engines.vllm.endpoint import Endpoint
from optimizer.engines.vllm.exposition import Scrape
from optimizer.engines.vllm.loading import LoadContext
from optimizer.engines.vllm.process_watch import ProcessWatch
from optimizer.engines.vllm.serving import Serving
from optimizer.errors import EngineFailed
from optimizer.questions.diagnosis import Diagnosis, diagnose
from optimizer.questions.of_phase import Server, situation_of
from optimizer.watching.diagnosis import WatchDiagnosis, diagnose_watch
from optimizer.watching.server import RunningServer, look_at
from optimizer.watching.watch import watch
from optimizer.workload.trace import Trace
from tests.questions.labelled import streams_and_prompts
from tests.real_engine.conftest import Served
from tests.real_engine.loads import plan, trace

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.quiet, pytest.mark.timeout(600)]

N_HOGS = 3
N_TRIES = 3


@dataclass(frozen=True)
class Both:
    """One load as both saw it."""

    outside: WatchDiagnosis
    recorded: Diagnosis

    @property
    def watched(self) -> Diagnosis:
        [(_, found)] = self.outside.engines.values()
        return found

    def verdicts(self, question: int) -> set[str]:
        return {d.answers[question - 1].verdict for d in (self.watched, self.recorded)}


@contextmanager
def crowded(pids: list[int]) -> Iterator[None]:
    """These processes on one core, with others that compute on it all the time."""
    core = max(psutil.Process().cpu_affinity() or [0])
    before = {pid: psutil.Process(pid).cpu_affinity() for pid in pids}
    code = f"import os\nos.sched_setaffinity(0, [{core}])\nwhile True: pass"
    hogs = [subprocess.Popen([sys.executable, "-c", code], start_new_session=True) for _ in range(N_HOGS)]
    try:
        for pid in pids:
            _pin(pid, [core])
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
        for pid, cores in before.items():
            _pin(pid, cores or [])


def _pin(pid: int, cores: list[int]) -> None:
    for thread in psutil.Process(pid).threads():
        os.sched_setaffinity(thread.id, cores)


def roles(served: Served) -> dict[str, int]:
    watching = ProcessWatch({"a": lambda: served.server.pids})
    watching.sample(0.0)
    return {s.role: s.pid for s in watching.sample(1.0)}


def seen(
    served: Served, load: Trace, limit_s: float = 90.0, is_clear: Callable[[Both], bool] = lambda both: True
) -> Both:
    """As a study does it, a load that the machine broke (the client was late) is sent again; so is one that other
    tests' processes made unclear."""
    for _ in range(N_TRIES - 1):
        try:
            if is_clear(both := _seen(served, load, limit_s)):
                return both
        except EngineFailed as failed:
            assert failed.kind == "client", failed
    return _seen(served, load, limit_s)


def _seen(served: Served, load: Trace, limit_s: float) -> Both:
    server = look_at(served.url)
    assert server.local.is_seen and server.gpu is not None and server.gpu.is_cpu and server.model is not None
    is_over, found = threading.Event(), []

    def tick(gone_s: float, newest: Scrape | None) -> None:
        if is_over.is_set():
            raise KeyboardInterrupt

    watcher = threading.Thread(target=lambda: found.append(watch(server, 300.0, tick)))
    watcher.start()
    try:
        phase = serving(served, server).replay(plan(load, time_limit_s=limit_s))
    finally:
        is_over.set()
        watcher.join()
    return Both(diagnose_watch(found[0]), diagnose([situation_of(phase, known(server), "the load")]))


def serving(served: Served, server: RunningServer) -> Serving:
    endpoint = Endpoint("server", served.url, server.model_name, ("default",), pids=lambda: served.server.pids)
    made = Serving(
        LoadContext(
            endpoints=(endpoint,),
            devices=open_devices(()),
            n_gpus=1,
            vocabulary=512,
            seed=0,
            client_cores=(0, 1),
            judge_hang=lambda text: EngineFailed("hang", "serving", text, is_config_fault=False),
        )
    )
    made.reset()
    return made


def known(server: RunningServer) -> Server:
    return Server(name="server", config=dict(server.config), kv_tokens=32_768, model=server.model, gpu=server.gpu)


def test_healthy(served: Served) -> None:
    load = trace(16, 12.0, output=(8, 24))
    both = seen(served, load, is_clear=lambda both: both.recorded.health == both.outside.health == "healthy")
    assert both.outside.health == "healthy" and both.recorded.health == "healthy"
    assert both.verdicts(3) == {"healthy"} and both.verdicts(4) == {"fits"}
    assert both.recorded.checklist.is_preempting is False and both.watched.checklist.is_preempting is False


def test_overloaded(served: Served) -> None:
    both = seen(served, trace(300, 3.0, prompt=(100, 300), output=(30, 60)))
    assert both.outside.health == "degraded" and both.recorded.health != "healthy"
    assert both.verdicts(3) == {"overloaded"} and "fits" not in both.verdicts(4)


def test_long_prefills_beside_decodes(served: Served) -> None:
    """Prompts of three chunks every 0.4 s, so that they fall among the answers on a fast machine and on a slow one."""
    load = streams_and_prompts(6, (40, 700), np.arange(0.5, 5.3, 0.4), (1500, 4))
    both = seen(served, load, is_clear=lambda both: both.recorded.spikes.is_prefill is True)
    assert both.recorded.spikes.is_prefill and "chunk" in both.recorded.spikes.text
    assert both.watched.spikes.is_prefill, both.watched.spikes.text


def test_an_engine_that_shares_its_core(served: Served) -> None:
    """The CPU-bound server of the people who see a fast GPU and slow tokens: EngineCore and worker on a crowded core."""
    own = roles(served)
    with crowded([own["engine_core"], own["worker"]]):
        both = seen(served, trace(12, 8.0, output=(24, 40)))
    assert both.verdicts(2) == {"cpu"}, [a.evidence for a in (both.watched.answers[1], both.recorded.answers[1])]
    assert {d.answers[1].confidence for d in (both.watched, both.recorded)} == {"high"}
