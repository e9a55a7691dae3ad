"""Regions that only fail: levels of one parameter where nothing ever ran, so that no more launches are spent there.

Two failures of the same kind on a level where nothing ran make it suspect: one more is allowed, to make sure. A third
closes it. Where the same failure also happens elsewhere, a level or a tail of levels (all above, or all below) is
closed only when chance is an unlikely reason (hypergeometric, below `MAX_CHANCE`). One survivor opens a region again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Indices = tuple[int, ...]

N_FAILURES_TO_CLOSE = 3
MAX_CHANCE = 0.01
"""A space has about a hundred candidate regions: one closed by mistake in a study or less."""


@dataclass(frozen=True)
class Region:
    """Levels low..high (grid indices, both included) of one axis."""

    axis: int
    low: int
    high: int

    def __contains__(self, indices: object) -> bool:
        return isinstance(indices, tuple) and self.low <= indices[self.axis] <= self.high

    @property
    def n_levels(self) -> int:
        return self.high - self.low + 1


class FailingRegions:
    """Learns from tried points which regions to leave out. An axis never loses its last level."""

    def __init__(self, n_levels: Sequence[int], is_ordered: Sequence[bool]) -> None:
        self._n_levels = tuple(n_levels)
        self._is_ordered = tuple(is_ordered)
        self._tried: list[tuple[Indices, str | None]] = []
        self._judged: tuple[tuple[Region, ...], tuple[tuple[Region, int], ...]] | None = ((), ())
        """(closed, suspect with their failures); None when something was tried since."""

    def add(self, indices: Indices, failure: str | None) -> None:
        """`failure`: the kind of a classified failure, None for a point that ran."""
        self._tried.append((indices, failure))
        self._judged = None

    def excludes(self, indices: Indices, running: Sequence[Indices]) -> bool:
        """True in a closed region, and in a suspect one whose last chance is taken or in flight."""
        closed, suspect = self._judgement
        if any(indices in region for region in closed):
            return True
        return any(
            indices in region and n + sum(r in region for r in running) >= N_FAILURES_TO_CLOSE for region, n in suspect
        )

    def open_levels(self, axis: int) -> tuple[int, ...]:
        """Levels of one axis that no closed region covers."""
        closed = [r for r in self.closed if r.axis == axis]
        return tuple(k for k in range(self._n_levels[axis]) if not any(r.low <= k <= r.high for r in closed))

    @property
    def closed(self) -> tuple[Region, ...]:
        return self._judgement[0]

    @property
    def _judgement(self) -> tuple[tuple[Region, ...], tuple[tuple[Region, int], ...]]:
        if self._judged is None:
            self._judged = self._judge()
        return self._judged

    def _judge(self) -> tuple[tuple[Region, ...], tuple[tuple[Region, int], ...]]:
        """The fewest regions that explain each kind's failures: the one with most of them first, then the rest."""
        closed: list[Region] = []
        suspect: list[tuple[Region, int]] = []
        for kind in dict.fromkeys(k for _, k in self._tried if k is not None):
            unexplained = [i for i, k in self._tried if k == kind]
            while best := self._best(kind, unexplained, closed):
                closed += [region for region, n in best if n >= N_FAILURES_TO_CLOSE]
                suspect += [(region, n) for region, n in best if n < N_FAILURES_TO_CLOSE]
                unexplained = [i for i in unexplained if not any(i in region for region, _ in best)]
        return tuple(closed), tuple(suspect)

    def _best(self, kind: str, failures: Sequence[Indices], closed: Sequence[Region]) -> list[tuple[Region, int]]:
        """The regions with most failures, of these the narrowest; several when they cannot be told apart."""
        counted = [(region, sum(i in region for i in failures)) for region in self._candidates(failures)]
        able = [(r, n) for r, n in counted if n >= 2 and self._is_hopeless(r, kind) and self._leaves_a_level(r, closed)]
        if not able:
            return []
        rank = {entry: (-entry[1], entry[0].n_levels / self._n_levels[entry[0].axis]) for entry in able}
        best = min(rank.values())
        return [entry for entry in able if rank[entry] == best]

    def _candidates(self, failures: Sequence[Indices]) -> Iterator[Region]:
        for axis, n_levels in enumerate(self._n_levels):
            for level in sorted({i[axis] for i in failures}):
                yield Region(axis, level, level)
                if self._is_ordered[axis]:
                    tails = (Region(axis, 0, level), Region(axis, level, n_levels - 1))
                    yield from (r for r in tails if r.n_levels > 1)

    def _is_hopeless(self, region: Region, kind: str) -> bool:
        """Nothing ever ran in it, and the failure belongs to it: it happens nowhere else, or too often for chance."""
        inside = [k for i, k in self._tried if i in region]
        if region.n_levels == self._n_levels[region.axis] or any(k is None for k in inside):
            return False
        n_failed = sum(k == kind for _, k in self._tried)
        n_inside = sum(k == kind for k in inside)
        if n_failed == n_inside and region.n_levels == 1:
            return True
        return chance_of_all(len(self._tried), n_failed, n_inside) < MAX_CHANCE

    def _leaves_a_level(self, region: Region, closed: Sequence[Region]) -> bool:
        others = [r for r in (*closed, region) if r.axis == region.axis]
        return any(not any(r.low <= k <= r.high for r in others) for k in range(self._n_levels[region.axis]))


def chance_of_all(n: int, n_failed: int, n_inside: int) -> float:
    """Chance that `n_inside` points drawn from `n`, of which `n_failed` failed, all failed."""
    return math.comb(n_failed, n_inside) / math.comb(n, n_inside)
