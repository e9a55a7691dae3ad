"""The decoding sequences, advanced together: one tick is one token for each of them.

Nothing is done per sequence while it decodes. Buckets say at which tick one ends and at which it needs a block; sums
say what the step's attention reads.
"""

from __future__ import annotations

import heapq

from optimizer.engines.simulator.contexts import ContextSums
from optimizer.engines.simulator.sequence import Sequence


class DecodeSet:
    """Members, the common tick, and what the coming ticks will bring."""

    def __init__(self, block_size: int, windows: tuple[int, ...]) -> None:
        self.tick = 0
        self.contexts = ContextSums(windows)
        self.last_order = -1
        """Highest admission number that ever joined: an upper bound for the members."""
        self._members: dict[Sequence, None] = {}
        self._block_size = block_size
        self._crossings = [0] * block_size
        """Members by the tick (modulo block size) at which they need their next block."""
        self._endings: dict[int, list[Sequence]] = {}
        self._ending_ticks: list[int] = []
        """Heap over `_endings`; may hold ticks that were emptied since."""

    def __len__(self) -> int:
        return len(self._members)

    def add(self, sequence: Sequence, first_step: int) -> None:
        """Decode from the next tick on; `computed` and `issued` must be current. `first_step` starts its token run."""
        sequence.offset = sequence.computed - self.tick
        sequence.last_tick = last_tick = self.tick + sequence.limit - sequence.issued
        sequence.range_start = first_step
        self._members[sequence] = None
        self._crossings[-sequence.offset % self._block_size] += 1
        self.contexts.add(sequence.offset, self.tick)
        self.last_order = max(self.last_order, sequence.order)
        ending = self._endings.get(last_tick)
        if ending is None:
            self._endings[last_tick] = [sequence]
            heapq.heappush(self._ending_ticks, last_tick)
        else:
            ending.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Out before its end, with `computed` and `issued` made current."""
        self._drop(sequence)
        sequence.computed = sequence.offset + self.tick
        sequence.issued = sequence.limit - (sequence.last_tick - self.tick)
        ending = self._endings[sequence.last_tick]
        ending.remove(sequence)
        if not ending:
            del self._endings[sequence.last_tick]

    def advance(self) -> list[Sequence]:
        """One tick. Returns the members that got their last token; they are members no more."""
        self.tick += 1
        endings = self._endings.pop(self.tick, None)
        if endings is None:
            return []
        for sequence in endings:
            self._drop(sequence)
        return endings

    def jump(self, n_ticks: int) -> None:
        """At most `n_uniform()` ticks at once."""
        self.tick += n_ticks

    def needs_block(self, sequence: Sequence) -> bool:
        """At the next tick."""
        return (sequence.offset + self.tick) % self._block_size == 0

    def blocks_needed(self, n_ticks: int = 1) -> int:
        """Over the next `n_ticks` ticks, provided that nobody joins or leaves."""
        block, crossings = self._block_size, self._crossings
        rounds, rest = divmod(n_ticks, block)
        start = self.tick % block
        needed = rounds * len(self._members)
        if start + rest <= block:
            return needed + sum(crossings[start : start + rest])
        return needed + sum(crossings[start:]) + sum(crossings[: start + rest - block])

    def n_uniform(self) -> int:
        """Coming ticks in which nobody ends and every context sum grows by the same amount."""
        heap = self._ending_ticks
        while heap and heap[0] not in self._endings:
            heapq.heappop(heap)
        if not heap:
            return 0
        return min(heap[0] - self.tick - 1, self.contexts.n_uniform(self.tick))

    def n_affordable(self, n_ticks: int, n_free: int) -> int:
        """The largest found number of ticks, at most `n_ticks`, that `n_free` blocks are enough for."""
        block = self._block_size
        if len(self._members) * -(-n_ticks // block) <= n_free:
            return max(n_ticks, 0)
        while n_ticks > 0 and self.blocks_needed(n_ticks) > n_free:
            n_ticks = n_ticks - 1 if n_ticks <= 2 * block else n_ticks // 2
        return max(n_ticks, 0)

    def _drop(self, sequence: Sequence) -> None:
        del self._members[sequence]
        self._crossings[-sequence.offset % self._block_size] -= 1
        self.contexts.remove(sequence.offset, self.tick)
