"""vLLM's paged KV cache, reduced to what decides hits, evictions and preemptions (vLLM 0.32, v1/core/block_pool.py).

Block ids are interchangeable labels: which request gets which free block never changes a hit, only the *order* in
which cached contents lose their block does. So the pool keeps contents, not ids:

- blank blocks: free, without a hash. vLLM prepends them to the free queue, so they are always used up first.
- shared blocks: full prompt blocks that another request of the same load may hit, one entry each, with references.
- private segments: a preempted (or finished) request's other full blocks. Only their owner can hit them, deepest
  block evicted first, so one count per request is exact.

The free queue is therefore `blanks, then entries in LRU order`. Block 0 is vLLM's null block and never free.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Seq

_FIRST_DUPLICATE = 1 << 60


class BlockPool:
    """Free queue, hash map and references of one engine's KV blocks."""

    def __init__(self, n_blocks: int) -> None:
        if n_blocks < 2:
            raise ValueError(f"a KV cache needs at least 2 blocks (one is the null block), got {n_blocks}")
        self.n_blocks = n_blocks
        self.n_free = n_blocks - 1
        self._n_blank = n_blocks - 1
        self._queue: OrderedDict[int, int] = OrderedDict()
        """Free hashed contents, next victim first: shared entry -> 1; private segment (negative) -> blocks."""
        self._by_key: dict[int, int | list[int]] = {}
        """Content key -> its entry, or its entries in the order registered (duplicates are not merged)."""
        self._key_of_duplicate: dict[int, int] = {}
        self._references: dict[int, int] = {}
        self._next_duplicate = _FIRST_DUPLICATE

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
        queue = self._queue
        while n:
            entry = next(iter(queue))
            size = queue[entry]
            if size > n:
                queue[entry] = size - n
                return
            del queue[entry]
            n -= size
            if entry >= 0:
                self._forget(entry)

    def longest_hit(self, keys: Seq[int], owner: int, max_blocks: int) -> tuple[list[int], int, int]:
        """Longest cached prefix of at most `max_blocks` blocks.

        Returns the shared entries hit, the private blocks hit after them, and how many of all these are free now
        (a hit takes them out of the free queue)."""
        entries: list[int] = []
        n_free = 0
        by_key, references = self._by_key, self._references
        for key in keys[:max_blocks]:
            found = by_key.get(key)
            if found is None:
                return entries, 0, n_free
            entry = found if isinstance(found, int) else found[0]
            entries.append(entry)
            if entry not in references:
                n_free += 1
        n_private = min(self._queue.get(~owner, 0), max_blocks - len(entries))
        return entries, n_private, n_free + n_private

    def claim(self, entries: Seq[int], owner: int, n_private: int) -> None:
        """Take a reference on every entry hit and the owner's private blocks back from the free queue."""
        references = self._references
        for entry in entries:
            held = references.get(entry, 0)
            if not held:
                del self._queue[entry]
                self.n_free -= 1
            references[entry] = held + 1
        if n_private:
            left = self._queue.pop(~owner) - n_private
            if left:
                raise AssertionError(f"request {owner}: {left} cached blocks of its own were not hit")
            self.n_free -= n_private

    def register(self, keys: Seq[int], held: list[int]) -> None:
        """Publish blocks a request holds and has scheduled in full, appending their entries to `held`."""
        by_key, references = self._by_key, self._references
        for key in keys:
            found = by_key.get(key)
            if found is None:
                by_key[key] = entry = key
            else:
                entry = self._duplicate(key, found)
            references[entry] = 1
            held.append(entry)

    def release(self, owner: int, n_blocks: int, n_hashed: int, held: Seq[int]) -> None:
        """Free a request's blocks, tail to head: blanks to the front of the queue, contents to its end.

        The first `len(held)` blocks are shared entries, the next ones up to `n_hashed` private, the rest unhashed."""
        n_private = max(n_hashed - len(held), 0)
        n_blank = n_blocks - n_private - len(held)
        self._n_blank += n_blank
        self.n_free += n_blank + n_private
        queue, references = self._queue, self._references
        if n_private:
            queue[~owner] = n_private
        for entry in reversed(held):
            left = references[entry] - 1
            if left:
                references[entry] = left
            else:
                del references[entry]
                queue[entry] = 1
                self.n_free += 1

    def _duplicate(self, key: int, found: int | list[int]) -> int:
        entries = [found] if isinstance(found, int) else found
        entry = self._next_duplicate
        self._next_duplicate += 1
        self._key_of_duplicate[entry] = key
        entries.append(entry)
        self._by_key[key] = entries
        return entry

    def _forget(self, entry: int) -> None:
        key = self._key_of_duplicate.pop(entry, entry)
        found = self._by_key[key]
        if isinstance(found, int):
            del self._by_key[key]
            return
        found.remove(entry)
        if not found:
            del self._by_key[key]
