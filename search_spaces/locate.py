"""A given configuration's place in a space: the nearest point, and every way in which it lies outside.

The configuration itself still runs as given; the point is only what the sampler is told about it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.constraint import resolve_defaults
from search_spaces.memory_use import memory_use
from search_spaces.parameter import NumberParameter, Parameter, ShareParameter, Value
from search_spaces.space import KV_SPLIT, SearchSpace, Server, flag_of, shares_of, split_name

LOCAL = frozenset({"max_model_len"})
"""Arguments that are no knobs here and are compared with the contract instead."""


@dataclass(frozen=True)
class Located:
    """Where a configuration stands. `outside` is empty when the point has exactly this configuration's values."""

    point: Mapping[str, Value]
    outside: tuple[str, ...]


def point_of(space: SearchSpace, configs: Mapping[str, Mapping[str, Any]]) -> Located:
    """Server name -> its arguments. Raises ValueError when a server is missing or unknown."""
    names = [s.name for s in space.servers]
    if set(configs) != set(names):
        raise ValueError(f"the space has the servers {', '.join(names)}, got {', '.join(configs) or 'none'}")
    filled = {s.name: _filled(space, s, configs[s.name]) for s in space.servers}
    point: dict[str, Value] = {}
    outside: list[str] = []
    for parameter in space.parameters:
        if parameter.name == KV_SPLIT:
            point[KV_SPLIT] = _nearest_split(parameter, [_kv(v) for v in filled.values()])
            continue
        owner = split_name(parameter.name)[0] or names[0]
        point[parameter.name] = _place(parameter, filled[owner], outside)
    for server in space.servers:
        outside += _unsearched(space, server, configs[server.name])
    return Located(space.complete(point), tuple(outside))


def _filled(space: SearchSpace, server: Server, config: Mapping[str, Any]) -> dict[str, Value]:
    """vLLM's defaults and the KV bytes it would take, so that every parameter has a value."""
    values = resolve_defaults(config, space.model, server.max_model_len, space.gpu)
    values.setdefault("kv_cache_memory_bytes", max(1, memory_use(space.model, space.gpu, values).kv_bytes))
    if "gpu_memory_utilization" not in values:
        use = memory_use(space.model, space.gpu, values)
        values["gpu_memory_utilization"] = (use.peak_bytes - use.context_bytes) / space.gpu.memory_bytes
    return values


def _place(parameter: Parameter, values: Mapping[str, Value], outside: list[str]) -> Value:
    flag = flag_of(parameter.name)
    given = values.get(flag, parameter.default)
    if isinstance(parameter, ShareParameter):
        return _nearest_share(parameter, given, values, outside)
    try:
        near = parameter.nearest(given)
    except ValueError:
        near = parameter.default if parameter.default in parameter.values() else parameter.values()[0]
    if isinstance(parameter, NumberParameter):
        if not _is_close(near, given):
            low, high = parameter.grid[0], parameter.grid[-1]
            outside.append(f"{parameter.name} {given} is not on the grid {low}..{high}; nearest {near}")
    elif near != given:
        outside.append(f"{parameter.name} {given!r} is not searched (only {list(parameter.values())})")
    return near


def _nearest_share(parameter: ShareParameter, given: Value, values: Mapping[str, Value], outside: list[str]) -> Value:
    whole = values.get(parameter.of)
    if not isinstance(given, int | float) or not isinstance(whole, int | float) or not whole:
        return parameter.values()[0]
    shares = [v for v in parameter.values() if isinstance(v, int | float)]
    near = min(shares, key=lambda s: abs(s - given / whole))
    if parameter.resolve(near, int(whole)) != given:
        outside.append(f"{parameter.name} {given} is {given / whole:.2g} of {parameter.of}; nearest share {near:g}")
    return near


def _nearest_split(parameter: Parameter, sizes: list[float]) -> Value:
    total = sum(sizes) or 1.0
    asked = [s / total for s in sizes]

    def distance(value: Value) -> float:
        return sum(abs(a - b) for a, b in zip(asked, shares_of(value, len(sizes)), strict=True))

    return min(parameter.values(), key=distance)


def _unsearched(space: SearchSpace, server: Server, config: Mapping[str, Any]) -> list[str]:
    known = set(space.own_parameters(server.name)) | {"kv_cache_memory_bytes", "gpu_memory_utilization"} | LOCAL
    extras = {split_name(k)[1] for k in space.extras}
    where = f"{server.name}: " if len(space.servers) > 1 else ""
    found = [
        f"{where}{name} {value!r} is not part of the space; candidates keep vLLM's default"
        for name, value in config.items()
        if value is not None and name not in known | extras
    ]
    longest = config.get("max_model_len")
    if longest is not None and longest != server.max_model_len:
        found.append(f"{where}max_model_len {longest} is not the contract's {server.max_model_len}")
    return found


def _kv(values: Mapping[str, Value]) -> float:
    value = values.get("kv_cache_memory_bytes")
    return float(value) if isinstance(value, int | float) else 0.0


def _is_close(near: Value, given: Value) -> bool:
    if not isinstance(near, int | float) or not isinstance(given, int | float):
        return False
    return math.isclose(near, given, rel_tol=1e-9, abs_tol=1e-12)
