"""The simulator, made to fail on demand: what a worker meets when an engine, or its process, gives way.

A module of its own, because worker processes import it."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from optimizer.engines.build import SimulatedEngineSpec
from optimizer.engines.engine import BootReport, Engine, Placement
from optimizer.errors import EngineFailed
from tests.forwarding_engine import ForwardingEngine

HEAVY = ("optuna", "pandas", "plotly", "rich", "torch", "vllm")


@dataclass(frozen=True)
class FaultyEngineSpec:
    """The first instance's name says what goes wrong when it boots; any other name: nothing."""

    simulator: SimulatedEngineSpec
    stop_file: str = ""
    """Where a stopped engine leaves its process's number."""

    @property
    def n_gpus(self) -> int:
        return 0

    def build(self) -> Engine:
        return FaultyEngine(self.simulator.build(), self.stop_file)

    def build_for(self, slot: int, n_slots: int, gpu_uuids: tuple[str, ...]) -> Engine:
        return self.build()


class FaultyEngine(ForwardingEngine):
    def __init__(self, inner: Engine, stop_file: str) -> None:
        super().__init__(inner)
        self._stop_file = stop_file

    def boot(self, placement: Placement, seed: int) -> BootReport:
        fault = placement.instances[0].name
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "exit":
            os._exit(1)
        if fault == "hang":
            time.sleep(600)
        if fault == "raise":
            raise RuntimeError("the bug of somebody\nin two lines")
        if fault == "out-of-memory":
            raise EngineFailed("oom", "load", "weights do not fit", is_config_fault=True, violation=2.0)
        if fault == "port-taken":
            raise EngineFailed("port", "boot", "address in use", is_config_fault=False)
        if fault == "modules":
            loaded = sorted(m for m in HEAVY if m in sys.modules)
            raise EngineFailed(
                "modules", None, f"loaded {loaded}, threads {os.environ.get('OMP_NUM_THREADS')}", is_config_fault=True
            )
        return super().boot(placement, seed)

    def stop(self) -> None:
        super().stop()
        if self._stop_file:
            with Path(self._stop_file).open("a") as file:
                file.write(f"{os.getpid()}\n")
