"""An engine that passes every call on: what a test's engine inherits, to change the one call it is about.

A module of its own, and a light one, because worker processes import it."""

from __future__ import annotations

from collections.abc import Mapping

from objectives.measurement import EngineSample, PhaseMeasurement
from optimizer.engines.engine import BootReport, Engine, LoadPlan, Placement


class ForwardingEngine:
    is_simulated = True

    def __init__(self, inner: Engine) -> None:
        self._inner = inner

    @property
    def identity(self) -> str:
        return self._inner.identity

    def boot(self, placement: Placement, seed: int) -> BootReport:
        return self._inner.boot(placement, seed)

    def holds(self, placement: Placement) -> bool:
        return self._inner.holds(placement)

    def configure(self, placement: Placement) -> None:
        self._inner.configure(placement)

    def reset(self) -> None:
        self._inner.reset()

    def replay(self, plan: LoadPlan) -> PhaseMeasurement:
        return self._inner.replay(plan)

    def sample(self) -> tuple[EngineSample, ...]:
        return self._inner.sample()

    def logs(self) -> Mapping[str, str]:
        return self._inner.logs()

    def stop(self) -> None:
        self._inner.stop()
