"""Proposers: which point of the space to try next. They know points, values and violations, and nothing of trials.

A point is a mapping parameter name -> grid value. A proposer keeps no files: after a crash it is rebuilt by telling it
the recorded trials in their order, and then proposes what it would have proposed. That holds because every
proposal draws from a seed of its own, made of the study's seed, how many points came before it, and how many of its
own draws were given back.
"""

from __future__ import annotations

import hashlib
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import TPESampler
from optuna.trial import TrialState, create_trial

from objectives.objective import MAX_VIOLATION, MISSING_VIOLATION, Direction
from optimizer.study.constraints import write_constraints
from optimizer.study.regions import Indices
from optimizer.study.untried import Point, SearchedSpace, SpaceExhausted, Untried, is_ordered

__all__ = ["Point", "Proposer", "RandomProposer", "SearchedSpace", "SpaceExhausted", "TpeProposer"]

Told = Literal["measured", "infeasible", "stopped"]
MAX_CATEGORICAL_LEVELS = 5
"""Up to here a parameter's levels are choices: a Gaussian kernel over three levels locks onto one of them."""
UNMEASURED_VIOLATION = 10 * MAX_VIOLATION
N_STARTUP = 10
"""Random points before the estimator is used; 20 halves what is found in the first 30 trials."""


class Proposer(Protocol):
    """propose -> tell or forget. Points may also be told that were never proposed: baselines and recorded trials."""

    def propose(self) -> Point:
        """A point whose configuration was never tried. Raises SpaceExhausted when there is none left."""
        ...

    def tell(
        self,
        point: Point,
        values: Sequence[float] | None,
        violations: Mapping[str, float],
        state: Told,
        failure: str | None = None,
    ) -> None:
        """What came of it. `values`: None unless measured to its end; `failure`: the kind of a classified failure."""
        ...

    def forget(self, point: Point) -> None:
        """It came to nothing through no fault of its own: it may be proposed again."""
        ...

    def mark_running(self, point: Point) -> None:
        """It is being tried now (a baseline, or adopted after a crash): do not propose it, keep away from it."""
        ...

    def leave_out(self, is_ruled_out: Callable[[Point], bool]) -> None:
        """From now on propose nothing of which this says True, whenever it begins to."""
        ...


class TpeProposer:
    """Multivariate TPE over grid indices, in an Optuna study in memory.

    Points that came to nothing are told as PRUNED with their violation: a failed launch that is told as FAIL teaches
    nothing and is proposed again. Points in flight repel (constant liar). The first points fill the space evenly."""

    told_infeasible: Literal["PRUNED", "COMPLETE"] = "PRUNED"

    def __init__(
        self, space: SearchedSpace, directions: Sequence[Direction], seed: int, n_startup: int = N_STARTUP
    ) -> None:
        self._untried = Untried(space)
        self._axes = {n: _axis(v) for n, v in zip(self._untried.names, self._untried.levels, strict=True)}
        self._n_startup = n_startup
        self._draws = Draws(seed)
        self._running: list[tuple[str, int]] = []
        """(fingerprint, number in the study) of every point in flight."""
        self._fingerprint = space.fingerprint
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(directions=list(directions), sampler=_sampler(seed))

    def propose(self) -> Point:
        self._draws.next()
        indices = self._untried.nearest(self._draw(), self._draws.rng("move"))
        point = self._untried.point(indices)
        self.mark_running(point)
        return point

    def mark_running(self, point: Point) -> None:
        self._untried.start(point)
        params = dict(zip(self._axes, self._untried.indices(point), strict=True))
        self._study.add_trial(create_trial(state=TrialState.RUNNING, params=params, distributions=self._axes))
        self._running.append((self._fingerprint(point), len(self._study.get_trials(deepcopy=False)) - 1))
        self._draws.n_kept += 1

    def tell(
        self,
        point: Point,
        values: Sequence[float] | None,
        violations: Mapping[str, float],
        state: Told,
        failure: str | None = None,
    ) -> None:
        number = self._end_running(point)
        if number is None:
            self.mark_running(point)
            number = self._end_running(point)
        assert number is not None
        self._untried.finish(point, failure if state == "infeasible" else None)
        is_complete = state == "measured" and values is not None
        violation = sum(min(v, MAX_VIOLATION) for v in violations.values() if v > 0)
        if not is_complete:  # behind everything that was measured, however far that misses a promise
            violation = max(violation, MISSING_VIOLATION) + UNMEASURED_VIOLATION
        trial_id = self._study.get_trials(deepcopy=False)[number]._trial_id
        write_constraints(self._study, trial_id, [violation])
        told = [float(v) for v in values] if is_complete and values is not None else None
        self._study.tell(number, told, state=TrialState.COMPLETE if is_complete else TrialState.PRUNED)

    def forget(self, point: Point) -> None:
        self._untried.forget(point)
        number = self._end_running(point)
        if number is not None:
            self._study.tell(number, state=TrialState.FAIL)
            self._draws.give_back()

    def leave_out(self, is_ruled_out: Callable[[Point], bool]) -> None:
        self._untried.is_ruled_out = is_ruled_out

    @property
    def n_tried(self) -> int:
        """Distinct configurations told or in flight."""
        return self._untried.n_tried

    def _draw(self) -> Indices:
        """What the sampler wants, untried or not."""
        if self._draws.n_kept < self._n_startup:
            return self._draws.start(self._untried.levels, self._n_startup)
        self._study.sampler = _sampler(self._draws.seed_of("tpe"))
        asked = self._study.ask(self._axes)
        self._study.tell(asked, state=TrialState.FAIL)
        return tuple(asked.params[name] for name in self._axes)

    def _end_running(self, point: Point) -> int | None:
        fingerprint = self._fingerprint(point)
        for entry in self._running:
            if entry[0] == fingerprint:
                self._running.remove(entry)
                return entry[1]
        return None


