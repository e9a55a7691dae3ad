"""A picklable description of an engine, and the engine made from it where it will run.

An engine holds processes, sockets or arrays and never travels; its spec does. The driver sends one spec to every
worker, which builds its engine once and keeps it for all its trials. An engine's modules are loaded only where it is
built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from optimizer.engines.engine import Engine

if TYPE_CHECKING:
    from optimizer.engines.simulator.engine import SimulatorSpec


class EngineSpec(Protocol):
    """What a worker needs to make its engine. Implementations are frozen, picklable, and light to import."""

    @property
    def n_gpus(self) -> int:
        """Whole GPUs that one slot of this engine owns; 0 if it needs none.

        Never a fraction: several instances on one card share it themselves, because a fractional booking limits
        neither memory nor compute."""
        ...

    def build(self) -> Engine:
        """The engine, not booted. Raises UserError or Unavailable when this machine cannot run it."""
        ...


@dataclass(frozen=True)
class SimulatedEngineSpec:
    """The simulator: one CPU, no GPU."""

    simulator: SimulatorSpec

    @property
    def n_gpus(self) -> int:
        return 0

    def build(self) -> Engine:
        from optimizer.engines.simulator.engine import SimulatedEngine

        return SimulatedEngine(self.simulator)
