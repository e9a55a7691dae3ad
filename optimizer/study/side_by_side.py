"""Side by side: whether trials on several slots at once measure what each would alone.

Slots share a host: its cores, memory bandwidth, power and the load generators. The reference is measured alone; here it
runs in every slot at the same time. Where an objective is then worse beyond the noise, fewer slots are used, until it
is not. All start together, so that their loads overlap as trials' loads do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from objectives.comparison import Comparison, compare
from objectives.metric import TargetsByTenant, compute_pooled_metrics
from objectives.objective import Objective
from objectives.titles import short_of
from optimizer.engines.engine import LoadPlan, Placement
from optimizer.study.events import Listener, Notice
from optimizer.study.runs import Runs
from optimizer.trial import Measured, Outcome, TrialPlan

FIRST_RUN, RUNS_A_ROUND = 500, 100
"""Run numbers of calibration from here on; the rounds of fewer and fewer slots follow each other."""


@dataclass(frozen=True)
class SideBySide:
    """What the check needs: the reference, what it does alone, and how runs differ by themselves."""

    placement: Placement
    loads: tuple[LoadPlan, ...]
    objectives: Sequence[Objective]
    alone: tuple[float, ...]
    floors: tuple[float, ...]
    targets: TargetsByTenant
    seed_of: Callable[[int], int]
    runs: Runs
    listener: Listener

    def settle(self) -> int:
        """The number of slots that do not disturb each other; the executor keeps to it from now on."""
        n = self.runs.n_slots
        for k in range(n):
            if n == 1:
                break
            comparison = self._together(k, n)
            worse = "it could not be measured" if comparison is None else _worse(comparison)
            if not worse:
                self.listener(Notice(f"{n} trials at a time measure what one alone does"))
                break
            fewer = max(n // 2, 1)
            text = f"{n} trials at a time disturb each other ({worse}): {fewer} at a time from now on"
            self.listener(Notice(text, is_warning=True))
            n = fewer
            self.runs.limit_slots(n)
        return n

    def _together(self, k: int, n: int) -> Comparison | None:
        """The reference in n slots at once against itself alone; None where one of them could not be measured."""
        first = FIRST_RUN + RUNS_A_ROUND * k
        plans = [self._plan(first + slot) for slot in range(n)]
        outcomes = self.runs.carry_out(plans, "calibration", lambda plan, o: _text(n, o))
        measured = [o.measurement for o in outcomes if isinstance(o, Measured)]
        if len(measured) < n:
            return None
        metrics = compute_pooled_metrics(measured, self.targets)
        values = [metrics.get(o.metric) for o in self.objectives]
        known = tuple(v for v in values if v is not None)
        return compare(known, self.alone, self.objectives, self.floors) if len(known) == len(values) else None

    def _plan(self, run: int) -> TrialPlan:
        return TrialPlan(-1, run, "calibration", self.placement, self.loads, self.seed_of(run), is_fresh=True)


def hold_to(n_slots: int | None, runs: Runs, listener: Listener) -> None:
    """Keep to what an earlier process found: more slots than it looked at were never compared. None: no limit."""
    if n_slots is not None and runs.n_slots > n_slots:
        listener(Notice(f"{n_slots} trials at a time, as calibration found; {runs.n_slots} slots are here"))
        runs.limit_slots(n_slots)


def _worse(comparison: Comparison) -> str:
    """The objectives that are worse beyond the noise, with how much; empty if none is."""
    worse = [d for d in comparison.deltas if d.verdict == "worse"]
    return ", ".join(f"{short_of(d.metric)} {d.change:+.1%}" if d.change is not None else d.metric for d in worse)


def _text(n: int, outcome: Outcome) -> str:
    return f"the reference {n} at a time" + ("" if isinstance(outcome, Measured) else ": not measured")
