"""Which engine a run uses, on which hardware, and the workers that run it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from optimizer.cluster.executor import Executor
from optimizer.cluster.inline import InlineExecutor
from optimizer.cluster.ray_executor import RayExecutor
from optimizer.cluster.slots import Gpu, GpuClass, choose_gpus, detect_gpus, n_usable_cores
from optimizer.engines.build import AttachedEngineSpec, EngineSpec, RealEngineSpec, SimulatedEngineSpec
from optimizer.engines.simulator.basis import uncalibrated
from optimizer.engines.simulator.calibration import calibration_for
from optimizer.engines.simulator.engine import SimulatorSpec
from optimizer.engines.simulator.settings import MODELLED
from optimizer.engines.vllm.attached import AttachedEngine
from optimizer.engines.vllm.devices import open_devices
from optimizer.engines.vllm.interpreter import VllmInstall, find_vllm
from optimizer.engines.vllm.spec import AttachSpec, VllmSpec
from optimizer.errors import Unavailable, UserError
from optimizer.options import SessionOptions
from optimizer.study.calibration import Reference
from optimizer.study.setup import Setup, placement_of
from search_spaces.cpu import host_cpu
from search_spaces.hardware import GpuFacts, find_gpu
from search_spaces.space import KV_SPLIT, flag_of

ATTACHED, UNSEEN = "attached", "a running server's GPU"
OF_THE_MACHINE = frozenset({"stress_min_free_memory_bytes"})
"""Metrics that nobody can read of a server that is not ours."""
EngineName = Literal["simulator", "vllm", "attach"]


@dataclass(frozen=True)
class Hardware:
    """What the study runs on, found before anything about it is worked out."""

    engine: EngineName
    device: GpuFacts | None
    """Facts of the device the servers will have; None: the profile's or --gpu's."""
    gpus: tuple[Gpu, ...] = ()
    install: VllmInstall | None = None
    notice: str = ""
    vllm_version: str = ""


@dataclass(frozen=True)
class EngineChoice:
    """The engine of a study and why it was taken."""

    spec: EngineSpec
    identity: str
    is_simulated: bool
    notice: str
    gpus: tuple[Gpu, ...] = ()
    vllm_version: str = "0.32.0"
    """The version measured, or the one that the simulator's scheduler is of."""

    @property
    def gpu_class(self) -> GpuClass | None:
        return self.gpus[0].kind if self.gpus else None


def find_hardware(options: SessionOptions) -> Hardware:
    """`auto` takes vLLM where a GPU and vLLM are found, else the simulator, and says which.

    Raises Unavailable, with what was checked, when vLLM is asked for and cannot run."""
    if options.attach:
        return Hardware("attach", None, notice="measuring running servers; nothing is started or changed")
    if options.engine == "simulator":
        return Hardware("simulator", None, notice="simulating, as asked")
    if options.ray_address is not None and options.engine == "vllm":
        return _remote(options)
    found = detect_gpus()
    if options.engine == "auto" and not found.gpus:
        return Hardware("simulator", None, notice=f"no GPU found, simulating (checked: {'; '.join(found.checked)})")
    try:
        install = find_vllm(options.vllm_python)
    except Unavailable as error:
        if options.engine == "vllm":
            none = "" if found.gpus else f"no GPU found (checked: {'; '.join(found.checked)}); "
            raise Unavailable(f"--engine vllm: {none}{error}") from None
        return Hardware("simulator", None, notice=f"simulating ({len(found.gpus)} GPU(s) found, but {error})")
    if install.is_cpu:
        if options.engine == "auto":
            return Hardware(
                "simulator", None, notice="simulating (the vLLM found is a CPU build; --engine vllm uses it)"
            )
        return _on_cpu(options, install)
    return _on_gpus(options, install, choose_gpus(found))


def _on_cpu(options: SessionOptions, install: VllmInstall) -> Hardware:
    import psutil

    if options.setup.gpu is not None and options.setup.gpu.upper() != "CPU":
        raise UserError(f"--gpu {options.setup.gpu}: the vLLM found is a CPU build ({install.text}); leave --gpu out")
    device = host_cpu(psutil.virtual_memory().total, n_usable_cores())
    return Hardware(
        "vllm", device, (), install, f"measuring on this machine's CPU with {install.text}", install.version
    )


def _on_gpus(options: SessionOptions, install: VllmInstall, gpus: tuple[Gpu, ...]) -> Hardware:
    kind = gpus[0].kind
    device = _facts_of(options.setup.gpu, kind)
    notice = f"measuring on {len(gpus)} x {kind.text} with {install.text}"
    return Hardware("vllm", device, gpus, install, notice, install.version)


def _facts_of(asked: str | None, kind: GpuClass) -> GpuFacts:
    """The table's row for a card, with the memory that the driver reports (a MIG slice's own)."""
    try:
        facts = find_gpu(asked or kind.name)
    except ValueError as error:
        raise UserError(f"--gpu: {error}; this machine has {kind.text}: name the nearest card of the list") from None
    if kind.memory_mib and abs(kind.memory_mib * 1024**2 / facts.memory_bytes - 1) > 0.02:
        name = f"{facts.name}{' MIG ' + kind.mig_profile if kind.mig_profile else f' {kind.memory_mib} MiB'}"
        return replace(
            facts,
            name=name,
            memory_bytes=kind.memory_mib * 1024**2,
            kernels=facts.kernels.assumed(f"as a whole {facts.name}"),
        )
    return facts


def _remote(options: SessionOptions) -> Hardware:
    """The cards are on the cluster's nodes: the user says which, and every worker is held to it."""
    if options.setup.gpu is None:
        raise UserError("--ray-address with --engine vllm: say which card the study is for (--gpu NAME)")
    return Hardware("vllm", find_gpu(options.setup.gpu), notice="measuring on the workers of the Ray cluster")


