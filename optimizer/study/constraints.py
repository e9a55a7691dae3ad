"""Constraints of a trial, in the one format that both Optuna 5's samplers and optuna-dashboard 0.21 understand.

Optuna 5 `Trial.set_constraint` stores one system attribute a name, which optuna-dashboard 0.21 does not read
(optuna_dashboard/_serializer.py, CONSTRAINTS_KEY): every trial would look feasible there. The older list under
"constraints" is read by both (optuna/study/_constrained_optimization.py). Writing both would count every violation
twice. The names stand beside, in user attributes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from optuna import Study

from objectives.objective import MAX_VIOLATION, MISSING_VIOLATION

KEY = "constraints"


def constraint_vector(names: Sequence[str], violations: Mapping[str, float], *, has_values: bool) -> list[float]:
    """One finite number a name, in the names' order; > 0 is bad.

    A missing or NaN violation is MISSING_VIOLATION (unknown is not met), an infinite one is clipped. A trial without
    values never looks feasible: when nothing else says so, its last constraint does. Refuses unknown names."""
    unknown = [name for name in violations if name not in names]
    if unknown:
        raise ValueError(f"constraint {unknown[0]!r} is not one of the study's: {list(names)}")
    vector = [_finite(violations.get(name, math.nan)) for name in names]
    if not has_values and vector and max(vector) <= 0:
        vector[-1] = MISSING_VIOLATION
    return vector


def write_constraints(study: Study, trial_id: int, vector: Sequence[float]) -> None:
    """Before the trial is told; samplers and the dashboard read it from then on. The only writer of constraints."""
    study._storage.set_trial_system_attr(trial_id, KEY, [float(v) for v in vector])


def _finite(value: float) -> float:
    if math.isnan(value):
        return MISSING_VIOLATION
    return float(min(max(value, -MAX_VIOLATION), MAX_VIOLATION))
