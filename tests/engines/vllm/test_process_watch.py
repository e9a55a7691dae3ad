from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from optimizer.engines.vllm.process_watch import ProcessWatch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="titles and threads as Linux shows them")

BUSY = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\nwhile True: pass"
TREE = """
import subprocess, sys, time
core = '''
import subprocess, time, sys
open("/proc/self/comm", "w").write("VLLM::EngineCor")
worker = "import time; open('/proc/self/comm', 'w').write('VLLM::Worker_TP0'); print(1, flush=True); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", worker]).wait()
'''
subprocess.Popen([sys.executable, "-c", core]).wait()
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def python(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)


def test_a_busy_core_is_one_and_its_thread_the_busiest(started: list[subprocess.Popen[bytes]]) -> None:
    started.append(python(BUSY))
    pid = started[0].pid
    watch = ProcessWatch({"a": lambda: [pid]})
    assert watch.sample(time.monotonic()) == ()
    begin_s, process = time.monotonic(), psutil.Process(pid)
    used_s = sum(process.cpu_times()[:2])
    time.sleep(1.0)
    used_s = sum(process.cpu_times()[:2]) - used_s
    [sample] = watch.sample(time.monotonic())
    assert (sample.instance, sample.role, sample.pid) == ("a", "other", pid)
    assert sample.cores == pytest.approx(used_s / (time.monotonic() - begin_s), abs=0.1)
    assert sample.busiest_thread_cores == pytest.approx(sample.cores, abs=0.1)
    assert sample.rss_bytes > 1_000_000


def test_use_is_since_the_last_look(started: list[subprocess.Popen[bytes]]) -> None:
    started.append(python(BUSY))
    watch = ProcessWatch({"a": lambda: [started[0].pid]})
    watch.sample(0.0)
    time.sleep(0.3)
    watch.sample(0.3)
    process = psutil.Process(started[0].pid)
    process.suspend()
    time.sleep(0.1)  # it may be on a core for another moment
    watch.sample(0.4)
    time.sleep(0.3)
    assert watch.sample(0.7)[0].cores == 0.0


def test_roles_are_vllms_titles_and_the_front_is_the_cores_parent(started: list[subprocess.Popen[bytes]]) -> None:
    front = python(TREE)
    started.append(front)
    assert front.stdout is not None
    front.stdout.readline()

    def pids() -> list[int]:
        process = psutil.Process(front.pid)
        return [front.pid, *(c.pid for c in process.children(recursive=True))]

    watch = ProcessWatch({"a": pids, "": lambda: [os.getpid()]})
    watch.sample(0.0)
    roles = [(s.role, s.instance) for s in watch.sample(1.0)]
    assert roles == [("api_server", "a"), ("engine_core", "a"), ("worker", "a"), ("client", "")]
    assert watch.pids == {*pids(), os.getpid()}


def test_what_ended_is_left_out_and_what_came_is_only_noted(started: list[subprocess.Popen[bytes]]) -> None:
    started += [python(BUSY), python(BUSY)]
    alive = [started[0].pid]
    watch = ProcessWatch({"a": lambda: alive})
    watch.sample(0.0)
    alive[:] = [started[1].pid, 4_194_305]
    assert watch.sample(1.0) == ()
    assert [s.pid for s in watch.sample(2.0)] == [started[1].pid]
    started[1].kill()
    started[1].wait()
    assert watch.sample(3.0) == ()


def test_processes_that_cannot_be_listed_are_none() -> None:
    def gone() -> list[int]:
        raise psutil.NoSuchProcess(1)

    assert ProcessWatch({"a": gone}).sample(1.0) == ()
