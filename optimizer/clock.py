"""One clock for code that runs in real time against a server and in virtual time against the simulator."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds from an arbitrary start, never going back. Not the time of day."""

    def now_s(self) -> float: ...

    def sleep_s(self, seconds: float) -> None:
        """Let this much time pass; nothing for 0 or less."""
        ...


class RealClock:
    """The machine's monotonic clock (system-wide on Linux, so processes of one machine agree on it)."""

    def now_s(self) -> float:
        return time.monotonic()

    def sleep_s(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)


class VirtualClock:
    """Time that passes only when somebody sleeps; starts at `start_s`."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def sleep_s(self, seconds: float) -> None:
        self._now_s += max(seconds, 0.0)

    def advance_to(self, time_s: float) -> None:
        """Move to an absolute time. Raises ValueError for one that has passed."""
        if time_s < self._now_s:
            raise ValueError(f"a clock does not go back: now {self._now_s} s, asked for {time_s} s")
        self._now_s = time_s


REAL_CLOCK = RealClock()
