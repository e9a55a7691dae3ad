"""vLLM's paged KV cache, reduced to what decides hits, evictions and preemptions (vLLM 0.32, v1/core/block_pool.py).

Block ids are interchangeable labels: which request gets which free block never changes a hit, only the *order* in
which cached contents lose their block does. So the pool keeps contents, not ids, and runs of them, not blocks:

- blank blocks: free, without a hash. vLLM prepends them to the free queue, so they are always used up first.
- segments: consecutive full prompt blocks of one run (`prefixes`) that another request of the same load may hit, with
  one count of references. A hit on a part of one cuts it in two.
- private segments: a preempted (or finished) request's other full blocks. Only their owner can hit them.

The free queue is therefore `blanks, then segments in LRU order`, each losing its deepest block first, since a request's
blocks are freed tail to head. Block 0 is vLLM's null block and never free.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from optimizer.engines.simulator.prefixes import Prefix

_PRIVATE = -1


class Segment:
    """Cached contents that are free, or referenced, together: blocks [first, first + size) of a run."""

    __slots__ = ("first", "n_references", "place", "rest", "run", "size")

    def __init__(self, run: int, first: int, size: int) -> None:
        self.run = run
        self.first = first
        self.size = size
        self.n_references = 0
        self.place = 0
        """Where it stands in the free queue."""
        self.rest: Segment | None = None
        """What was last cut off its end: whoever held the whole holds that, too."""

    @property
    def end(self) -> int:
        return self.first + self.size


Held = list[tuple[Segment, int]]
"""Segments a request references, and how many blocks from the first of each (parts cut off since included)."""


@dataclass(frozen=True, slots=True)
class Hit:
    """The longest cached prefix of a request."""

    parts: tuple[tuple[Segment, int, int], ...] = ()
    """(segment, first block in its run, blocks)"""
    n_shared: int = 0
    n_private: int = 0
    """The owner's own blocks, hit after the shared ones."""
    n_free: int = 0
    """How many of all these are free now: the hit takes them out of the free queue."""

    @property
    def n_blocks(self) -> int:
        return self.n_shared + self.n_private


NO_HIT = Hit()


