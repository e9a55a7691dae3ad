"""Dominance, front and named picks among feasible points. Differences inside the noise floor are ties.

Every function takes values that are all finite: a trial without values, or with a limit missed, is never a point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from objectives.hypervolume import Axes
from objectives.objective import Objective

Values = Sequence[Sequence[float]]
Floors = Sequence[float]
"""Relative floor of each objective, in order: 0.02 means that the larger being up to 2 % above the smaller is a tie."""


@dataclass(frozen=True, slots=True)
class TieBreak:
    """What decides between points that the noise cannot tell apart: fewest preemptions, then nearness to the front's
    ideal, then most memory headroom. Unknown loses."""

    preemptions_per_request: float | None = None
    free_memory_bytes: float | None = None

    @property
    def rank(self) -> tuple[float, float]:
        """Lower is better: fewest preemptions, then most memory headroom."""
        n = math.inf if self.preemptions_per_request is None else self.preemptions_per_request
        return n, math.inf if self.free_memory_bytes is None else -self.free_memory_bytes


@dataclass(frozen=True, slots=True)
class Pick:
    """A front member with a name."""

    name: str
    index: int
    """Position in the values given."""
    tied: tuple[int, ...] = ()
    """Front members that are the same within the noise; the tie-break chose `index` among them."""


def dominates(
    a: Sequence[float], b: Sequence[float], objectives: Sequence[Objective], floors: Floors | None = None
) -> bool:
    """True if `a` is better than `b` beyond the floor in one objective and worse beyond the floor in none."""
    gain = _gains(np.array([a, b], np.float64), objectives, floors)[0, 1]
    return bool((gain > 0).any() and (gain >= 0).all())


def front(values: Values, objectives: Sequence[Objective], floors: Floors | None = None) -> tuple[int, ...]:
    """Indices of the points that no member of the front dominates, in the order given; never empty for a non-empty
    input. Every point left out is dominated by one that is in.

    With a floor, dominance is not transitive: a point whose only dominator is itself left out stays, or a value beyond
    the noise would be lost for one that nobody shows. It can even run in a circle (each better than the next by more
    than noise in another objective); such points tie."""
    array = _points(values, objectives)
    if not len(array):
        return ()
    gain = _gains(array, objectives, floors)
    over = np.asarray((gain > 0).any(axis=2) & (gain >= 0).all(axis=2), np.bool_)
    reach: NDArray[np.bool_] = over.copy()
    for via in range(len(array)):
        reach |= reach[:, via : via + 1] & reach[via]
    over &= ~reach.T
    is_in = np.ones(len(array), np.bool_)
    for i in np.argsort((reach & ~reach.T).sum(axis=0), kind="stable"):  # whatever reaches a point comes before it
        is_in[i] = not (over[:, i] & is_in).any()
    return tuple(int(i) for i in np.flatnonzero(is_in))


def picks(
    values: Values,
    objectives: Sequence[Objective],
    axes: Axes,
    floors: Floors | None = None,
    tie_breaks: Sequence[TieBreak] | None = None,
) -> tuple[Pick, ...]:
    """The best of each objective and the knee, chosen from the front. Empty without points."""
    members = front(values, objectives, floors)
    if not members:
        return ()
    position = axes.raw(values)
    ranks = [t.rank for t in tie_breaks] if tie_breaks is not None else [TieBreak().rank] * len(values)
    miss = _miss(position, members)
    found = []
    for k, objective in enumerate(objectives):
        tied = _tied_best(values, members, objectives, floors, k)
        found.append(_pick(_name(objective), tied, ranks, miss))
    slack = _floor_width(axes, floors)
    near = [i for i in members if miss[i] <= min(miss[j] for j in members) + slack]
    return (*found, _pick("knee", near, ranks, miss))


def knee(values: Values, objectives: Sequence[Objective], axes: Axes, floors: Floors | None = None) -> int | None:
    """The front member nearest to the front's ideal (each objective's best), in the hypervolume's axes, unclipped."""
    members = front(values, objectives, floors)
    if not members:
        return None
    miss = _miss(axes.raw(values), members)
    return min(members, key=lambda i: miss[i])


