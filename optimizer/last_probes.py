"""What is measured once the front stands: the picks at other rates, beside neighbours and as text; and where nothing is
safe, what would have to be kept out. Each probe is left out where it has nothing to say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from optimizer.engines.engine import LoadPlan, Placement
from optimizer.reporting.member import Front, FrontMember
from optimizer.study.calibration import Calibration
from optimizer.study.caps import CapAdvice, CapProbe
from optimizer.study.confirmation import Scope
from optimizer.study.events import Event, StageStarted
from optimizer.study.isolation import Isolation, IsolationProbe
from optimizer.study.judge import Judge
from optimizer.study.rates import RateFigure, RateProbe, Survival, is_steady_limit
from optimizer.study.runs import Runs
from optimizer.study.setup import Setup, placement_of
from optimizer.study.text_probe import TextFigure, TextProbe

N_BELOW = 2
"""Nearest misses for which a rate below R is looked for."""


@dataclass(frozen=True)
class LastProbes:
    """Of one session."""

    setup: Setup
    seed: int
    scope: Scope
    is_simulated: bool
    runs: Runs
    judge: Judge
    calibration: Calibration
    show: Callable[[Event], None]

    def _probe(self) -> RateProbe:
        return RateProbe(
            self.judge,
            self._loads,
            self.calibration.rate_per_s,
            self.seed,
            self.runs,
        )

    def rates(self, front: Front) -> tuple[RateFigure, ...]:
        picked = [m for m in (front.reference, *front.members) if m is not None and (m.picks or m == front.reference)]
        picked = list({m.trial: m for m in picked}.values())
        if self.scope == "none":
            return ()
        if picked:
            self.show(StageStarted("rates", "the picks and the reference below and above R"))
        return self._probe().figures([(m.trial, self._placed(m)) for m in picked])

    def survivals(self, front: Front) -> tuple[Survival, ...]:
        if not self.setup.promised:
            return ()
        if not front.members:
            return self._survivals_below(front)
        self.show(StageStarted("surviving rate", "how far up each member of the front keeps the promise"))
        members = [(m.trial, self._placed(m), self._top_rate(m)) for m in front.members]
        return self._probe().survival(members)

    def _survivals_below(self, front: Front) -> tuple[Survival, ...]:
        """Where no trial keeps the promise at R, a lower rate a server may: only steady limits depend on the rate."""
        measured = (m for m in front.nearest_misses(len(front.trials)) if m.values is not None)
        nearest = [m for m in measured if all(is_steady_limit(name) for name, _ in m.missed)][:N_BELOW]
        if not nearest:
            return ()
        self.show(StageStarted("surviving rate", "nothing keeps the promise at R: up to which lower rate would it?"))
        return self._probe().survival_below([(m.trial, self._placed(m)) for m in nearest])

    def _top_rate(self, member: FrontMember) -> float:
        """Requests per second at which the member saturates; above it no promise on latency is kept for long."""
        requests = member.metrics.get("saturation_requests_per_s_per_gpu") or 0.0
        return max(requests, self.calibration.rate_per_s) * 1.1

    def isolations(self, front: Front) -> tuple[Isolation, ...]:
        picked = [m for m in front.members if m.picks]
        if not self.setup.profile.is_shared or not picked or self.scope == "none":
            return ()
        self.show(StageStarted("isolation", "each tenant beside a saturated neighbour and beside an idle one"))
        steady = self._loads(self.calibration.rate_per_s)[0]
        probe = IsolationProbe(steady, self.seed, self.runs)
        return probe.measure([(m.trial, self._placed(m), m.metrics) for m in picked])

    def texts(self, front: Front) -> tuple[TextFigure, ...]:
        picked = [m for m in front.members if m.picks]
        if self.is_simulated or not picked or self.scope == "none":
            return ()
        self.show(StageStarted("text", "the picks once more as text, through the chat endpoint with its own sampling"))
        steady = self._loads(self.calibration.rate_per_s)[0]
        probe = TextProbe(steady, self.calibration.targets, self.seed, self.runs)
        return probe.measure([(m.trial, self._placed(m), m.metrics) for m in picked])

    def caps(self, front: Front) -> tuple[CapAdvice, ...]:
        nearest = [m for m in front.nearest_misses(1) if m.values is not None]
        if front.members or not nearest:
            return ()
        self.show(StageStarted("caps", "nothing is safe: which requests break it?"))
        member = nearest[0]
        return CapProbe(
            trial=member.trial,
            placement=self._placed(member),
            running=member.metrics.get("saturation_running_mean"),
            traffic=self.setup.traffic,
            rate_per_s=self.calibration.rate_per_s,
            judge=self.judge,
            runs=self.runs,
            seed=self.seed,
        ).advise()

    def _loads(self, rate_per_s: float) -> tuple[LoadPlan, ...]:
        return self.setup.traffic.loads(rate_per_s, ("steady",))

    def _placed(self, member: FrontMember) -> Placement:
        return placement_of(self.setup.profile, member.configs)
