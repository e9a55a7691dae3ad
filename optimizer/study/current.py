"""The user's current configuration: trial 0 as it is, and what of it every other trial keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from optimizer.deployment.current import read_current
from optimizer.deployment.deployment import CurrentConfig, Deployment
from optimizer.errors import UserError
from optimizer.profiles.profile import Profile
from search_spaces.adjust import apply_overrides
from search_spaces.config import Config
from search_spaces.constraint import check_config
from search_spaces.model import ModelFacts
from search_spaces.online import quantized_on_load
from search_spaces.overrides import Override
from search_spaces.parameter import Value
from search_spaces.space import SearchSpace

MEMORY_FLAGS = ("kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override")


@dataclass(frozen=True)
class Current:
    """What runs today."""

    configs: Mapping[str, Config]
    """instance -> its arguments, as given"""
    deployment: Deployment
    """The first instance's; its untuned flags go into every export."""
    notices: tuple[str, ...]


def read_currents(profile: Profile, files: Mapping[str, str]) -> dict[str, CurrentConfig]:
    """instance -> what its server runs with today; empty if the user gave nothing."""
    for name in files:
        if name and name not in profile.instances:
            raise UserError(f"--current {name}=…: profile {profile.name} has no instance {name!r}")
    found = {}
    for name in profile.instances if files else ():
        file = files.get(name) or files.get("")
        if file is None:
            raise UserError(f"--current: nothing is given for instance {name}; write --current {name}=FILE too")
        found[name] = read_current(file)
    return found


def on_load(model: ModelFacts, read: Mapping[str, CurrentConfig]) -> ModelFacts:
    """The model as the user's servers hold it: `quantization` may change its weights while they load."""
    for current in read.values():
        method = current.config.get("quantization")
        try:
            model = quantized_on_load(model, None if method is None else str(method))
        except ValueError as error:
            raise UserError(f"{current.source}: {error}") from None
    return model


def check_gpus(read: Mapping[str, CurrentConfig], n_gpus: int) -> None:
    """Refuses a server that needs other cards than the ones its trials get."""
    for current in read.values():
        found = [current.config.get(f"{kind}_parallel_size") for kind in ("tensor", "pipeline", "data")]
        needed = math.prod(n for n in found if isinstance(n, int))
        if needed > n_gpus:
            raise UserError(
                f"{current.source}: runs on {needed} GPUs, a server here has {n_gpus}; add --gpus-per-server {needed}"
            )


def assemble_current(
    read: Mapping[str, CurrentConfig], length: int, kv_bytes: Mapping[str, Value] | None = None
) -> Current | None:
    """The user's current servers as given: several that do not fit on the card together are infeasible, not mended.

    `kv_bytes`: instance -> the KV bytes it gets where it asks for a share of the memory (a CPU has none to share)."""
    if not read:
        return None
    configs = {n: _runnable(c, length) for n, c in read.items()}
    exact = {n: _in_bytes(c, (kv_bytes or {}).get(n)) for n, c in configs.items()}
    changed = [n for n in configs if exact[n] != configs[n]]
    told = [f"{read[n].source}: on a CPU it runs with {exact[n]['kv_cache_memory_bytes']} KV bytes" for n in changed]
    first = next(iter(read.values()))
    notices = [f"{c.source}: {note}" for c in dict.fromkeys(read.values()) for note in c.notices]
    return Current(exact, first, tuple(dict.fromkeys((*notices, *told))))


def _in_bytes(config: Config, kv_bytes: Value) -> Config:
    if kv_bytes is None or "kv_cache_memory_bytes" in config:
        return config
    return config.with_(gpu_memory_utilization=None, kv_cache_memory_bytes=kv_bytes)


def _runnable(current: CurrentConfig, length: int) -> Config:
    """As given, with the context contract where the user has none; what vLLM would refuse is refused here."""
    config = current.config if "max_model_len" in current.config else current.config.with_(max_model_len=length)
    if problems := check_config(dict(config)):
        raise UserError(f"{current.source}: {problems[0]}")
    return config


def hold_current(space: SearchSpace, read: Mapping[str, CurrentConfig]) -> SearchSpace:
    """What the user runs with and this study does not search stays as it is in every trial: a fp8 KV cache or prefix
    caching that is off are part of what is tuned around, not something to switch back by accident."""
    searched = {p.name for p in space.searched}
    for name, current in read.items():
        for flag, value in current.config.items():
            owned = f"{name}.{flag}" if len(read) > 1 else flag
            if flag in ("max_model_len", *MEMORY_FLAGS) or {flag, owned} & searched:
                continue
            if flag in space.by_name or owned in space.by_name:
                target = owned if owned in space.by_name else flag
                space = _held(space, target, value, f"{current.source}: {flag}")
            else:
                space = replace(space, extras={**space.extras, owned: value})
    return space


def _held(space: SearchSpace, name: str, value: Value, where: str) -> SearchSpace:
    try:
        return apply_overrides(space, [Override("set", name, (value,), where)])
    except ValueError as error:
        raise UserError(str(error)) from None
