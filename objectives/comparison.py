"""A configuration against the one the user runs today: better, worse, a tie, or a trade."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from objectives.objective import Objective

Verdict = Literal["better", "worse", "tie"]


@dataclass(frozen=True, slots=True)
class Delta:
    """One objective against the baseline."""

    metric: str
    value: float
    baseline: float
    change: float | None
    """value / baseline - 1; None when the baseline is 0."""
    floor: float
    """Relative noise: a change inside +-floor is a tie."""
    verdict: Verdict

    @property
    def text(self) -> str:
        change = "n/a" if self.change is None else f"{self.change:+.1%}"
        return f"{self.metric} {self.value:.4g} ({change}, noise +-{self.floor:.1%}: {self.verdict})"


@dataclass(frozen=True, slots=True)
class Comparison:
    deltas: tuple[Delta, ...]

    @property
    def verdict(self) -> Literal["improvement", "worse", "tie", "trade"]:
        """An improvement gives nothing up; what gains here and loses there is a trade, however large the gain."""
        seen = {d.verdict for d in self.deltas}
        if {"better", "worse"} <= seen:
            return "trade"
        return "improvement" if "better" in seen else "worse" if "worse" in seen else "tie"


def compare(
    values: Sequence[float],
    baseline: Sequence[float],
    objectives: Sequence[Objective],
    floors: Sequence[float] | None = None,
) -> Comparison:
    """Hold measured values against the baseline's, objective by objective."""
    floor = floors if floors is not None else [0.0] * len(objectives)
    rows = zip(objectives, values, baseline, floor, strict=True)
    return Comparison(tuple(_delta(o, v, b, f) for o, v, b, f in rows))


def _delta(objective: Objective, value: float, baseline: float, floor: float) -> Delta:
    gain = value - baseline if objective.direction == "maximize" else baseline - value
    is_tie = abs(gain) <= floor * min(abs(value), abs(baseline))
    verdict: Verdict = "tie" if is_tie else "better" if gain > 0 else "worse"
    return Delta(objective.metric, value, baseline, value / baseline - 1 if baseline else None, floor, verdict)
