"""What each process of a server used of the CPU and of memory since it was last looked at."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import psutil

from objectives.measurement import ProcessSample

TITLES = {"APIServer": "api_server", "EngineCore": "engine_core", "Worker": "worker", "EngineCor": "engine_core"}
"""What vLLM titles its processes, `VLLM::EngineCore_DP0` (utils/system_utils.py:180), and as Linux cuts it to 15."""
TITLE = re.compile(r"\w+::([A-Za-z]+)")


@dataclass
class _Known:
    """A process seen before, and its CPU seconds then."""

    process: psutil.Process
    instance: str
    time_s: float
    cpu_s: float
    thread_cpu_s: dict[int, float] = field(default_factory=dict)
    delayed_s: float | None = None
    role: str = "other"
    parent: int = 0


class ProcessWatch:
    """Processes of several servers; the instance named "" is our own client. Not to be used by two threads."""

    def __init__(self, groups: Mapping[str, Callable[[], Iterable[int]]], list_every_s: float = 0.0) -> None:
        """`groups`: instance -> its process numbers now. They are asked for no more often than every `list_every_s`,
        unless a process has ended: finding them costs more than looking at them."""
        self._groups, self._list_every_s = dict(groups), list_every_s
        self._listed: dict[int, str] = {}
        self._listed_s = -math.inf
        self._known: dict[int, _Known] = {}

    def sample(self, time_s: float) -> tuple[ProcessSample, ...]:
        """One sample for each process seen before. A process seen first is only noted: nothing is known of its rate.

        What ended, or may not be looked at, is left out."""
        found = self._list(time_s)
        self._known = {pid: known for pid, known in self._known.items() if found.get(pid) == known.instance}
        samples = [self._look(pid, name, time_s) for pid, name in found.items()]
        fronts = {known.parent for known in self._known.values() if known.role == "engine_core"}
        return tuple(_as_front(s) if s.pid in fronts else s for s in samples if s is not None)

    def _list(self, time_s: float) -> dict[int, str]:
        has_lost = not self._known.keys() >= self._listed.keys()
        if has_lost or time_s - self._listed_s >= self._list_every_s:
            self._listed = {pid: name for name, pids in self._groups.items() for pid in _pids(pids)}
            self._listed_s = time_s
        return self._listed

    @property
    def pids(self) -> frozenset[int]:
        """Those of the last sample."""
        return frozenset(self._known)

    def _look(self, pid: int, instance: str, time_s: float) -> ProcessSample | None:
        known = self._known.get(pid)
        try:
            if known is None or not known.process.is_running():
                self._known[pid] = _first_seen(pid, instance, time_s)
                return None
            return _since(known, time_s)
        except psutil.Error:
            self._known.pop(pid, None)
            return None


def _pids(pids: Callable[[], Iterable[int]]) -> tuple[int, ...]:
    try:
        return tuple(pids())
    except (psutil.Error, OSError):
        return ()


def _first_seen(pid: int, instance: str, time_s: float) -> _Known:
    process = psutil.Process(pid)
    known = _Known(process, instance, time_s, _cpu_s(process), _threads_s(process), _delayed_s(pid))
    _name_role(known)
    return known


def _name_role(known: _Known) -> None:
    if known.role == "other":
        known.role = _titled_role(known.process, known.instance)
        known.parent = known.process.ppid()


def _as_front(sample: ProcessSample) -> ProcessSample:
    """A single API server keeps its command line and sets no title; it is the parent of the engine core."""
    return replace(sample, role="api_server") if sample.role == "other" else sample


def _since(known: _Known, time_s: float) -> ProcessSample | None:
    """None if no time has passed."""
    past_s = time_s - known.time_s
    if past_s <= 0:
        return None
    process, before_s = known.process, known.thread_cpu_s
    with process.oneshot():
        cpu_s, threads_s, rss = _cpu_s(process), _threads_s(process), process.memory_info().rss
    busiest_s = max((s - before_s.get(thread, 0.0) for thread, s in threads_s.items()), default=None)
    _name_role(known)
    delayed_s = _delayed_s(process.pid)
    sample = ProcessSample(
        time_s=time_s,
        instance=known.instance,
        role=known.role,
        pid=process.pid,
        cores=max(cpu_s - known.cpu_s, 0.0) / past_s,
        busiest_thread_cores=None if busiest_s is None else max(busiest_s, 0.0) / past_s,
        rss_bytes=rss,
        delayed=_share(known.delayed_s, delayed_s, past_s),
    )
    known.time_s, known.cpu_s, known.thread_cpu_s, known.delayed_s = time_s, cpu_s, threads_s, delayed_s
    return sample


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _threads_s(process: psutil.Process) -> dict[int, float]:
    """Thread -> its CPU seconds, in steps of 10 ms; empty where threads may not be looked at."""
    try:
        return {t.id: t.user_time + t.system_time for t in process.threads()}
    except psutil.AccessDenied:
        return {}


def _delayed_s(pid: int) -> float | None:
    """Time that its main thread has spent in the run queue (proc(5), schedstat: ns on the CPU, ns waiting, slices).
    None where this kernel does not count it: no such file, or zeros in it."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb", buffering=0) as file:
            fields = file.read().split()
    except OSError:
        return None
    return int(fields[1]) / 1e9 if len(fields) == 3 and fields[0] != b"0" else None


def _share(before_s: float | None, now_s: float | None, past_s: float) -> float | None:
    return None if before_s is None or now_s is None else min(max(now_s - before_s, 0.0) / past_s, 1.0)


def _titled_role(process: psutil.Process, instance: str) -> str:
    """A process that has not set its title yet is `other`; so are helpers of multiprocessing."""
    if not instance:
        return "client"
    title = TITLE.match(" ".join(process.cmdline())) or TITLE.match(process.name())
    return TITLES.get(title[1], "other") if title else "other"
