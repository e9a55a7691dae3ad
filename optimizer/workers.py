"""Which engine a run uses, and the workers that run it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from optimizer.cluster.executor import Executor
from optimizer.cluster.inline import InlineExecutor
from optimizer.cluster.ray_executor import RayExecutor
from optimizer.cluster.slots import GpuDetection, detect_gpus
from optimizer.engines.build import EngineSpec, SimulatedEngineSpec
from optimizer.engines.simulator.engine import SimulatorSpec
from optimizer.engines.simulator.settings import MODELLED
from optimizer.errors import Unavailable, UserError
from optimizer.options import SessionOptions
from optimizer.study.setup import Setup
from search_spaces.space import KV_SPLIT, flag_of


@dataclass(frozen=True)
class EngineChoice:
    """The engine of a study and why it was taken."""

    spec: EngineSpec
    identity: str
    is_simulated: bool
    notice: str


def choose_engine(options: SessionOptions, setup: Setup) -> EngineChoice:
    """`auto` takes vLLM where a GPU and vLLM are found, else the simulator, and says which.

    Raises Unavailable, with what was checked, when vLLM is asked for and cannot run."""
    if options.engine == "simulator":
        return _simulator(options, setup, "simulating, as asked")
    found = detect_gpus()
    reason = _why_not_vllm(found)
    if options.engine == "vllm":
        none = "" if found.gpus else "no GPU found, "
        raise Unavailable(f"--engine vllm: {none}{reason}; use --engine simulator to search on a simulated GPU")
    found_none = "no GPU found, simulating" if not found.gpus else "simulating"
    return _simulator(options, setup, f"{found_none} ({reason})")


def _why_not_vllm(found: GpuDetection) -> str:
    if not found.gpus:
        return f"checked: {'; '.join(found.checked)}"
    if importlib.util.find_spec("vllm") is None:
        return f"{len(found.gpus)} GPU(s) found but no vLLM in this Python"
    return "a GPU and vLLM are found, but this version measures on the simulator only"


def _simulator(options: SessionOptions, setup: Setup, notice: str) -> EngineChoice:
    _check_modelled(setup)
    spec = SimulatedEngineSpec(SimulatorSpec(setup.model, setup.gpu, options.noise, setup.space.variants))
    calibrated = "" if setup.gpu.is_calibrated else f"; {setup.gpu.name} is uncalibrated: no kernel data for this card"
    return EngineChoice(spec, spec.build().identity, True, notice + calibrated + _passed_through(setup))


def _check_modelled(setup: Setup) -> None:
    """Refuse to search what the simulator has no model of: every value would measure the same."""
    unknown = sorted({flag_of(p.name) for p in setup.space.searched} - MODELLED - {KV_SPLIT})
    if unknown:
        raise UserError(
            f"{unknown[0]}: the simulator has no model of it, so every value would measure the same;"
            " leave it out, or search on a real engine"
        )
    if "quantization" in _extras(setup) and not setup.model.is_quantized:
        raise UserError(
            "--set quantization: the figures would be those of unquantised weights; give the quantised checkpoint"
            " as --model, or your configuration with it as --current"
        )


def _extras(setup: Setup) -> set[str]:
    return {flag_of(name) for name in setup.space.extras}


def _passed_through(setup: Setup) -> str:
    """Fixed flags that the simulator does not model: they are exported, and no figure knows them."""
    names = sorted(_extras(setup) - MODELLED - {"quantization"})
    return f"; not modelled, only passed on: {', '.join(names)}" if names else ""


@contextmanager
def start_executor(options: SessionOptions, choice: EngineChoice, study: str) -> Iterator[Executor]:
    """Ray workers, a local Ray or the cluster at --ray-address; --workers 0 runs in this process."""
    if options.n_workers == 0:
        with InlineExecutor(choice.spec) as inline:
            yield inline
        return
    with RayExecutor(choice.spec, study=study, n_slots=options.n_workers, address=options.ray_address) as workers:
        yield workers