def choose_engine(options: SessionOptions, setup: Setup, hardware: Hardware) -> tuple[EngineChoice, Setup]:
    """The engine's description, and the setup as it is on that engine. Raises UserError for what it cannot measure."""
    if hardware.engine == "simulator":
        return _simulator(options, setup, hardware.notice), setup
    if hardware.engine == "attach":
        return _attached(options, setup, hardware.notice)
    return _real(options, setup, hardware), setup


def _real(options: SessionOptions, setup: Setup, hardware: Hardware) -> EngineChoice:
    if options.ray_address is not None and options.n_workers == 0:
        raise UserError("--workers 0 with --ray-address: servers run on the cluster's workers; leave one of them out")
    if hardware.gpus and setup.profile.is_shared:
        _check_sharing(setup, tuple(gpu.uuid for gpu in hardware.gpus[: options.setup.n_gpus]))
    spec = RealEngineSpec(
        VllmSpec(
            model=_model_to_serve(setup),
            vocabulary=setup.model.vocab,
            python=options.vllm_python,
            n_gpus=0 if hardware.install is not None and hardware.install.is_cpu else options.setup.n_gpus,
            gpu_uuids=tuple(gpu.uuid for gpu in hardware.gpus),
        )
    )
    version = hardware.vllm_version or setup_version(options)
    identity = hardware.install.text if hardware.install is not None else f"vLLM {version} on the cluster's nodes"
    return EngineChoice(spec, identity, False, hardware.notice, hardware.gpus, version)


def _check_sharing(setup: Setup, uuids: tuple[str, ...]) -> None:
    """Figures of one way of sharing say nothing about another: what is recorded must be what is there."""
    detected, asked = open_devices(uuids).sharing, setup.profile.sharing
    if detected != asked:
        raise UserError(
            f"--gpu-sharing {asked}: processes on this card share it by {detected}; give --gpu-sharing {detected},"
            " or change the machine (an MPS control daemon, MIG slices)"
        )


def _model_to_serve(setup: Setup) -> str:
    """A directory by its whole path, since servers do not start where this command did."""
    path = Path(setup.profile.model)
    return str(path.resolve()) if path.is_dir() else setup.served_model


def setup_version(options: SessionOptions) -> str:
    """The version on a cluster's nodes is taken to be the driver's own, where it has one."""
    try:
        return find_vllm(options.vllm_python).version
    except Unavailable:
        return "unknown"


def _attached(options: SessionOptions, setup: Setup, notice: str) -> tuple[EngineChoice, Setup]:
    """One trial of what runs there: a search would have to change it."""
    instances = setup.profile.instances
    for name in options.attach:
        if name and name not in instances:
            raise UserError(f"--attach {name}=…: profile {setup.profile.name} has {', '.join(instances)}")
    missing = [i for i in instances if i not in options.attach and "" not in options.attach]
    if missing:
        raise UserError(f"--attach: no URL for {', '.join(missing)}; give --attach {missing[0]}=URL")
    urls, n_gpus = tuple(options.attach.items()), options.setup.n_gpus
    attach = AttachSpec(urls, setup.model.vocab, n_gpus, options.is_attach_insisting, options.attach_key_variable)
    spec = AttachedEngineSpec(attach)
    engine = AttachedEngine(spec.attach)
    placement = placement_of(setup.profile, {name: engine.known_config(name) for name in instances})
    budget = replace(setup.profile.budget, n_trials=1, stable_trials=0)
    limits = tuple(x for x in setup.profile.limits if x.metric not in OF_THE_MACHINE)
    only = replace(
        setup,
        profile=replace(setup.profile, budget=budget, limits=limits),
        gpu=replace(setup.gpu, name=UNSEEN),
        references=(Reference(ATTACHED, placement),),
        baselines=((ATTACHED, placement, None),),
        single_server=None,
    )
    told = f"{notice}; their GPUs and memory are not seen, so no limit is set on free memory"
    return EngineChoice(spec, engine.identity, False, told, (), engine.version), only


def _simulator(options: SessionOptions, setup: Setup, notice: str) -> EngineChoice:
    _check_modelled(setup)
    learned = calibration_for(options.simulator_calibration, setup.model, setup.gpu)
    residuals = {} if learned is None else learned.residuals
    simulator = SimulatorSpec(setup.model, setup.gpu, options.noise, setup.space.variants, residuals=residuals)
    spec = SimulatedEngineSpec(simulator)
    calibrated = _uncalibrated(setup)
    if learned is not None:
        calibrated = f"; step times {learned.text}"
    return EngineChoice(spec, spec.build().identity, True, notice + calibrated + _passed_through(setup))


def _uncalibrated(setup: Setup) -> str:
    found = uncalibrated(setup.model, setup.gpu)
    return f"; uncalibrated on {setup.gpu.name}: {', '.join(found)}" if found else ""


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
    n_workers = options.n_workers
    if n_workers is None and not choice.is_simulated and not choice.gpus and options.ray_address is None:
        n_workers = 1  # on a CPU, or on servers that are there already, trials side by side would disturb each other
    if n_workers == 0 or options.attach:
        with InlineExecutor(choice.spec) as inline:
            yield inline
        return
    with RayExecutor(
        choice.spec,
        study=study,
        n_slots=n_workers,
        address=options.ray_address,
        gpus=choice.gpus,
        gpu_class=choice.gpu_class,
        gpu_name=options.setup.gpu if options.ray_address is not None else None,
        identity=choice.identity if choice.is_simulated or choice.gpus else None,
    ) as workers:
        yield workers
