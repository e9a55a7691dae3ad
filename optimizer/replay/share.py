"""What crosses the pipes between the parent and its client processes."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from optimizer.replay.plan import ReplayPlan

LENGTH = struct.Struct("<Q")
"""How a pickled Share begins on the pipe: its size in bytes."""


@dataclass(frozen=True)
class Share:
    """One process's part of a replay: every n-th row."""

    plan: ReplayPlan
    index: int

    @property
    def rows(self) -> range:
        """Rows of the trace, warm-up included, in the order of their arrivals."""
        return range(self.index, len(self.plan.trace), self.plan.n_processes)


@dataclass
class Count:
    """What one process has done so far, warm-up included."""

    n_sent: int = 0
    n_answered: int = 0
    """Requests whose first token came."""
    n_finished: int = 0
    n_failed: int = 0
    n_open: int = 0
    n_measured_over: int = 0
    """Measured rows that are answered or have failed."""
    n_messages: int = 0
    last_message_s: float | None = None
    """CLOCK_MONOTONIC."""


@dataclass
class Exchange:
    """One request of a share: times on CLOCK_MONOTONIC until the parent moves them to the phase clock."""

    row: int
    sent_s: float | None = None
    """When its headers went out; None if it never was sent."""
    end_s: float | None = None
    """Its last message, or when it failed."""
    times_s: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    counts: NDArray[np.int32] | None = None
    """None: one token in every message."""
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    failure: str | None = None


@dataclass(frozen=True)
class ShareResult:
    """What one process brings back."""

    exchanges: tuple[Exchange, ...]
    lags_s: NDArray[np.float64]
    """How much later than due its event loop woke up, sampled all through."""
    cores: float
    """CPU time over wall time while it replayed."""
    cut_reason: str | None
    """Why it ended before every answer was whole; None if it drained."""
    cut_s: float | None
    """CLOCK_MONOTONIC."""
    n_refused_sockets: int
    """Connections that the limit on open files did not allow."""
