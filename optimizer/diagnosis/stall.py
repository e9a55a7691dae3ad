"""Whether a log ends in an engine that no longer moves, though nothing in it failed."""

from __future__ import annotations

import re

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
"""Statistics lines, one every 10 s (VLLM_LOG_STATS_INTERVAL), with requests running and no token in or out."""


class Stall:
    """Counts since the engine was last seen to move."""

    def __init__(self) -> None:
        self.n_waits = 0
        self.last_wait: LogLine | None = None
        self.n_still: dict[str, int] = {}
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
            self.n_waits, self.n_still[engine] = 0, 0
        elif numbers.get(2, 0.0) > 0:
            self.n_still[engine] = self.n_still.get(engine, 0) + 1
            self.last_still = line
        else:
            self.n_still[engine] = 0

    def describe(self, is_serving: bool) -> tuple[str, LogLine] | None:
        """The reason and the line that shows it, or None while the engine may still be at work."""
        n_still = max(self.n_still.values(), default=0)
        if n_still >= MIN_STILL and self.last_still is not None:
            return f"requests ran and no token was computed over {n_still} statistics lines", self.last_still
        least = MIN_WAITS_SERVING if is_serving else MIN_WAITS_BOOTING
        if self.n_waits >= least and self.last_wait is not None:
            return f"workers have waited on each other through {self.n_waits} messages", self.last_wait
        return None
