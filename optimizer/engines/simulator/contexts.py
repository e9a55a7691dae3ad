"""Sums over decoding sequences of the tokens each attends to, per attention window, without touching a sequence."""

from __future__ import annotations

import heapq

_FOREVER = 1 << 60


class _WindowSum:
    """Sum of min(offset + tick, window). Sequences grow by one a tick until their window is full."""

    __slots__ = ("_base", "_fills", "_n_growing", "_window")

    def __init__(self, window: int) -> None:
        self._window = window
        self._base = 0
        self._n_growing = 0
        self._fills: list[tuple[int, int]] = []
        """Heap of (tick at which the window is full, +1 joined or -1 dropped before)."""

    def _is_growing(self, offset: int, tick: int) -> bool:
        return not self._window or offset + tick < self._window

    def add(self, offset: int, tick: int, sign: int) -> None:
        self._settle(tick)
        if self._is_growing(offset, tick):
            self._base += sign * offset
            self._n_growing += sign
            if self._window:
                heapq.heappush(self._fills, (self._window - offset, sign))
        else:
            self._base += sign * self._window

    def at(self, tick: int) -> int:
        if self._fills:
            self._settle(tick)
        return self._base + self._n_growing * tick

    def slope(self, tick: int) -> int:
        self._settle(tick)
        return self._n_growing

    def n_uniform(self, tick: int) -> int:
        """Ticks after this one during which the sum grows by the same amount each."""
        self._settle(tick)
        return self._fills[0][0] - tick if self._fills else _FOREVER

    def _settle(self, tick: int) -> None:
        fills = self._fills
        while fills and fills[0][0] <= tick:
            full_tick, sign = heapq.heappop(fills)
            self._base += sign * full_tick
            self._n_growing -= sign


class ContextSums:
    """One sum per distinct window of the model (0: no window)."""

    def __init__(self, windows: tuple[int, ...]) -> None:
        self._sums = [_WindowSum(w) for w in windows]

    def add(self, offset: int, tick: int) -> None:
        for s in self._sums:
            s.add(offset, tick, 1)

    def remove(self, offset: int, tick: int) -> None:
        for s in self._sums:
            s.add(offset, tick, -1)

    def at(self, tick: int) -> tuple[int, ...]:
        return tuple([s.at(tick) for s in self._sums])

    def slopes(self, tick: int) -> tuple[int, ...]:
        return tuple([s.slope(tick) for s in self._sums])

    def n_uniform(self, tick: int) -> int:
        return min([s.n_uniform(tick) for s in self._sums])
