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
    from optimizer.engines.vllm.spec import AttachSpec, VllmSpec


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

    def build_for(self, slot: int, n_slots: int, gpu_uuids: tuple[str, ...]) -> Engine:
        """The same for one of several slots on a machine: it keeps to its share of the cores, and to its GPUs."""
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

    def build_for(self, slot: int, n_slots: int, gpu_uuids: tuple[str, ...]) -> Engine:
        return self.build()


@dataclass(frozen=True)
class RealEngineSpec:
    """vLLM servers on this slot's GPUs, or on the CPU."""

    vllm: VllmSpec

    @property
    def n_gpus(self) -> int:
        return self.vllm.n_gpus

    def build(self) -> Engine:
        """The only slot of this machine, on the first of the study's cards."""
        return self.build_for(0, 1, self.vllm.gpu_uuids[: self.n_gpus])

    def build_for(self, slot: int, n_slots: int, gpu_uuids: tuple[str, ...]) -> Engine:
        from optimizer.engines.vllm.engine import VllmEngine

        return VllmEngine(self.vllm, slot, n_slots, gpu_uuids)


@dataclass(frozen=True)
class AttachedEngineSpec:
    """Servers that run already; one slot."""

    attach: AttachSpec

    @property
    def n_gpus(self) -> int:
        return 0

    def build(self) -> Engine:
        from optimizer.engines.vllm.attached import AttachedEngine

        return AttachedEngine(self.attach)

    def build_for(self, slot: int, n_slots: int, gpu_uuids: tuple[str, ...]) -> Engine:
        return self.build()