class RandomProposer:
    """Untried points, each equally likely. The baseline that a sampler has to beat at equal budget."""

    told_infeasible: Literal["PRUNED", "COMPLETE"] = "PRUNED"

    def __init__(self, space: SearchedSpace, seed: int) -> None:
        self._untried = Untried(space, is_avoiding=False)
        self._draws = Draws(seed)

    def propose(self) -> Point:
        self._draws.next()
        rng = self._draws.rng("random")
        wanted = tuple(rng.randrange(len(values)) for values in self._untried.levels)
        point = self._untried.point(self._untried.nearest(wanted, rng))
        self.mark_running(point)
        return point

    def mark_running(self, point: Point) -> None:
        self._untried.start(point)
        self._draws.n_kept += 1

    def tell(
        self,
        point: Point,
        values: Sequence[float] | None,
        violations: Mapping[str, float],
        state: Told,
        failure: str | None = None,
    ) -> None:
        if not self._untried.is_running(point):
            self.mark_running(point)
        self._untried.finish(point, None)

    def forget(self, point: Point) -> None:
        if self._untried.is_running(point):
            self._draws.give_back()
        self._untried.forget(point)

    def leave_out(self, is_ruled_out: Callable[[Point], bool]) -> None:
        self._untried.is_ruled_out = is_ruled_out

    @property
    def n_tried(self) -> int:
        """Distinct configurations told or in flight."""
        return self._untried.n_tried


class Draws:
    """Where the randomness of a proposal comes from."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.n_kept = 0
        """Points told or in flight."""
        self._n_redraws = 0
        self._is_redraw = False

    def next(self) -> None:
        """A draw begins. It is a redraw if the last one was given back."""
        self._n_redraws = self._n_redraws + 1 if self._is_redraw else 0
        self._is_redraw = False

    def give_back(self) -> None:
        self.n_kept -= 1
        self._is_redraw = True

    def seed_of(self, purpose: str) -> int:
        return _seed_of(self._seed, purpose, self.n_kept, self._n_redraws)

    def rng(self, purpose: str) -> random.Random:
        return random.Random(self.seed_of(purpose))

    def start(self, levels: Sequence[Sequence[object]], n: int) -> Indices:
        """A point of the even start; anywhere if that one was given back."""
        if self._n_redraws == 0:
            return evenly(levels, self._seed, self.n_kept, n)
        rng = self.rng("start")
        return tuple(rng.randrange(len(values)) for values in levels)


def evenly(levels: Sequence[Sequence[object]], seed: int, k: int, n: int) -> Indices:
    """The k-th of n points of a Latin hypercube: each axis is cut into n parts and every part is used once."""
    indices = []
    for axis, values in enumerate(levels):
        rng = random.Random(_seed_of(seed, f"axis {axis}"))
        parts = rng.sample(range(n), n)
        within = random.Random(_seed_of(seed, f"axis {axis} part", k)).random()
        indices.append(min(int((parts[k] + within) / n * len(values)), len(values) - 1))
    return tuple(indices)


def _axis(values: Sequence[object]) -> BaseDistribution:
    """Indices of a grid. Few levels, or levels without an order, are choices."""
    n = len(values)
    if n <= MAX_CATEGORICAL_LEVELS or not is_ordered(values):  # type: ignore[arg-type]
        return CategoricalDistribution(tuple(range(n)))
    return IntDistribution(0, n - 1)


def _sampler(seed: int) -> TPESampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return TPESampler(multivariate=True, constant_liar=True, n_startup_trials=2, seed=seed)


def _seed_of(seed: int, purpose: str, *counts: int) -> int:
    """32 bits from the study's seed, what they are for, and how far the study is."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{purpose}/{counts}".encode()).digest()[:4], "big")
