"""Terms: what every trial of a study has in common, fixed before trial 0 and stored with the study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from optuna.distributions import BaseDistribution

from objectives.objective import Objective
from optimizer.study import distributions as standing

ToldInfeasible = Literal["PRUNED", "COMPLETE"]


@dataclass(frozen=True)
class Terms:
    """What every trial of a study has in common. Fixed before trial 0."""

    objectives: tuple[Objective, ...]
    labels: tuple[str, ...]
    """The objectives' names with units, as people read them."""
    constraint_names: tuple[str, ...]
    told_infeasible: ToldInfeasible = "PRUNED"
    distributions: Mapping[str, BaseDistribution] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.objectives or len(self.labels) != len(self.objectives):
            raise ValueError(f"{len(self.objectives)} objectives need as many labels, got {list(self.labels)}")
        if len(set(self.constraint_names)) != len(self.constraint_names):
            raise ValueError(f"constraint names repeat: {list(self.constraint_names)}")

    def to_json(self) -> dict[str, Any]:
        return {
            "objectives": [[o.metric, o.direction] for o in self.objectives],
            "labels": list(self.labels),
            "constraint_names": list(self.constraint_names),
            "told_infeasible": self.told_infeasible,
            "distributions": standing.to_json(self.distributions),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Terms:
        return cls(
            tuple(Objective(metric, direction) for metric, direction in body["objectives"]),
            tuple(body["labels"]),
            tuple(body["constraint_names"]),
            body["told_infeasible"],
            standing.from_json(body["distributions"]),
        )

    def differences(self, other: Terms) -> list[str]:
        """What differs in `other`, a line each; distributions may differ (the stored ones stand)."""
        mine, theirs = self.to_json(), other.to_json()
        return [
            f"{k}: {mine[k]} in the study, {theirs[k]} now"
            for k in mine
            if k != "distributions" and mine[k] != theirs[k]
        ]
