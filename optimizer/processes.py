"""Finding and ending processes that are ours: by session and descent, never by name.

Everything a supervisor starts stays in its session or below it, and the kernel gives no new process the number of a
session that still has members. A `psutil.Process` knows its start time, so a reused pid is not mistaken for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterable

import psutil

PR_SET_CHILD_SUBREAPER = 36
"""linux/prctl.h"""


def is_alive(process: psutil.Process) -> bool:
    """False for a zombie too: it holds neither memory nor a GPU."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def session_of(leader: int) -> set[psutil.Process]:
    """Every member of the session with this number and all their descendants, without the leader and the caller.

    Works after the leader died. The number must still be ours: its process lives, is a zombie that nobody waited
    for, or exists no more."""
    inside = existing(pid for pid in psutil.pids() if pid == leader or _session(pid) == leader)
    found = inside.union(*map(_descendants, inside))
    return {p for p in found if p.pid not in (leader, os.getpid())}


def stamped(name: str, value: str) -> set[psutil.Process]:
    """Processes that were started with this environment variable, so also those that left session and parent behind.

    One that overwrote its environment (to change its title) is not found."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(name) == value:
                found.add(process)
    return found


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def existing(pids: Iterable[int]) -> set[psutil.Process]:
    """Those of these numbers that exist."""
    found = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            found.add(psutil.Process(pid))
    return found


def _descendants(process: psutil.Process) -> set[psutil.Process]:
    try:
        return set(process.children(recursive=True))
    except psutil.Error:
        return set()


def end_all(find: Callable[[], set[psutil.Process]], within_s: float) -> set[psutil.Process]:
    """SIGKILL whatever `find` returns until nothing of it lives; the survivors after `within_s`.

    Asked again and again, because a process killed late may have started another. psutil refuses to signal a
    process that took over the number of the one it was made for."""
    deadline = time.monotonic() + within_s
    while alive := {p for p in find() if is_alive(p)}:
        if time.monotonic() > deadline:
            return alive
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.05)
    return set()


def wait_until_ended(find: Callable[[], set[psutil.Process]], within_s: float) -> bool:
    """Whether nothing that `find` returns lives any more within that time."""
    deadline = time.monotonic() + within_s
    while any(map(is_alive, find())):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def adopt_orphans() -> None:
    """Make this process the parent of every orphan below it, so that no daemonised descendant leaves its tree.

    Linux only. Elsewhere a descendant that opens a session of its own and loses its parent is not found."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def collect_zombies() -> None:
    """Take the exit status of every child that ended. Only for a process that waits for no child of its own."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
