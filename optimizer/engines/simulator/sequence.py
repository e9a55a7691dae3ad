"""One request inside the scheduler."""

from __future__ import annotations

from enum import IntEnum

from optimizer.engines.simulator.kv_cache import Held
from optimizer.engines.simulator.prefixes import NO_PREFIX, Prefix


class State(IntEnum):
    WAITING = 0
    PREFILL = 1
    DECODE = 2
    LEAVING = 3
    """Its last token is scheduled but not yet known (async scheduling): holds its seat and blocks one step longer."""
    DONE = 4


class Sequence:
    """Mutable state of one request. Token counts, unless named otherwise.

    A decoding sequence is not touched while it decodes: its computed tokens are `offset + tick` of the scheduler."""

    __slots__ = (
        "arrival_s",
        "cached_tokens",
        "computed",
        "first_step_s",
        "held",
        "index",
        "issued",
        "last_tick",
        "limit",
        "n_held",
        "n_preemptions",
        "offset",
        "order",
        "prefix",
        "prompt",
        "range_start",
        "ranges",
        "recomputed",
        "skipped_step",
        "state",
        "target",
    )

    def __init__(self, index: int, prompt: int, limit: int, arrival_s: float = 0.0, prefix: Prefix = NO_PREFIX) -> None:
        self.index = index
        self.prompt = prompt
        self.limit = limit
        """Output tokens until it stops: max_tokens, or what max_model_len leaves."""
        self.arrival_s = arrival_s
        self.prefix = prefix
        self.state = State.WAITING
        self.target = prompt
        """Tokens known at its last admission: prompt plus, after a preemption, what it had generated."""
        self.computed = 0
        self.issued = 0
        """Output tokens scheduled so far (async: the last one may be in flight); exact outside DECODE."""
        self.offset = 0
        self.last_tick = 0
        """Tick at which its last output token is scheduled."""
        self.order = 0
        """Admission number: position in vLLM's `running` list."""
        self.held: Held = []
        self.n_held = 0
        """Blocks of its prefix that it holds and has published."""
        self.ranges: list[tuple[int, int]] = []
        """Steps [first, end) that each gave it one token."""
        self.range_start = -1
        self.skipped_step = -1
        self.n_preemptions = 0
        self.recomputed = 0
        self.cached_tokens = 0
        self.first_step_s: float | None = None

    def close_range(self, end_step: int) -> None:
        """End the current run of consecutive token steps before `end_step`."""
        if self.range_start >= 0 and end_step > self.range_start:
            self.ranges.append((self.range_start, end_step))
        self.range_start = -1
