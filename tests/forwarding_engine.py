"""An engine that passes every call on: what a test's engine inherits, to change the one call it is about.

A module of its own, and a light one, because worker processes import it."""

from __future__ import annotations

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

    def configure(self, placement: Placement) -> None:
        self._inner.configure(placement)

    def reset(self) -> None:
        self._inner.reset()

    def replay(self, plan: LoadPlan) -> PhaseMeasurement:
        return self._inner.replay(plan)

    def sample(self) -> tuple[EngineSample, ...]:
        return self._inner.sample()

    def stop(self) -> None:
        self._inner.stop()
