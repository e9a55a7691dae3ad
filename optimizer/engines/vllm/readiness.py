"""How long a starting server may be silent: as long as it moves, and by what it is doing.

A boot takes half a minute or half an hour (weights from a network disk, a cold compilation), so no flat limit fits.
Two things are asked instead. Does anything move: a telling line in the log, CPU time, bytes read? And how long has
the log shown no progress, against what its phase may take at worst?
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import psutil

STILL_LIMIT_S = 120.0
"""Nothing moved at all: no line, less than MOVING_CORES, no bytes."""
STOPPED_LIMIT_S = 15.0
"""A process of it was stopped by a signal; nobody will continue it."""
MOVING_CORES = 0.02
"""A waiting Python with its threads uses a hundredth of a core."""
READ_BYTES_PER_S = 20e6
"""The slowest disk that weights are expected from."""
PHASE_LIMITS_S = {
    "config": 600.0,
    "load": 900.0,
    "kv_alloc": 900.0,
    "warmup": 3600.0,
    "graph_capture": 1800.0,
    "serving": 600.0,
}
"""Without progress in the log while it is busy. A compilation of 2222 s has been reported, hence the hour."""


@dataclass(frozen=True)
class Activity:
    """What the processes of a server have used so far."""

    cpu_s: float = 0.0
    read_bytes: int = 0
    stopped: tuple[int, ...] = ()
    """Those that a signal stopped."""


def activity_of(pids: Iterable[int]) -> Activity:
    cpu_s, read_bytes, stopped = 0.0, 0, []
    for pid in pids:
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            times = process.cpu_times()
            cpu_s += times.user + times.system
            if process.status() == psutil.STATUS_STOPPED:
                stopped.append(pid)
            read_bytes += process.io_counters().read_bytes
    return Activity(cpu_s, read_bytes, tuple(stopped))


@dataclass
class Patience:
    """Told what happens during one boot; says when it is hopeless. Times are seconds on one monotonic clock."""

    begin_s: float
    weight_bytes: int = 0
    phase_limits_s: Mapping[str, float] = field(default_factory=lambda: PHASE_LIMITS_S)
    still_limit_s: float = STILL_LIMIT_S
    stopped_limit_s: float = STOPPED_LIMIT_S

    def __post_init__(self) -> None:
        self._last_line_s = self._last_move_s = self._last_look_s = self.begin_s
        self._stopped_since_s: float | None = None
        self._seen = Activity()

    def note_progress(self, now_s: float) -> None:
        """A line of the log showed progress."""
        self._last_line_s = self._last_move_s = now_s

    def note_activity(self, activity: Activity, now_s: float) -> None:
        elapsed_s = max(now_s - self._last_look_s, 1e-6)
        used_cores = (activity.cpu_s - self._seen.cpu_s) / elapsed_s
        if used_cores > MOVING_CORES or activity.read_bytes > self._seen.read_bytes:
            self._last_move_s = now_s
        if not activity.stopped:
            self._stopped_since_s = None
        elif self._stopped_since_s is None:
            self._stopped_since_s = now_s
        self._seen, self._last_look_s = activity, now_s

    def limit_s(self, phase: str) -> float:
        """What this phase may take without a line that shows progress."""
        loading_s = self.weight_bytes / READ_BYTES_PER_S if phase == "load" else 0.0
        return self.phase_limits_s.get(phase, max(self.phase_limits_s.values())) + loading_s

    def why_hopeless(self, phase: str, now_s: float) -> str | None:
        """One line, or None while it may still come up."""
        if self._stopped_since_s is not None and now_s - self._stopped_since_s > self.stopped_limit_s:
            pids = ", ".join(map(str, self._seen.stopped))
            return f"process {pids} of the server was stopped by a signal while it started"
        if now_s - self._last_move_s > self.still_limit_s:
            return f"the server has neither computed, read nor logged anything for {self.still_limit_s:.0f} s"
        limit_s = self.limit_s(phase)
        if now_s - self._last_line_s > limit_s:
            return f"the server's log has shown no progress for {limit_s:.0f} s, the most its phase {phase} may take"
        return None
