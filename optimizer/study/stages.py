"""First stable, then fast: the stages that decide what a study tries next.

baseline  the user's current configuration and vLLM's defaults, as they are
stable    bisection on the number of sequences, memory at its ceiling: how far up does the peak survive?
fast      the sampler, over the main budgets, inside what was found stable
advanced  the sampler again, with the advanced group released (only when asked for)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from objectives.objective import Scorecard
from optimizer.engines.engine import Placement
from optimizer.study.judge import BOOT
from optimizer.study.proposer import Point, Proposer

SEQS = "max_num_seqs"
BASELINE, STABLE, FAST, ADVANCED = "baseline", "stable", "fast", "advanced"
WHY = {
    BASELINE: "what you run now and what vLLM does by itself",
    STABLE: "how many sequences at once survive the peak, with all the memory there is",
    FAST: "token budget, sequences, watermark, chunk size and memory traded off inside the stable region",
    ADVANCED: "the advanced group as well",
}
MAX_REDRAWS = 12
"""Draws outside the stable region that are thrown back before one is moved into it."""


@dataclass(frozen=True)
class Proposal:
    """One trial to run."""

    stage: str
    placement: Placement
    point: Point | None
    """None for a baseline that is no point of the space."""
    attributes: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Probe:
    """A result of the stable stage: this share of the sequence grid, survived or not."""

    level: int
    has_survived: bool


class StableRegion:
    """Bisection for the highest level of `max_num_seqs` that survives the stress load; levels are grid indices.

    Asks for the top first: where that survives nothing else needs to be known. Several at a time split the widest
    open gap."""

    def __init__(self, n_levels: int, budget: int) -> None:
        self.n_levels = n_levels
        self._budget = budget
        self._probes: dict[int, bool | None] = {}

    def next_level(self) -> int | None:
        """A level to try now; None when nothing can be learned before an answer comes, or at all."""
        if len(self._probes) >= self._budget:
            return None
        open_levels = [k for k, survived in self._probes.items() if survived is None]
        low, high = self.bounds
        if not self._probes:
            return self._ask(self.n_levels - 1)
        if high is None and not open_levels:
            return None
        top = high if high is not None else self.n_levels - 1
        edges = [low, *sorted(k for k in open_levels if low < k < top), top]
        below, above = max(pairwise(edges), key=lambda gap: gap[1] - gap[0])
        middle = (below + above) // 2
        if middle <= below or middle in self._probes:
            return None
        return self._ask(middle)

    def _ask(self, level: int) -> int:
        self._probes[level] = None
        return level

    def start(self, level: int) -> None:
        """The level is being tried (adopted after a crash)."""
        self._probes.setdefault(level, None)

    def tell(self, probe: Probe) -> None:
        self._probes[probe.level] = probe.has_survived

    def forget(self, level: int) -> None:
        """It came to nothing through no fault of its own: it may be asked for again."""
        self._probes.pop(level, None)

    @property
    def bounds(self) -> tuple[int, int | None]:
        """(highest level known to survive, lowest known to fail); -1 and None while unknown."""
        survived = [k for k, s in self._probes.items() if s is True]
        failed = [k for k, s in self._probes.items() if s is False]
        low = max([k for k in survived if not failed or k < min(failed)], default=-1)
        return low, min(failed, default=None)

    @property
    def is_settled(self) -> bool:
        """Nothing is being tried and nothing more will be asked."""
        return not any(s is None for s in self._probes.values()) and self._peek() is None

    def _peek(self) -> int | None:
        before = dict(self._probes)
        level = self.next_level()
        self._probes = before
        return level

    @property
    def highest(self) -> int:
        """The highest level worth trying: one above the last that survived, or everything while nothing failed."""
        low, high = self.bounds
        return self.n_levels - 1 if high is None else max(min(low + 1, high), 0)


def seqs_names(grid: Mapping[str, Sequence[object]]) -> tuple[str, ...]:
    """The parameters that say how many sequences run at once, one an instance."""
    return tuple(name for name in grid if name.rsplit(".", 1)[-1] == SEQS)


def at_level(point: Point, grid: Mapping[str, Sequence[object]], level: int, n_levels: int) -> Point:
    """The point with every instance's sequence limit at the same share of its own grid."""
    share = level / max(n_levels - 1, 1)
    changed = dict(point)
    for name in seqs_names(grid):
        changed[name] = grid[name][round(share * (len(grid[name]) - 1))]  # type: ignore[assignment]
    return changed


def is_within(point: Point, grid: Mapping[str, Sequence[object]], level: int, n_levels: int) -> bool:
    """No instance has more sequences than the level allows."""
    share = level / max(n_levels - 1, 1)
    return all(list(grid[name]).index(point[name]) <= round(share * (len(grid[name]) - 1)) for name in seqs_names(grid))


def lowered_to(point: Point, grid: Mapping[str, Sequence[object]], level: int, n_levels: int) -> Point:
    """The point with no instance's sequence limit above the level."""
    top = at_level(point, grid, level, n_levels)
    changed = dict(point)
    for name in seqs_names(grid):
        order = list(grid[name])
        changed[name] = order[min(order.index(point[name]), order.index(top[name]))]  # type: ignore[assignment]
    return changed


def has_survived_stress(card: Scorecard | None) -> bool:
    """The engine came up, lived through the stress load, and kept the limits set on it."""
    if card is None or card.values is None:
        return False
    asked = (v for n, v in card.violations.items() if n.rsplit(":", 1)[-1].startswith("stress_") or n == BOOT)
    return all(v <= 0 for v in asked)


def propose_within(
    proposer: Proposer,
    grid: Mapping[str, Sequence[object]],
    region: StableRegion | None,
    is_new: Callable[[Point], bool],
) -> Point:
    """A point of the sampler inside the stable region; after MAX_REDRAWS draws the last one with fewer sequences, or
    as it is where that was tried.

    Raises SpaceExhausted when nothing untried is left."""
    point = proposer.propose()
    if region is None:
        return point
    for _ in range(MAX_REDRAWS):
        if is_within(point, grid, region.highest, region.n_levels):
            return point
        proposer.forget(point)
        point = proposer.propose()
    lowered = lowered_to(point, grid, region.highest, region.n_levels)
    if not is_new(lowered):
        return point
    proposer.forget(point)
    proposer.mark_running(lowered)
    return lowered
