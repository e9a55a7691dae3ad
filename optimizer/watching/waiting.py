"""How long a server's threads were ready to run and had no core: the kernel's own clocks, read twice. Linux only."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from optimizer.clock import REAL_CLOCK
from optimizer.questions.situation import CpuWait

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")
NS, US = 1e-9, 1e-6


@dataclass(frozen=True)
class WaitClocks:
    """Totals at one moment, in seconds. None where this kernel does not tell."""

    time_s: float
    delayed_s: Mapping[int, float]
    """Thread -> time in the run queue; empty where the kernel does not count it."""
    throttled_s: float | None
    machine_s: float | None


def read_clocks(pids: Iterable[int], proc: Path = PROC, cgroup: Path = CGROUP) -> WaitClocks:
    """Of these processes; the first one's container."""
    processes = list(pids)
    return WaitClocks(
        REAL_CLOCK.now_s(),
        {thread: s for pid in processes for thread, s in _delays(proc / str(pid) / "task")},
        _throttled_s(proc / str(processes[0]) / "cgroup", cgroup) if processes else None,
        _machine_s(proc / "pressure" / "cpu"),
    )


def wait_between(first: WaitClocks, last: WaitClocks) -> CpuWait | None:
    """None where nothing could be read. Threads that came later are left out."""
    span_s = last.time_s - first.time_s
    gained = [s - first.delayed_s[t] for t, s in last.delayed_s.items() if t in first.delayed_s]
    if span_s <= 0:
        return None
    found = CpuWait(
        max(gained) / span_s if gained else None,
        _share(first.throttled_s, last.throttled_s, span_s),
        _share(first.machine_s, last.machine_s, span_s),
    )
    return None if found == CpuWait() else found


def _share(first: float | None, last: float | None, span_s: float) -> float | None:
    return None if first is None or last is None else min(max(last - first, 0.0) / span_s, 1.0)


def _delays(tasks: Path) -> list[tuple[int, float]]:
    """proc(5), schedstat: time on the CPU, time in the run queue (both ns), time slices. A kernel without
    CONFIG_SCHED_INFO has no such file, and some sandboxes have only zeros in it."""
    found = []
    for name in _names(tasks):
        fields = _text(tasks / name / "schedstat").split()
        if len(fields) == 3 and fields[0] != "0":
            found.append((int(name), int(fields[1]) * NS))
    return found


def _throttled_s(own: Path, root: Path) -> float | None:
    """cgroup v2: `throttled_usec`; v1: `throttled_time` in ns, of the cpu controller. Only where there is a limit
    (`nr_periods` above 0) has it a meaning."""
    rows = [line.split(":", 2) for line in _text(own).splitlines() if line.count(":") >= 2]
    for _, controllers, path in sorted(rows, key=lambda row: row[1] != ""):
        if controllers and "cpu" not in controllers.split(","):
            continue
        for folder in (root / path.lstrip("/"), root / "cpu" / path.lstrip("/"), root, root / "cpu"):
            stat = dict(line.split(None, 1) for line in _text(folder / "cpu.stat").splitlines() if " " in line)
            if "throttled_usec" in stat and int(stat.get("nr_periods", 0)):
                return int(stat["throttled_usec"]) * US
            if "throttled_time" in stat and int(stat.get("nr_periods", 0)):
                return int(stat["throttled_time"]) * NS
    return None


def _machine_s(pressure: Path) -> float | None:
    """Kernel documentation, PSI: the total of `some` in microseconds."""
    line = next((x for x in _text(pressure).splitlines() if x.startswith("some ")), "")
    total = next((word.removeprefix("total=") for word in line.split() if word.startswith("total=")), "")
    return int(total) * US if total.isdigit() else None


def _names(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return []


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
