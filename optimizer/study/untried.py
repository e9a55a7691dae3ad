"""What was tried and what was not, by the configuration that a point resolves to. Nothing is proposed twice."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from optimizer.errors import OptimizerError
from optimizer.study.regions import FailingRegions, Indices
from search_spaces.parameter import Value

Point = Mapping[str, Value]

_MAX_VISITED = 20_000
"""Neighbours looked at before the rest of a large space is sampled instead of walked."""
_N_SAMPLES = 5_000


class SpaceExhausted(OptimizerError):
    """Every configuration that may be tried was tried or is running. No fault: the study stops and says so."""

    exit_code = 0

    def __init__(self, n_tried: int, n_left_out: int) -> None:
        why = f" ({n_left_out} more lie where every start failed)" if n_left_out else ""
        super().__init__(f"space exhausted after {n_tried}{why}")
        self.n_tried = n_tried
        self.n_left_out = n_left_out


class SearchedSpace(Protocol):
    """What a proposer needs of a search space."""

    @property
    def grid(self) -> Mapping[str, Sequence[Value]]:
        """Parameter name -> every value it may take, in order. A parameter held fixed has one."""
        ...

    def fingerprint(self, point: Point) -> str:
        """Equal for points that start the same servers."""
        ...


class Untried:
    """Tried, running and failing points of one space."""

    def __init__(self, space: SearchedSpace, *, is_avoiding: bool = True) -> None:
        """`is_avoiding`: leave regions out where every start failed."""
        self._is_avoiding = is_avoiding
        self._space = space
        self.names = tuple(space.grid)
        self.levels = tuple(tuple(space.grid[name]) for name in self.names)
        self._is_ordered = tuple(is_ordered(values) for values in self.levels)
        self._regions = FailingRegions([len(v) for v in self.levels], self._is_ordered)
        self._running: dict[str, Indices] = {}
        self._tried: set[str] = set()
        self._prints: dict[Indices, str] = {}
        self.is_ruled_out: Callable[[Point], bool] = lambda point: False
        """Points that are known to fail without having been tried."""

    @property
    def n_tried(self) -> int:
        """Distinct configurations told or running."""
        return len(self._tried | self._running.keys())

    @property
    def regions(self) -> FailingRegions:
        return self._regions

    def indices(self, point: Point) -> Indices:
        """Grid indices of a point; values off the grid go to the nearest level. Raises ValueError for missing names."""
        missing = [name for name in self.names if name not in point]
        if missing:
            raise ValueError(f"the point lacks {', '.join(missing)}: {dict(point)}")
        return tuple(nearest_level(values, point[name]) for name, values in zip(self.names, self.levels, strict=True))

    def point(self, indices: Indices) -> dict[str, Value]:
        return {name: values[i] for name, values, i in zip(self.names, self.levels, indices, strict=True)}

    def start(self, point: Point) -> None:
        self._running[self._space.fingerprint(point)] = self.indices(point)

    def finish(self, point: Point, failure: str | None) -> None:
        """`failure`: the kind of a classified failure; None for a point that ran."""
        fingerprint = self._space.fingerprint(point)
        self._running.pop(fingerprint, None)
        self._tried.add(fingerprint)
        self._regions.add(self.indices(point), failure if self._is_avoiding else None)

    def is_running(self, point: Point) -> bool:
        return self._space.fingerprint(point) in self._running

    def forget(self, point: Point) -> None:
        """It may be proposed again."""
        fingerprint = self._space.fingerprint(point)
        self._running.pop(fingerprint, None)
        self._tried.discard(fingerprint)

    def nearest(self, wanted: Indices, rng: random.Random) -> Indices:
        """`wanted`, or the untried point fewest steps away, drawn among equals. Raises SpaceExhausted."""
        n_seen = n_left_out = 0
        for shell in self._shells(self._into_open_levels(wanted)):
            fresh = sorted(i for i in shell if self._is_untried(i))
            able = [i for i in fresh if self._is_able(i)]
            if able:
                return rng.choice(able)
            n_left_out += len({self._fingerprint(i) for i in fresh})
            n_seen += len(shell)
            if n_seen > _MAX_VISITED:
                return self._sampled(rng, n_left_out)
        raise SpaceExhausted(self.n_tried, n_left_out)

    def _shells(self, start: Indices) -> Iterator[list[Indices]]:
        """Points 0, 1, 2, … steps away. A step moves one axis to the next level, or to any level where none is next."""
        seen, shell = {start}, [start]
        while shell:
            yield shell
            reached: dict[Indices, None] = {}
            for indices in shell:
                for axis in range(len(self.levels)):
                    for level in self._next_levels(axis, indices[axis]):
                        reached[(*indices[:axis], level, *indices[axis + 1 :])] = None
            shell = [i for i in reached if i not in seen]
            seen.update(shell)

    def _next_levels(self, axis: int, level: int) -> Sequence[int]:
        n = len(self.levels[axis])
        if self._is_ordered[axis]:
            return [k for k in (level - 1, level + 1) if 0 <= k < n]
        return [k for k in range(n) if k != level]

    def _sampled(self, rng: random.Random, n_left_out: int) -> Indices:
        for _ in range(_N_SAMPLES):
            indices = tuple(rng.choice(self._regions.open_levels(axis)) for axis in range(len(self.levels)))
            if self._is_untried(indices) and self._is_able(indices):
                return indices
        raise SpaceExhausted(self.n_tried, n_left_out)

    def _into_open_levels(self, indices: Indices) -> Indices:
        return tuple(min(self._regions.open_levels(a), key=lambda k: abs(k - i)) for a, i in enumerate(indices))

    def _is_untried(self, indices: Indices) -> bool:
        fingerprint = self._fingerprint(indices)
        return fingerprint not in self._tried and fingerprint not in self._running

    def _is_able(self, indices: Indices) -> bool:
        """Neither in a region where everything fails nor known to fail."""
        excluded = self._regions.excludes(indices, tuple(self._running.values()))
        return not excluded and not self.is_ruled_out(self.point(indices))

    def _fingerprint(self, indices: Indices) -> str:
        if indices not in self._prints:
            self._prints[indices] = self._space.fingerprint(self.point(indices))
        return self._prints[indices]


def is_ordered(values: Sequence[Value]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def nearest_level(values: Sequence[Value], value: Value) -> int:
    """Index of `value`, else of the nearest number (by ratio above 0). Raises ValueError for another kind of value.

    A held parameter has one level, and everything lies on it."""
    if len(values) == 1:
        return 0
    for i, level in enumerate(values):
        if level == value and isinstance(level, bool) == isinstance(value, bool):
            return i
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values) or isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not one of {list(values)}")
    if value > 0 and min(numbers) > 0:
        return min(range(len(numbers)), key=lambda i: abs(math.log(numbers[i] / value)))
    return min(range(len(numbers)), key=lambda i: abs(numbers[i] - value))