class BlockPool:
    """Free queue, hash map and references of one engine's KV blocks."""

    def __init__(self, n_blocks: int) -> None:
        if n_blocks < 2:
            raise ValueError(f"a KV cache needs at least 2 blocks (one is the null block), got {n_blocks}")
        self.n_blocks = n_blocks
        self.n_free = n_blocks - 1
        self._n_blank = n_blocks - 1
        self._queue: OrderedDict[int, list[Segment]] = OrderedDict()
        """Place -> the segments there, evicted from the last. Places ascend; a private one is ~owner."""
        self._next_place = 0
        self._runs: dict[int, list[Segment]] = {}
        """Run -> its segments in the order registered (duplicates are not merged, the oldest is hit)."""

    @property
    def usage(self) -> float:
        """1 - free / (blocks - 1), as `vllm:kv_cache_usage_perc`."""
        return 1.0 - self.n_free / (self.n_blocks - 1)

    def take(self, n: int) -> None:
        """Hand out `n` blocks from the front of the free queue; evicted contents lose their hash."""
        if n > self.n_free:
            raise ValueError(f"cannot take {n} of {self.n_free} free blocks")
        self.n_free -= n
        if n <= self._n_blank:
            self._n_blank -= n
            return
        n -= self._n_blank
        self._n_blank = 0
        while n:
            n -= self._evict(next(iter(self._queue)), n)

    def _evict(self, place: int, most: int) -> int:
        """Take at most `most` blocks from the deepest segment at a place of the queue; returns how many."""
        here = self._queue[place]
        segment = here[-1]
        if segment.size > most:
            segment.size -= most
            return most
        here.pop()
        if not here:
            del self._queue[place]
        self._forget(segment)
        return segment.size

    def longest_hit(self, prefix: Prefix, owner: int, max_blocks: int) -> Hit:
        """Longest cached prefix of at most `max_blocks` blocks."""
        parts: list[tuple[Segment, int, int]] = []
        n_free = start = 0
        for run, end in zip(prefix.runs, prefix.ends, strict=True):
            most = min(end, max_blocks) - start
            first = 0
            while first < most:
                segment, until = _oldest_at(self._runs.get(run, ()), first)
                if segment is None:
                    return Hit(tuple(parts), start + first, 0, n_free)
                size = min(until, most) - first
                parts.append((segment, first, size))
                if not segment.n_references:
                    n_free += size
                first += size
            start += max(most, 0)
            if start >= max_blocks:
                break
        own = self._queue.get(~owner)
        n_private = min(own[0].size, max_blocks - start) if own else 0
        return Hit(tuple(parts), start, n_private, n_free + n_private)

    def claim(self, hit: Hit, owner: int) -> Held:
        """Take a reference on every segment hit and the owner's private blocks back from the free queue."""
        held: Held = []
        for whole, first, size in hit.parts:
            segment = self._cut(whole, first, size)
            if not segment.n_references:
                self._unqueue(segment)
                self.n_free -= size
            segment.n_references += 1
            held.append((segment, size))
        if hit.n_private:
            left = self._queue.pop(~owner)[0].size - hit.n_private
            if left:
                raise AssertionError(f"request {owner}: {left} cached blocks of its own were not hit")
            self.n_free -= hit.n_private
        return held

    def register(self, prefix: Prefix, held: Held, n_held: int, n_full: int) -> int:
        """Publish the prefix's blocks from `n_held` up to `n_full`, all held; returns how many are published now."""
        until = min(n_full, len(prefix))
        number = bisect_right(prefix.ends, n_held)
        while n_held < until:
            start = prefix.ends[number - 1] if number else 0
            stop = min(prefix.ends[number], until)
            self._publish(prefix.runs[number], n_held - start, stop - n_held, held)
            n_held = stop
            number += 1
        return n_held

    def release(self, owner: int, n_blocks: int, n_hashed: int, held: Seq[tuple[Segment, int]], n_held: int) -> None:
        """Free a request's blocks, tail to head: blanks to the front of the queue, contents to its end.

        The first `n_held` blocks are shared segments, the next ones up to `n_hashed` private, the rest unhashed."""
        n_private = max(n_hashed - n_held, 0)
        n_blank = n_blocks - n_private - n_held
        self._n_blank += n_blank
        self.n_free += n_blank + n_private
        if n_private:
            self._queue[~owner] = [Segment(_PRIVATE, 0, n_private)]
            self._queue[~owner][0].place = ~owner
        for whole, size in reversed(held):
            for segment in reversed(_parts(whole, size)):
                segment.n_references -= 1
                if not segment.n_references:
                    self._enqueue(segment)

    def _publish(self, run: int, first: int, size: int, held: Held) -> None:
        """A new segment; or the request's last one grown, where nobody else has a part in it or came after it."""
        segments = self._runs.setdefault(run, [])
        last, n_last = held[-1] if held else (None, 0)
        if segments and last is segments[-1] and last.end == first and last.size == n_last and last.n_references == 1:
            last.size += size
            held[-1] = (last, last.size)
            return
        segment = Segment(run, first, size)
        segment.n_references = 1
        segments.append(segment)
        held.append((segment, size))

    def _cut(self, segment: Segment, first: int, size: int) -> Segment:
        """The part [first, first + size) of a segment (or of what was cut off it just before) as one of its own."""
        while first >= segment.end and segment.rest is not None:
            segment = segment.rest
        if first > segment.first:
            segment = self._split(segment, first)
        if segment.size > size:
            self._split(segment, first + size)
        return segment

    def _split(self, segment: Segment, at: int) -> Segment:
        """Cut in two; returns the deeper part, which stands beside the other wherever that stands."""
        deeper = Segment(segment.run, at, segment.end - at)
        deeper.n_references, deeper.place, deeper.rest = segment.n_references, segment.place, segment.rest
        segment.size, segment.rest = at - segment.first, deeper
        lists = [self._runs[segment.run]]
        if not segment.n_references:
            lists.append(self._queue[segment.place])
        for segments in lists:
            segments.insert(segments.index(segment) + 1, deeper)
        return deeper

    def _enqueue(self, segment: Segment) -> None:
        segment.place = self._next_place
        self._next_place += 1
        self._queue[segment.place] = [segment]
        self.n_free += segment.size

    def _unqueue(self, segment: Segment) -> None:
        here = self._queue[segment.place]
        if len(here) == 1:
            del self._queue[segment.place]
        else:
            here.remove(segment)

    def _forget(self, segment: Segment) -> None:
        if segment.run == _PRIVATE:
            return
        segments = self._runs[segment.run]
        if len(segments) == 1:
            del self._runs[segment.run]
        else:
            segments.remove(segment)


def _oldest_at(segments: Seq[Segment], block: int) -> tuple[Segment | None, int]:
    """The segment registered first among those that hold this block of their run, and the block up to which it is."""
    until = 1 << 60
    for segment in segments:
        if segment.first > block:
            until = min(until, segment.first)
        elif block < segment.end:
            return segment, min(until, segment.end)
    return None, 0


def _parts(segment: Segment | None, size: int) -> list[Segment]:
    """The segment and what was cut off it while it was held, `size` blocks together."""
    parts = []
    while size > 0 and segment is not None:
        parts.append(segment)
        size -= segment.size
        segment = segment.rest
    return parts
