"""Finding and ending processes that are ours: by session and descent, never by name.

Everything a supervisor starts stays in its session or below it, and the kernel gives no new process the number of a
session that still has members. A `psutil.Process` knows its start time, so a reused pid is not mistaken for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

PR_SET_PDEATHSIG = 1
THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""What a Ray worker of ours gets for itself, and a server must not inherit: there it would cap the engine's threads."""
PR_SET_CHILD_SUBREAPER = 36
"""linux/prctl.h"""
SHARED_MEMORY = "/dev/shm/"
HAS_PROC = os.path.exists("/proc/self/stat")


def is_alive(process: psutil.Process) -> bool:
    """False for a zombie too: it holds neither memory nor a GPU. Unless only its main thread has ended: the kernel
    calls that a zombie as well, and the other threads run on."""
    try:
        return process.is_running() and (process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1)
    except psutil.Error:
        return False


@dataclass(frozen=True, slots=True)
class Started:
    """A process as it can be told from a later one with the same number, across processes and files."""

    pid: int
    start: int
    """When it started, in the kernel's own unit (clock ticks since boot; milliseconds where there is no /proc)."""

    @classmethod
    def of(cls, pid: int) -> Started | None:
        """None if no process has that number."""
        found = _lineage(pid)
        return None if found is None else cls(pid, found.start)

    @property
    def is_alive(self) -> bool:
        """False for a zombie too, and once its main thread has ended."""
        found = _lineage(self.pid)
        return found is not None and found.start == self.start and not found.is_zombie

    @property
    def may_lead_a_session(self) -> bool:
        """Whether a session of this number can still be its own: no other process has taken the number since."""
        return Started.of(self.pid) in (None, self)


@dataclass(frozen=True, slots=True)
class _Lineage:
    parent: int
    session: int
    start: int
    is_zombie: bool


def _lineage(pid: int) -> _Lineage | None:
    """What the kernel says of one process, in one read; None if it is gone."""
    try:
        if HAS_PROC:
            with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
                fields = file.read().rpartition(b")")[2].split(maxsplit=20)
            # proc_pid_stat(5): fields 4, 6, 22 and 3
            return _Lineage(int(fields[1]), int(fields[3]), int(fields[19]), fields[0] in (b"Z", b"X"))
        process = psutil.Process(pid)
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return _Lineage(process.ppid(), os.getsid(pid), int(process.create_time() * 1000), is_zombie)
    except (OSError, psutil.Error, IndexError, ValueError):
        return None


def session_of(*leaders: int) -> set[psutil.Process]:
    """Every member of the sessions with these numbers and all their descendants, without the leaders and the caller.

    Works after a leader died. The numbers must still be ours: their process lives, is a zombie that nobody waited
    for, or exists no more."""
    lineage = {pid: found for pid in psutil.pids() if (found := _lineage(pid)) is not None}
    children: dict[int, list[int]] = {}
    for pid, found in lineage.items():
        children.setdefault(found.parent, []).append(pid)
    inside = {pid for pid, found in lineage.items() if pid in leaders or found.session in leaders}
    to_visit = list(inside)
    while to_visit:
        below = [pid for pid in children.get(to_visit.pop(), ()) if pid not in inside]
        inside.update(below)
        to_visit += below
    return existing(inside - {*leaders, os.getpid()})


def stamped(name: str, value: str) -> set[psutil.Process]:
    """Processes that were started with this environment variable, so also those that left session and parent behind.

    One that overwrote its environment (to change its title) is not found."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(name) == value:
                found.add(process)
    return found


def existing(pids: Iterable[int]) -> set[psutil.Process]:
    """Those of these numbers that exist."""
    found = set()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            found.add(psutil.Process(pid))
    return found


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


def receive_on_parents_death(number: signal.Signals) -> None:
    """Ask the kernel to send this process a signal when the thread that started it ends. Linux only.

    Kept over exec, not over fork. A stopped process still receives SIGKILL and SIGCONT."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def shared_memory_of(processes: Iterable[psutil.Process]) -> set[Path]:
    """The named shared memory that these processes have mapped. Linux only.

    Python's own tracker removes it when a process ends in order; after a SIGKILL of the tracker too it would stay,
    and hold its memory until the machine restarts."""
    found = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/maps").read_text(errors="replace").splitlines():
                _, has_one, name = line.partition(SHARED_MEMORY)
                if has_one and not name.endswith(" (deleted)"):
                    found.add(Path(SHARED_MEMORY + name))
    return found


def remove_shared_memory(paths: Iterable[Path]) -> None:
    """Remove what is left of it, once nobody of ours lives. What another process has mapped as well is left alone."""
    left = {path for path in paths if path.exists()}
    if left:
        for path in left - shared_memory_of(psutil.process_iter()):
            with contextlib.suppress(OSError):
                path.unlink()