def _pick(name: str, tied: Sequence[int], ranks: Sequence[tuple[float, float]], miss: NDArray[np.float64]) -> Pick:
    best = min(tied, key=lambda i: (ranks[i][0], miss[i], ranks[i][1], i))
    return Pick(name, best, tuple(i for i in tied if i != best))


def _tied_best(
    values: Values, members: Sequence[int], objectives: Sequence[Objective], floors: Floors | None, k: int
) -> list[int]:
    """Front members that are within the floor of the best in objective k."""
    column = np.array([[values[i][k]] for i in members], np.float64)
    gain = _gains(column, [objectives[k]], None if floors is None else [floors[k]])[:, :, 0]
    plain = _gains(column, [objectives[k]], None)[:, :, 0]
    best = int(np.argmax((plain >= 0).all(axis=1)))
    return [i for row, i in enumerate(members) if gain[best, row] <= 0]


def _miss(position: NDArray[np.float64], members: Sequence[int]) -> NDArray[np.float64]:
    """(n,) distance of every point to the members' ideal."""
    limited = np.clip(position, -10.0, 11.0)
    ideal = limited[list(members)].max(axis=0)
    return np.asarray(np.linalg.norm(np.maximum(ideal - limited, 0.0), axis=1), np.float64)


def _floor_width(axes: Axes, floors: Floors | None) -> float:
    """The floors as one distance on the axes."""
    if floors is None:
        return 0.0
    widths = [math.log2(1 + f) / (2 * o) for f, o in zip(floors, axes.octaves, strict=True)]
    return float(np.linalg.norm(widths))


def _name(objective: Objective) -> str:
    """`most output_tokens_per_s_per_gpu` or `lowest ttft_p99_ms`: the metric without its load."""
    figure = objective.metric.split("_", 1)[1]
    return f"{'most' if objective.direction == 'maximize' else 'lowest'} {_SHORT.get(figure, figure)}"


_SHORT = {
    "output_tokens_per_s_per_gpu": "throughput",
    "ttft_p99_ms": "TTFT",
    "ttft_p95_ms": "TTFT",
    "worst_ttft_ratio": "TTFT",
    "worst_ttft_p95_ratio": "TTFT",
    "ttft_max_ms": "TTFT",
    "worst_ttft_max_ratio": "TTFT",
    "itl_p99_ms": "ITL",
    "itl_p95_ms": "ITL",
    "worst_itl_ratio": "ITL",
    "worst_itl_p95_ratio": "ITL",
    "itl_max_ms": "ITL",
    "worst_itl_max_ratio": "ITL",
}


def _gains(points: NDArray[np.float64], objectives: Sequence[Objective], floors: Floors | None) -> NDArray[np.float64]:
    """(n, n, d): +1 where row i beats row j beyond the floor, -1 where it loses, 0 for a tie."""
    sign = np.array([1.0 if o.direction == "maximize" else -1.0 for o in objectives])
    floor = np.zeros(len(objectives)) if floors is None else np.asarray(floors, np.float64)
    if floor.shape != sign.shape or not np.isfinite(floor).all() or (floor < 0).any():
        raise ValueError(f"one finite floor >= 0 is needed per objective, got {floors}")
    a, b = points[:, None, :], points[None, :, :]
    gap = sign * (a - b)
    is_tie = np.abs(gap) <= floor * np.minimum(np.abs(a), np.abs(b))
    return np.where(is_tie, 0.0, np.sign(gap))


def _points(values: Values, objectives: Sequence[Objective]) -> NDArray[np.float64]:
    array = np.asarray(values, np.float64).reshape(-1, len(objectives))
    if not np.isfinite(array).all():
        raise ValueError("only finite objective values can be compared; leave unread trials out")
    return array
