"""Is a server still getting anywhere? `/health` says 200 while the HTTP front stands, whatever the engine does.

Progress is a token: a total that grew, or a message that reached the client. A long prefill has none; while it runs
the engine still shows that it steps (any gauge or total moves: KV blocks are taken chunk by chunk) or, inside one long
step, that it computes. Computing alone is believed for a few times as long and no longer: a kernel that waits for
another card forever keeps its GPU "busy" and a core spinning too.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

BUSY_FACTOR = 4.0
"""A silent engine that computes is given this many times the limit: at 30 s a single step may take two minutes."""
BUSY_CORES = 0.2
"""CPU use of an engine's processes that counts as computing: a worker that waits for its GPU spins on one core, and a
CPU worker uses what it gets; an idle engine's processes use a few hundredths (0.02 seen)."""


@dataclass(frozen=True)
class Sign:
    """One look at a server, about once a second. None: not known."""

    time_s: float
    tokens_total: float | None
    """Generation tokens since the server's start."""
    n_running: float | None
    n_in_flight: int | None = None
    """Requests that our client has sent and not had answered."""
    last_client_message_s: float | None = None
    """When the client last got a token."""
    state: Hashable = None
    """Everything else that moves when the engine steps (other totals, queue lengths, KV usage)."""
    engine_cores: float | None = None
    """CPU use of the processes that compute since the look before."""


class ProgressWatchdog:
    """One server's. Fed in order of time; says once and for all that it hangs."""

    def __init__(self, limit_s: float, busy_limit_s: float | None = None) -> None:
        """`limit_s`: longest silence of a server that has work. `busy_limit_s`: the same for one that computes
        (default: four times as long)."""
        if limit_s <= 0:
            raise ValueError(f"the longest silence must be above 0 s, got {limit_s:g}")
        self._limit_s = limit_s
        self._busy_limit_s = BUSY_FACTOR * limit_s if busy_limit_s is None else busy_limit_s
        self._seen: dict[str, Hashable] = {}
        self._progress_s: float | None = None
        self._still_since_s = 0.0
        self._verdict: str | None = None

    def feed(
        self,
        time_s: float,
        tokens_total: float | None,
        n_running: float | None,
        last_client_message_s: float | None = None,
    ) -> str | None:
        """`look` with the least that must be known."""
        return self.look(Sign(time_s, tokens_total, n_running, last_client_message_s=last_client_message_s))

    def look(self, sign: Sign) -> str | None:
        """Why it hangs, in one line; None while it does not."""
        has_moved = self._has_moved(sign)
        if self._progress_s is None or has_moved or not _has_work(sign):
            self._progress_s = self._still_since_s = sign.time_s
        elif (sign.engine_cores or 0.0) >= BUSY_CORES:
            self._still_since_s = sign.time_s
        self._verdict = self._verdict or self._judge(sign, self._progress_s)
        return self._verdict

    def _has_moved(self, sign: Sign) -> bool:
        """Against the last that was known: a reading that fails between two equal ones is no movement."""
        now = {"tokens": sign.tokens_total, "message": sign.last_client_message_s, "state": sign.state}
        known = {name: value for name, value in now.items() if value is not None}
        has_moved = any(self._seen.get(name, value) != value for name, value in known.items())
        self._seen |= known
        return has_moved

    def _judge(self, sign: Sign, progress_s: float) -> str | None:
        silent_s = sign.time_s - progress_s
        if sign.time_s - self._still_since_s < self._limit_s and silent_s < self._busy_limit_s:
            return None
        at_work = "" if sign.engine_cores is None else f"; its processes use {sign.engine_cores:.2g} cores"
        return f"{_work(sign)} and no token for {silent_s:.0f} s{at_work}"


def _has_work(sign: Sign) -> bool:
    """Where the server does not answer, the client knows."""
    return bool(sign.n_running) or bool(sign.n_in_flight)


def _work(sign: Sign) -> str:
    if sign.n_running:
        return f"{sign.n_running:.0f} request(s) running"
    answer = "/metrics does not answer" if sign.n_running is None else "none running"
    return f"{sign.n_in_flight} request(s) in flight ({answer})"
