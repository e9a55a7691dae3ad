"""Validation: a front configuration measured again on fresh servers, held against what was recorded.

On the study's own window the question is whether the recorded value lies inside the noise; on other traffic, whether
the gain over the reference, run there too, persists. Levels differ between windows by far more than configurations do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from objectives.comparison import Comparison, compare
from objectives.measurement import Measurement
from objectives.metric import Targets, compute_pooled_metrics
from objectives.objective import Objective
from optimizer.engines.engine import LoadPlan, Placement
from optimizer.study.runs import Runs
from optimizer.trial import Measured, Outcome, TrialPlan

PURPOSE = "validation"


@dataclass(frozen=True)
class Remeasured:
    """One configuration's objectives from repeats that are pooled; `values` None and `reason` set where none came."""

    name: str
    values: tuple[float, ...] | None
    n_repeats: int
    reason: str = ""


@dataclass(frozen=True)
class Validator:
    """`noise` is relative, one figure an objective, as the study's calibration found it."""

    objectives: tuple[Objective, ...]
    targets: Mapping[str, Targets]
    noise: tuple[float, ...]
    seed: int
    n_repeats: int
    first_run: int
    """Number of the first run: validations of one study never share one."""
    runs: Runs

    def measure(
        self, configurations: Sequence[tuple[str, Placement]], loads: tuple[LoadPlan, ...]
    ) -> tuple[Remeasured, ...]:
        """Every configuration `n_repeats` times, in turn, so that a drift of the machine meets all of them; each boots
        servers of its own."""
        n = len(configurations)
        plans = [
            self._plan(self.first_run + k * n + i, placement, loads)
            for k in range(self.n_repeats)
            for i, (_, placement) in enumerate(configurations)
        ]
        outcomes = self.runs.carry_out(
            plans, PURPOSE, lambda plan, o: configurations[(plan.run - self.first_run) % n][0]
        )
        return tuple(self._pooled(name, outcomes[i::n]) for i, (name, _) in enumerate(configurations))

    def compare(self, now: Sequence[float], then: Sequence[float]) -> Comparison:
        """`now` against `then`; a tie is inside the noise."""
        return compare(now, then, self.objectives, self.noise)

    def _plan(self, run: int, placement: Placement, loads: tuple[LoadPlan, ...]) -> TrialPlan:
        return TrialPlan(-1, run, PURPOSE, placement, loads, self.seed * 1_000_003 + 600_011 + run, is_fresh=True)

    def _pooled(self, name: str, outcomes: Sequence[Outcome]) -> Remeasured:
        measured: list[Measurement] = [o.measurement for o in outcomes if isinstance(o, Measured)]
        lost = next((o for o in outcomes if not isinstance(o, Measured)), None)
        if lost is not None:
            cause = getattr(lost, "cause", None) or getattr(lost, "reason", type(lost).__name__)
            return Remeasured(name, None, len(measured), str(cause))
        metrics = compute_pooled_metrics(measured, self.targets)
        values = [metrics.get(o.metric) for o in self.objectives]
        known = tuple(v for v in values if v is not None)
        if len(known) < len(values):
            missing = [o.metric for o, v in zip(self.objectives, values, strict=True) if v is None]
            return Remeasured(name, None, len(measured), f"{', '.join(missing)} cannot be read")
        return Remeasured(name, known, len(measured))
