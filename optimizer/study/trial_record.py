"""One recorded trial, read back from Optuna as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from optuna.trial import FrozenTrial, TrialState

from optimizer.study.constraints import KEY
from search_spaces.parameter import Value

State = Literal["running", "measured", "infeasible", "stopped", "broken"]

OUTCOME, REASON, FAILURE, METRICS, POINT, STAGE, N_LOST, OTHER, PHASE, BOUNDS = (
    "outcome", "reason", "failure", "metrics", "point", "stage", "n_lost", "other_arguments", "failed_in", "bounds",
)  # fmt: skip
"""Names of the user attributes that this program writes."""


@dataclass(frozen=True)
class TrialRecord:
    """What the study knows of one trial. `values` is None for everything that was not measured to its end."""

    number: int
    state: State
    parameters: Mapping[str, Value]
    """The arguments the server ran with."""
    values: tuple[float, ...] | None
    violations: Mapping[str, float]
    """Constraint name -> violation, in the study's order; > 0 is bad. Empty while it runs and for broken trials."""
    metrics: Mapping[str, float | None]
    reason: str
    """Why it is no candidate; empty if it is one."""
    failure: str | None
    """The kind of a classified failure to boot or serve."""
    point: Mapping[str, Value] | None
    """Where it lies in the search space; None for a baseline that is no point of it."""
    stage: str
    n_lost: int = 0
    """How often a driver died while it ran."""
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bounds(self) -> Mapping[str, float]:
        """What the engine itself said would have fitted; see `diagnosis.bounds`."""
        return dict(self.attributes.get(BOUNDS, {}))

    @property
    def failed_in(self) -> str | None:
        """The phase of a classified failure."""
        return self.attributes.get(PHASE)

    @property
    def is_finished(self) -> bool:
        return self.state != "running"

    @property
    def is_feasible(self) -> bool:
        return self.values is not None and all(v <= 0 for v in self.violations.values())

    @property
    def total_violation(self) -> float:
        """Sum of the violations above 0, as the sampler compares them."""
        return sum(v for v in self.violations.values() if v > 0)

    @property
    def binding(self) -> tuple[tuple[str, float], ...]:
        """(constraint, violation) of every missed one, worst first."""
        missed = [(name, v) for name, v in self.violations.items() if v > 0]
        return tuple(sorted(missed, key=lambda entry: -entry[1]))


def read_trial(trial: FrozenTrial, constraint_names: tuple[str, ...]) -> TrialRecord:
    attributes = trial.user_attrs
    state = _state(trial)
    vector = trial.system_attrs.get(KEY, ()) if state in ("measured", "infeasible", "stopped") else ()
    return TrialRecord(
        number=trial.number,
        state=state,
        parameters={**trial.params, **attributes.get(OTHER, {})},
        values=tuple(trial.values) if state == "measured" and trial.state == TrialState.COMPLETE else None,
        violations=dict(zip(constraint_names, vector, strict=False)),
        metrics=attributes.get(METRICS, {}),
        reason=attributes.get(REASON, ""),
        failure=attributes.get(FAILURE),
        point=attributes.get(POINT),
        stage=attributes.get(STAGE, ""),
        n_lost=attributes.get(N_LOST, 0),
        attributes=attributes,
    )


def _state(trial: FrozenTrial) -> State:
    """Optuna's state decides whether it is finished; what it came back as stands in our own attribute."""
    if not trial.state.is_finished():
        return "running"
    if trial.state == TrialState.FAIL:
        return "broken"
    outcome: State = trial.user_attrs.get(OUTCOME, "measured" if trial.state == TrialState.COMPLETE else "infeasible")
    return outcome
