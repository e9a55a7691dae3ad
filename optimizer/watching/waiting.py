"""What kept a server from the CPU: its container's limit, and the pressure on the machine. Read twice. Linux only."""

from __future__ import annotations

from collections.abc import Iterable
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
    throttled_s: float | None
    machine_s: float | None


def read_clocks(pids: Iterable[int], proc: Path = PROC, cgroup: Path = CGROUP) -> WaitClocks:
    """Of these processes; the first one's container."""
    processes = list(pids)
    return WaitClocks(
        REAL_CLOCK.now_s(),
        _throttled_s(proc / str(processes[0]) / "cgroup", cgroup) if processes else None,
        _machine_s(proc / "pressure" / "cpu"),
    )


def wait_between(first: WaitClocks, last: WaitClocks) -> CpuWait | None:
    """None where nothing could be read."""
    span_s = last.time_s - first.time_s
    if span_s <= 0:
        return None
    found = CpuWait(
        _share(first.throttled_s, last.throttled_s, span_s),
        _share(first.machine_s, last.machine_s, span_s),
    )
    return None if found == CpuWait() else found


def _share(first: float | None, last: float | None, span_s: float) -> float | None:
    return None if first is None or last is None else min(max(last - first, 0.0) / span_s, 1.0)


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


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
