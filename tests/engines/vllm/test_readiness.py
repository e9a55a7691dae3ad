"""How long a start may be silent depends on what it does, not on a clock."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil

from optimizer.engines.vllm.readiness import PHASE_LIMITS_S, Activity, Patience, activity_of


def test_a_busy_compilation_is_waited_for() -> None:  # case TOOL-17
    patience = Patience(0.0)
    for now_s in range(10, 2300, 10):
        patience.note_activity(Activity(cpu_s=float(now_s)), float(now_s))
        assert patience.why_hopeless("warmup", float(now_s)) is None
    assert "no progress for 600 s" in str(patience.why_hopeless("config", 2300.0))
    patience.note_progress(2300.0)
    assert patience.why_hopeless("config", 2301.0) is None


def test_loading_takes_as_long_as_the_disk_needs() -> None:
    patience = Patience(0.0, weight_bytes=140 * 10**9)
    assert patience.limit_s("load") == PHASE_LIMITS_S["load"] + 7000
    for now_s in range(10, 5000, 10):
        patience.note_activity(Activity(read_bytes=now_s * 10**6), float(now_s))
    assert patience.why_hopeless("load", 5000.0) is None


def test_stillness_is_given_up_early() -> None:
    patience = Patience(0.0)
    patience.note_activity(Activity(cpu_s=5.0), 10.0)
    for now_s in range(20, 140, 10):
        patience.note_activity(Activity(cpu_s=5.0 + now_s * 0.005), float(now_s))
    assert patience.why_hopeless("load", 129.0) is None
    assert "neither computed, read nor logged" in str(patience.why_hopeless("load", 131.0))


def test_a_stopped_process_is_named() -> None:
    patience = Patience(0.0)
    patience.note_activity(Activity(stopped=(42,)), 1.0)
    assert patience.why_hopeless("load", 10.0) is None
    assert "process 42 of the server was stopped" in str(patience.why_hopeless("load", 17.0))
    patience.note_activity(Activity(cpu_s=1.0), 17.5)
    assert patience.why_hopeless("load", 18.0) is None


def test_activity_is_read_from_the_processes() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        deadline = time.monotonic() + 10
        while activity_of([busy.pid]).cpu_s < 0.2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        psutil.Process(busy.pid).suspend()
        while activity_of([busy.pid, os.getpid()]).stopped != (busy.pid,):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        busy.kill()
        busy.wait()
    assert activity_of([busy.pid]) == Activity()
