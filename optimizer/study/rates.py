"""Rates: what a configuration does below and above R, and the highest rate at which it still keeps its promises."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from objectives.metric import compute_metrics
from objectives.objective import Scorecard
from optimizer.engines.engine import LoadPlan, Placement
from optimizer.errors import UserError
from optimizer.study.confirmation import AGAIN_RUNS
from optimizer.study.judge import UNSUSTAINED, Judge
from optimizer.study.runs import Runs
from optimizer.trial import Measured, Outcome, TrialPlan

SHOWN_AT = (0.5, 1.0, 1.2)
"""Picks are shown at these multiples of R."""
RATE_RUN = 10
SURVIVAL_RUN, LOWER_RUN = 20, 30
N_BISECTIONS = 5
"""Each halves the interval in log rate: five leave 3 % of it."""
LOWEST_SHARE = 1 / 16
"""How far below R a promise that is broken at R is looked for."""


@dataclass(frozen=True)
class RateFigure:
    """A trial's steady figures at one rate."""

    trial: int
    share_of_r: float
    rate_per_s: float
    metrics: Mapping[str, float | None]
    is_sustained: bool


@dataclass(frozen=True)
class Survival:
    """The highest rate at which every steady limit holds, and what that means for the recorded traffic."""

    trial: int
    rate_per_s: float
    is_at_least: bool
    """True if it held as far up as was tried."""

    def replicas(self, traffic_per_s: float) -> int:
        """Servers like this one that carry that much traffic."""
        return math.ceil(traffic_per_s / self.rate_per_s - 1e-9) if self.rate_per_s > 0 else 0


@dataclass(frozen=True)
class RateProbe:
    """What probing needs. `loads(rate)` makes the steady load at a rate."""

    judge: Judge
    loads: Callable[[float], tuple[LoadPlan, ...]]
    rate_per_s: float
    seed: int
    runs: Runs

    def figures(self, members: Sequence[tuple[int, Placement]]) -> tuple[RateFigure, ...]:
        """Every member at 0.5, 1 and 1.2 R; a rate that the trace cannot be laid out at is left out."""
        shown = [(k, share) for k, share in enumerate(SHOWN_AT) if self._is_possible(share * self.rate_per_s)]
        wanted = [(t, p, k, share) for t, p in members for k, share in shown]
        plans = [self._plan(t, _run_of(k), p, share * self.rate_per_s) for t, p, k, share in wanted]
        share_of = {_run_of(k): share for k, share in enumerate(SHOWN_AT)}
        outcomes = self.runs.carry_out(
            plans, "rates", lambda plan, o: f"trial {plan.trial} at {share_of[plan.run]:g} R"
        )
        return tuple(
            self._figure(t, share, outcome) for (t, _, _, share), outcome in zip(wanted, outcomes, strict=True)
        )

    def survival(self, members: Sequence[tuple[int, Placement, float]]) -> tuple[Survival, ...]:
        """`members`: (trial, servers, highest rate worth trying). Bisection between R, which holds, and that rate."""
        low = {trial: self.rate_per_s for trial, _, _ in members}
        high = {trial: max(top, self.rate_per_s * 1.05) for trial, _, top in members}
        high = {trial: top if self._is_possible(top) else self.rate_per_s for trial, top in high.items()}
        is_failed = dict.fromkeys(low, False)
        for step in range(N_BISECTIONS):
            rates = {t: high[t] if step == 0 else math.sqrt(low[t] * high[t]) for t in low}
            plans = [
                self._plan(t, SURVIVAL_RUN + step, p, rates[t]) for t, p, _ in members if step == 0 or is_failed[t]
            ]
            outcomes = self.runs.carry_out(plans, "surviving rate", partial(self._promise_text, rates))
            for plan, outcome in zip(plans, outcomes, strict=True):
                t = plan.trial
                if self._holds(outcome):
                    low[t] = rates[t]
                else:
                    high[t], is_failed[t] = rates[t], True
        return tuple(Survival(t, low[t], not is_failed[t]) for t, _, _ in members)

    def survival_below(self, members: Sequence[tuple[int, Placement]]) -> tuple[Survival, ...]:
        """Members that break the promise at R: the rate below R up to which they keep it; left out if not even there.

        Bisection between LOWEST_SHARE of R and R."""
        low, high = ({t: share * self.rate_per_s for t, _ in members} for share in (LOWEST_SHARE, 1.0))
        able = dict(members)
        for step in range(N_BISECTIONS + 1):
            rates = {t: low[t] if step == 0 else math.sqrt(low[t] * high[t]) for t in able}
            plans = [self._plan(t, LOWER_RUN + step, p, rates[t]) for t, p in able.items()]
            outcomes = self.runs.carry_out(plans, "surviving rate", partial(self._promise_text, rates))
            holds = {plan.trial: self._holds(o) for plan, o in zip(plans, outcomes, strict=True)}
            if step == 0:
                able = {t: p for t, p in able.items() if holds[t]}
                continue
            low |= {t: rates[t] for t in able if holds[t]}
            high |= {t: rates[t] for t in able if not holds[t]}
        return tuple(Survival(t, low[t], False) for t in able)

    def _is_possible(self, rate_per_s: float) -> bool:
        try:
            self.loads(rate_per_s)
        except UserError:
            return False
        return True

    def _promise_text(self, rates: Mapping[int, float], plan: TrialPlan, outcome: Outcome) -> str:
        word = "keeps" if self._holds(outcome) else "breaks"
        return f"trial {plan.trial} {word} the promise at {rates[plan.trial]:.3g}/s"

    def _holds(self, outcome: Outcome) -> bool:
        card = self.judge.score(outcome)
        return card is not None and steady_holds(card)

    def _figure(self, trial: int, share: float, outcome: Outcome) -> RateFigure:
        metrics = compute_metrics(outcome.measurement, self.judge.targets) if isinstance(outcome, Measured) else {}
        unsustained = metrics.get("steady_unsustained")
        is_sustained = unsustained is not None and unsustained <= 0
        return RateFigure(trial, share, share * self.rate_per_s, metrics, is_sustained)

    def _plan(self, trial: int, run: int, placement: Placement, rate: float) -> TrialPlan:
        return TrialPlan(trial, run, "rate", placement, self.loads(rate), self.seed * 1_000_003 + 700_001 + trial)


def _run_of(k: int) -> int:
    """At R itself the confirmation's own repeat is shown, not a further run."""
    return AGAIN_RUNS[0] if SHOWN_AT[k] == 1.0 else RATE_RUN + k


def steady_holds(card: Scorecard) -> bool:
    """Every limit on the steady load is kept and the rate is sustained; other loads were not run."""
    return all(v <= 0 for name, v in card.violations.items() if is_steady_limit(name))


def is_steady_limit(name: str) -> bool:
    """A constraint that the steady load alone decides."""
    return name.rsplit(":", 1)[-1].startswith("steady_") or name == UNSUSTAINED
