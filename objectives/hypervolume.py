"""Hypervolume on axes that are frozen at study start, so that studies of one reference compare.

Each objective becomes a share of 1 relative to the reference configuration b: to be maximized log2(x / b), clipped to
+-0.5; to be minimized log2(b / x), clipped to +-2; both mapped to [0, 1], 1 best. The reference point is 0 on every
axis, b itself lies at 0.5. Feasible points only: that is the caller's to see to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from objectives.objective import Objective

MAXIMIZE_OCTAVES = 0.5
MINIMIZE_OCTAVES = 2.0


@dataclass(frozen=True, slots=True)
class Axes:
    """One axis an objective, frozen from the reference's values.

    Raises ValueError unless every reference value is a positive number."""

    objectives: tuple[Objective, ...]
    reference: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.objectives) != len(self.reference):
            raise ValueError(f"{len(self.objectives)} objectives need as many reference values, got {self.reference}")
        for objective, value in zip(self.objectives, self.reference, strict=True):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"the reference's {objective.metric} must be above 0 to be an axis, got {value}")

    @property
    def octaves(self) -> NDArray[np.float64]:
        """Half-width of each axis in powers of 2."""
        return np.array([MAXIMIZE_OCTAVES if o.direction == "maximize" else MINIMIZE_OCTAVES for o in self.objectives])

    def raw(self, values: Sequence[Sequence[float]]) -> NDArray[np.float64]:
        """(n, d) positions without clipping: 0.5 is the reference, +1 the axis' whole width, higher is better.

        A value of 0 (or below) lies at -inf to be maximized and at +inf to be minimized."""
        array = np.asarray(values, np.float64).reshape(-1, len(self.objectives))
        if not np.isfinite(array).all():
            raise ValueError("only finite objective values have a place on the axes; leave unread trials out")
        with np.errstate(divide="ignore"):
            ratio = np.log2(np.maximum(array, 0.0) / np.array(self.reference))
        sign = np.array([1.0 if o.direction == "maximize" else -1.0 for o in self.objectives])
        return np.asarray(0.5 + sign * ratio / (2 * self.octaves), np.float64)

    def unit(self, values: Sequence[Sequence[float]]) -> NDArray[np.float64]:
        """(n, d) positions in [0, 1]."""
        return np.clip(self.raw(values), 0.0, 1.0)

    def volume(self, values: Sequence[Sequence[float]]) -> float:
        """Share of the box of all positions that the points dominate, in [0, 1]; 0 without points."""
        return hypervolume(self.unit(values))


def hypervolume(points: ArrayLike) -> float:
    """Exact volume between the origin and the union of boxes [0, p], for any small number of dimensions.

    All coordinates are to be maximized and must be at least 0. Slices along the last axis; O(n^(d-1) log n)."""
    array = np.atleast_2d(np.asarray(points, np.float64))
    if array.size == 0:
        return 0.0
    if not np.isfinite(array).all() or (array < 0).any():
        raise ValueError("hypervolume needs finite points with no coordinate below 0")
    return _volume(array[(array > 0).all(axis=1)])


def _volume(points: NDArray[np.float64]) -> float:
    if not len(points):
        return 0.0
    if points.shape[1] == 1:
        return float(points.max())
    if points.shape[1] == 2:
        return _area(points)
    ordered = points[np.argsort(-points[:, -1], kind="stable")]
    depth = ordered[:, -1] - np.append(ordered[1:, -1], 0.0)
    return sum(float(d) * _volume(ordered[: k + 1, :-1]) for k, d in enumerate(depth) if d > 0)


def _area(points: NDArray[np.float64]) -> float:
    """Staircase: by descending x, every point adds the strip by which it is higher than all before it."""
    ordered = points[np.argsort(-points[:, 0], kind="stable")]
    height = np.maximum.accumulate(ordered[:, 1])
    width = ordered[:, 0] - np.append(ordered[1:, 0], 0.0)
    return float((height * width).sum())
