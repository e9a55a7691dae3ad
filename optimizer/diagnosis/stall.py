"""Whether a log ends in an engine that no longer moves, though nothing in it failed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from optimizer.diagnosis.log_line import LogLine

_WAITING = re.compile(r"No available shared memory broadcast block found")
_STATISTICS = re.compile(r"generation throughput: ([\d.]+) tokens/s|Running: (\d+) reqs")
_PROMPTS = re.compile(r"prompt throughput: ([\d.]+) tokens/s")
_ENGINE = re.compile(r"Engine (\d+)")
_RESULT = re.compile(r"HTTP/[\d.]+\" 200")

MIN_WAITS_SERVING, MIN_WAITS_BOOTING = 2, 5
"""Each is a minute without a block (vLLM 0.32 distributed/device_communicators/shm_broadcast.py:108). A boot may
compile or load through several."""
MIN_STILL = 6
"""Statistics lines, one every 10 s, with requests running and no token in or out."""
MIN_STILL_S, MIN_STILL_TIMED = 50.0, 3
"""... or fewer that lie this far apart: VLLM_LOG_STATS_INTERVAL may be longer."""


@dataclass(frozen=True)
class Still:
    """Statistics lines of one engine in a row that show requests and no token."""

    n_lines: int = 0
    since_s: float | None = None
    last_s: float | None = None

    def then(self, line: LogLine) -> Still:
        since_s = self.since_s if self.n_lines else line.time_s
        return Still(self.n_lines + 1, since_s, line.time_s)

    @property
    def is_long(self) -> bool:
        span_s = self.last_s - self.since_s if self.since_s is not None and self.last_s is not None else 0.0
        return self.n_lines >= (MIN_STILL_TIMED if span_s >= MIN_STILL_S else MIN_STILL)


class Stall:
    """Counts since the engine was last seen to move."""

    def __init__(self) -> None:
        self.n_waits = 0
        self.last_wait: LogLine | None = None
        self._still: dict[str, Still] = {}
        self.last_still: LogLine | None = None

    def move(self) -> None:
        """The boot went on."""
        self.n_waits = 0

    def feed(self, line: LogLine) -> None:
        message = line.message
        if _WAITING.search(message):
            self.n_waits, self.last_wait = self.n_waits + 1, line
        elif "throughput" in message and "Running" in message:
            self._feed_statistics(line)
        elif self.n_waits and "POST" in message and _RESULT.search(message):
            self.n_waits = 0

    def _feed_statistics(self, line: LogLine) -> None:
        engine = found[1] if (found := _ENGINE.search(line.message)) else ""
        numbers = {i: float(m[i]) for m in _STATISTICS.finditer(line.message) for i in (1, 2) if m[i]}
        n_tokens = numbers.get(1, 1.0) + (float(found[1]) if (found := _PROMPTS.search(line.message)) else 0.0)
        if n_tokens > 0:
            self.n_waits = 0
            self._still.pop(engine, None)
        elif numbers.get(2, 0.0) > 0:
            self._still[engine] = self._still.get(engine, Still()).then(line)
            self.last_still = line
        else:
            self._still.pop(engine, None)

    def describe(self, is_serving: bool) -> tuple[str, LogLine] | None:
        """The reason and the line that shows it, or None while the engine may still be at work."""
        n_still = max((s.n_lines for s in self._still.values() if s.is_long), default=0)
        if n_still and self.last_still is not None:
            return f"requests ran and no token was computed over {n_still} statistics lines", self.last_still
        least = MIN_WAITS_SERVING if is_serving else MIN_WAITS_BOOTING
        if self.n_waits >= least and self.last_wait is not None:
            return f"workers have waited on each other through {self.n_waits} messages", self.last_wait
        return None
