"""Process trees that stand in for a server where what is tested is only that all of it ends. Real processes."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from optimizer.engines.vllm.guarded import Guarded

GONE_WITHIN_S = 10.0

SERVER = """
    import os, signal, subprocess, sys, time
    from multiprocessing import shared_memory, resource_tracker

    def daemon(code):
        '''As far from its parent as a process gets: own session, no environment, no living parent.'''
        between = os.fork()
        if between == 0:
            os.setsid()
            if os.fork() == 0:
                os.execve(sys.executable, ["VLLM::Worker", "-c", code], {})
            os._exit(0)
        os.waitpid(between, 0)

    block = shared_memory.SharedMemory(create=True, size=4096)
    print("shared", block.name, flush=True)
    quiet = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    maps = f"import mmap, os; f = open('/dev/shm/{block.name}', 'r+b'); m = mmap.mmap(f.fileno(), 0); "
    maps += "os.write(1, b'mapped' + bytes([10])); "  # at once: print writes text and line end apart
    subprocess.Popen([sys.executable, "-u", "-c", maps + quiet + "time.sleep(600)"])
    quiet += "time.sleep(600)"
    if "daemon" in sys.argv:
        daemon(quiet)
    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("up", os.getpid(), flush=True)
    time.sleep(600)
"""


def code(text: str = SERVER) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(text)]


def start(folder: Path, *words: str, text: str = SERVER) -> Guarded:
    return Guarded([*code(text), *words], dict(os.environ), folder / "server.log")


def wait_for(condition: Callable[[], object], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s} s"
        time.sleep(0.01)


def await_tree(guarded: Guarded, folder: Path, n: int) -> set[psutil.Process]:
    """Its processes once the server says that it is up."""
    log = folder / "server.log"
    wait_for(lambda: log.exists() and {"up", "mapped"} <= set(log.read_text().split()))
    wait_for(lambda: len(guarded.processes()) >= n)
    return guarded.processes()


def shared_block(folder: Path) -> Path:
    words = (folder / "server.log").read_text().split()
    return Path("/dev/shm") / words[words.index("shared") + 1]
