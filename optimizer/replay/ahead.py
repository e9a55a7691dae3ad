"""Request bodies made before they are due: some ahead, never all, so that neither time nor memory runs short."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from optimizer.replay.bodies import Bodies

AHEAD_BYTES = 64 * 2**20
"""About 90 prompts of 100,000 tokens, or 10,000 of 1,000; made in a quarter of a second."""
PAUSE_S = 0.002
"""Between two bodies, so that sends and reads come first: the largest takes 2 ms."""


class BodiesAhead:
    """Bodies of rows that are taken in order."""

    def __init__(self, bodies: Bodies, rows: Iterable[int], ahead_bytes: int = AHEAD_BYTES) -> None:
        self._bodies, self._ahead_bytes = bodies, ahead_bytes
        self._rows = deque(rows)
        self._made: dict[int, bytes] = {}
        self._n_bytes = 0
        self._has_room = asyncio.Event()

    def fill(self) -> None:
        """Make bodies until there is enough, at once. For the time before the first send."""
        while self._make_one():
            pass

    async def keep_full(self) -> None:
        """Make a body whenever there is room, until the last."""
        while self._rows:
            if self._make_one():
                await asyncio.sleep(PAUSE_S)
            else:
                self._has_room.clear()
                await self._has_room.wait()

    def take(self, row: int) -> bytes:
        """A row's body; made now if it was not made ahead."""
        body = self._made.pop(row, None)
        if body is None:
            while self._rows and self._rows[0] <= row:
                self._rows.popleft()
            return self._bodies.body(row)
        self._n_bytes -= len(body)
        self._has_room.set()
        return body

    def _make_one(self) -> bool:
        if not self._rows or self._n_bytes >= self._ahead_bytes:
            return False
        row = self._rows.popleft()
        self._made[row] = self._bodies.body(row)
        self._n_bytes += len(self._made[row])
        return True
