"""What is wanted (Objective), what must hold (Limit), and a measurement held against both (Scorecard)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Direction = Literal["maximize", "minimize"]


@dataclass(frozen=True, slots=True)
class Objective:
    """A metric and which way is better."""

    metric: str
    """A name of `objectives.metric.METRICS`; it carries its load, e.g. `steady_ttft_p99_ms`."""
    direction: Direction


@dataclass(frozen=True, slots=True)
class Limit:
    """A metric that may not exceed (`at_most`) or fall below (`at_least`) a bound. Exactly one is set.

    Raises ValueError when both or neither bound is given, or a bound is not finite."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None
    why: str = ""

    def __post_init__(self) -> None:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError(f"limit on {self.metric}: give exactly one of at_most, at_least")
        if not math.isfinite(self.bound):
            raise ValueError(f"limit on {self.metric}: the bound must be a finite number, got {self.bound}")

    @property
    def bound(self) -> float:
        bound = self.at_most if self.at_most is not None else self.at_least
        assert bound is not None
        return bound

    @property
    def text(self) -> str:
        return f"{self.metric} {'<=' if self.at_most is not None else '>='} {self.bound:g}"

    def violation(self, value: float | None) -> float:
        """How far `value` misses the bound, relative to it; <= 0 is met, > 0 is bad, a missing value is 1.0.

        The relative scale makes violations of different limits comparable (TPE compares their sum). A bound
        of 0 is compared absolutely."""
        if value is None or math.isnan(value):
            return MISSING_VIOLATION
        scale = abs(self.bound) if self.bound else 1.0
        miss = (value - self.bound) / scale if self.at_most is not None else (self.bound - value) / scale
        return min(max(miss, -1.0), MAX_VIOLATION)


MISSING_VIOLATION = 1.0
"""Unknown is not zero: a limit on a metric that could not be read is not met."""
MAX_VIOLATION = 100.0
"""Violations are clipped here, so that one metric in overload does not hide all others; finite by construction."""


@dataclass(frozen=True)
class Scorecard:
    """The objectives' values and every limit's violation. `values` is None when an objective could not be read."""

    values: tuple[float, ...] | None
    """One per objective, in the objectives' order and own units; all finite."""
    violations: Mapping[str, float]
    """Limit text (or a rule's name such as `unsustained`) -> violation; > 0 is bad."""
    metrics: Mapping[str, float | None]
    """Every metric computed, for the record; None where it could not be read."""

    @property
    def is_feasible(self) -> bool:
        return self.values is not None and all(v <= 0 for v in self.violations.values())

    @property
    def binding(self) -> tuple[str, ...]:
        """Names of the limits that are missed, worst first."""
        missed = [(v, k) for k, v in self.violations.items() if v > 0]
        return tuple(k for _, k in sorted(missed, reverse=True))


def score(
    metrics: Mapping[str, float | None],
    objectives: Sequence[Objective],
    limits: Sequence[Limit],
    rules: Mapping[str, float] | None = None,
) -> Scorecard:
    """Hold computed metrics against objectives and limits. `rules` adds violations computed elsewhere."""
    raw = [metrics.get(o.metric) for o in objectives]
    finite = [v for v in raw if v is not None and math.isfinite(v)]
    values = tuple(finite) if len(finite) == len(raw) else None
    violations = {limit.text: limit.violation(metrics.get(limit.metric)) for limit in limits}
    violations.update(rules or {})
    return Scorecard(values, violations, dict(metrics))
