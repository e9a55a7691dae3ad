"""Judge: an outcome held against the study's objectives and limits, the same way for every trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from objectives.metric import Targets, compute_metrics
from objectives.objective import MAX_VIOLATION, MISSING_VIOLATION, Limit, Objective, Scorecard, score
from objectives.wording import limit_text
from optimizer.diagnosis.memory_trend import MemoryTrend, creep_of
from optimizer.trial import Broken, Infeasible, Measured, Outcome, Stopped

UNSUSTAINED = "unsustained"
BOOT = "boot"


@dataclass(frozen=True)
class Judge:
    """Frozen when the study starts: objectives, limits in a fixed order, and tenants' targets."""

    objectives: tuple[Objective, ...]
    limits: tuple[Limit, ...]
    targets: Mapping[str, Targets]

    @property
    def constraint_names(self) -> tuple[str, ...]:
        """One name a constraint, the same for every trial and in this order."""
        return (*(limit.text for limit in self.limits), UNSUSTAINED, BOOT)

    def score(self, outcome: Outcome) -> Scorecard | None:
        """None for a Broken outcome: it says nothing about the configuration."""
        match outcome:
            case Measured():
                return self._complete(self._measured(outcome))
            case Stopped():
                card = self._measured(outcome)
                return self._complete(
                    Scorecard(None, {**card.violations, outcome.bound: outcome.violation}, card.metrics)
                )
            case Infeasible():
                return self._complete(Scorecard(None, {BOOT: max(outcome.violation, 1e-9)}, {}))
            case Broken():
                return None
        raise TypeError(f"unknown outcome {type(outcome).__name__}")

    def _measured(self, outcome: Measured | Stopped) -> Scorecard:
        metrics = compute_metrics(outcome.measurement, self.targets)
        not_sustained = metrics.get("steady_unsustained")
        rules = {
            UNSUSTAINED: MISSING_VIOLATION if not_sustained is None else not_sustained,
            BOOT: 1.0 if creep_in(outcome) is not None else 0.0,
        }
        return score(metrics, self.objectives, self.limits, rules)

    def _complete(self, card: Scorecard) -> Scorecard:
        """Every constraint present, in order; one that was not reached counts as missed, since unknown is not met."""
        missing = 0.0 if card.values is not None else MISSING_VIOLATION
        violations = {name: card.violations.get(name, missing) for name in self.constraint_names}
        extra = {name: v for name, v in card.violations.items() if name not in violations and v > 0}
        if extra:
            violations[BOOT] = max(violations[BOOT], *extra.values())
        return Scorecard(card.values, violations, card.metrics)


def creep_in(outcome: Outcome) -> MemoryTrend | None:
    """Device memory that grows under a load until the server dies within a day, at its rate."""
    if not isinstance(outcome, Measured | Stopped):
        return None
    trends = (creep_of(phase.devices) for phase in outcome.measurement.phases.values())
    return next((t for t in trends if t is not None and t.is_dangerous), None)


def reason_of(outcome: Outcome, card: Scorecard | None) -> str:
    """Why a trial is not a candidate, in a few words; empty if it is."""
    match outcome:
        case Infeasible(kind=kind, phase=phase, cause=cause):
            return f"{kind} at {phase or 'start'}: {cause}"
        case Broken(cause=cause):
            return f"broken: {cause}"
        case Stopped(reason=reason):
            return reason
    if card is None or card.is_feasible:
        return ""
    if card.binding[0] == BOOT and (creep := creep_in(outcome)) is not None:
        return f"device memory is {creep.text}; not to be recommended without a soak run"
    if card.values is None:
        found = outcome.findings if isinstance(outcome, Measured) else ()
        return "an objective could not be read" + (f": {found[0]}" if found else "")
    return missed_text(card.binding[0], card.violations[card.binding[0]])


def missed_text(name: str, violation: float) -> str:
    """A missed constraint in a few words, with how far it is missed."""
    if name == UNSUSTAINED:
        return f"does not keep up with R, short by {violation:.1%}"
    if name == BOOT:
        return "does not start, or dies"
    if violation >= MAX_VIOLATION:
        return f"misses {limit_text(name)} by {MAX_VIOLATION:.0f} x or more"
    return f"misses {limit_text(name)} by {violation:.1%}"
