"""The device a study is about: a simulated card by its name, or what a real engine runs on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from optimizer.engines.simulator.calibration import SimulatorCalibration
from optimizer.errors import UserError
from optimizer.profiles.profile import Profile
from optimizer.study.traffic import Traffic
from search_spaces.capacity import MARGIN_SHARE
from search_spaces.cpu import MEMORY_STEP_BYTES
from search_spaces.hardware import GpuFacts, find_gpu
from search_spaces.memory import Demand
from search_spaces.memory_seen import OTHERWISE_LOADED
from search_spaces.model import ModelFacts
from search_spaces.model_directory import weight_files
from search_spaces.space import SearchSpace, flag_of
from search_spaces.vllm import CPU_MAX_SEQS, CPU_TOKENS


def choose_device(
    profile: Profile, named: str | None, sharing: str | None, device: GpuFacts | None
) -> tuple[Profile, GpuFacts, tuple[str, ...]]:
    """The profile with the device's name in it, the device, and what to say about it. `named`: --gpu as typed;
    `device`: what a real engine found, None for a simulated card.

    Raises UserError for a card that is not the one found, and for ways of sharing that the device does not have."""
    if profile.sharing == "mig" and device is None:
        raise UserError(
            "--gpu-sharing mig is not simulated: name the slice's own card as --gpu, or measure on a real one"
        )
    if device is None:
        gpu = _named(profile.gpu)
        return profile, gpu, (f"--gpu {named} is taken as {gpu.name}",) if named and named != gpu.name else ()
    if device.is_cpu and profile.is_shared and sharing == "mps":
        raise UserError(
            "--gpu-sharing mps: servers on a CPU share its cores (time-slice), or have cores of their own (mig)"
        )
    if named is not None and not _is(named, device):
        raise UserError(f"--gpu {named}: the engine runs on what is here, {device.name}; leave --gpu out")
    note = () if profile.gpu == device.name else (f"measured on {device.name}, whatever card the profile names",)
    return replace(profile, gpu=device.name), device, note


def as_started(
    model: ModelFacts, gpu: GpuFacts, calibrated: SimulatorCalibration | None, flags: Iterable[str]
) -> ModelFacts:
    """The model with what earlier starts on this card said of its memory, unless a flag loads it otherwise.

    Raises UserError for a calibration of another model or card."""
    if calibrated is None:
        return model
    calibrated.check(model, gpu, f"--simulator-calibration {calibrated.file}")
    return model if OTHERWISE_LOADED & set(flags) else replace(model, memory_seen=calibrated.memory)


def trimmed(gpu: GpuFacts, model: ModelFacts, traffic: Traffic, profile: Profile) -> GpuFacts:
    """A CPU with no more memory than these servers could ever use, since vLLM fills all it is given with zeros when it
    starts: their costs, and the KV cache of the most sequences that are tried there."""
    if not gpu.is_cpu:
        return gpu
    n = len(profile.instances)
    demand = Demand(model, CPU_TOKENS.grid[-1], CPU_MAX_SEQS, is_cpu=True)
    mean_tokens = round(max(traffic.mean_tokens_of.values()))
    one = 1.25 * max(CPU_MAX_SEQS * model.kv_bytes(mean_tokens), model.kv_bytes(traffic.max_model_len))
    needed = n * (demand.inside.high + one) / (1 - MARGIN_SHARE)
    steps = math.ceil(needed / MEMORY_STEP_BYTES)
    return replace(gpu, memory_bytes=min(gpu.memory_bytes, steps * MEMORY_STEP_BYTES))


def loadable(space: SearchSpace) -> tuple[SearchSpace, tuple[str, ...]]:
    """A model directory without weights is served with random ones: speeds are real, the text is noise."""
    directory = Path(space.model.name)
    given = {flag_of(name) for name in (*space.extras, *space.by_name)}
    if "load_format" in given or not directory.is_dir() or weight_files(directory):
        return space, ()
    note = f"{directory}: holds no weights, so random ones are served (load_format dummy)"
    return replace(space, extras={**space.extras, "load_format": "dummy"}), (note,)


def _is(named: str, device: GpuFacts) -> bool:
    """A slice of a card, or a card of another size, has the card's name and more."""
    return named.strip().upper() == device.name if device.is_cpu else device.name.startswith(_named(named).name)


def _named(name: str) -> GpuFacts:
    try:
        return find_gpu(name)
    except ValueError as error:
        raise UserError(f"--gpu: {error}") from None
