"""Where output tokens are counted: one value and one rule for every engine."""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.engines.engine import LoadPlan


@dataclass(frozen=True)
class CountedWindow:
    """Seconds on the phase clock."""

    from_s: float
    until_s: float
    was_full: bool | None
    """Saturation only: False where the throughput is a lower bound."""


def between_arrivals(plan: LoadPlan) -> CountedWindow:
    """Steady and stress: from the first to the last measured arrival."""
    arrivals = plan.trace.arrival_s[plan.n_warmup :]
    bounds = (float(arrivals[0]), float(arrivals[-1])) if arrivals.size else (0.0, 0.0)
    return CountedWindow(*bounds, None)
