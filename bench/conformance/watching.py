"""A block pool that tells which contents it evicts, by names that vLLM's side can give them too."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from optimizer.engines.simulator.kv_cache import BlockPool, Segment
from optimizer.engines.simulator.sequence import Sequence

Name = list[int]
"""[request, block]: the first request of the scenario that holds this content, and where in it."""


class WatchedPool(BlockPool):
    """`evicted` grows by one name a block, in order."""

    def __init__(self, n_blocks: int, requests: Iterable[Sequence]) -> None:
        super().__init__(n_blocks)
        self.evicted: list[Name] = []
        self._names: dict[tuple[int, int], Name] = {}
        self._first_private: dict[int, int] = {}
        for request in requests:
            self._name(request)

    @property
    def n_blank(self) -> int:
        """Free blocks whose use evicts nothing."""
        return self._n_blank

    def release(self, owner: int, n_blocks: int, n_hashed: int, held: Seq[tuple[Segment, int]], n_held: int) -> None:
        self._first_private[owner] = n_held
        super().release(owner, n_blocks, n_hashed, held, n_held)

    def _evict(self, place: int, most: int) -> int:
        segment = self._queue[place][-1]
        last = segment.end - 1
        n = super()._evict(place, most)
        for block in range(last, last - n, -1):
            self.evicted.append(
                self._names[segment.run, block] if place >= 0 else [~place, self._first_private[~place] + block]
            )
        return n

    def _name(self, request: Sequence) -> None:
        start = 0
        for run, end in zip(request.prefix.runs, request.prefix.ends, strict=True):
            for block in range(end - start):
                self._names.setdefault((run, block), [request.index, start + block])
            start = end
