"""Overrides applied to a space: each one gives a new space, checked when it is built.

What can change the model's answers is only ever switched on by such an override (or by name), and is noted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from search_spaces.constraint import warn_config
from search_spaces.cpu import check_on_cpu
from search_spaces.flags import FLAGS, unknown_flag
from search_spaces.overrides import Override
from search_spaces.parameter import (
    ChoiceParameter,
    FlagParameter,
    FloatParameter,
    IntParameter,
    NumberParameter,
    Parameter,
    ShareParameter,
    Value,
    geometric_ints,
)
from search_spaces.space import KV_SPLIT, SearchSpace, Server, flag_of, split_name
from search_spaces.vllm import risk_note

MEMORY_KNOBS = frozenset({"kv_cache_memory_bytes", "gpu_memory_utilization"})
DEFAULT_STEP = 0.01
"""Between the values of a real-number range without a step."""
MULTIPLES = {"max_num_batched_tokens": 64, "kv_cache_memory_bytes": 64 * 1024**2}
"""Rounding of geometric ranges."""


def apply_overrides(space: SearchSpace, overrides: Iterable[Override]) -> SearchSpace:
    """In order; a later one wins. Raises ValueError naming the override."""
    for override in overrides:
        space = _apply(space, override)
    return space


def _apply(space: SearchSpace, o: Override) -> SearchSpace:
    owner, flag = split_name(o.name)
    names = [s.name for s in space.servers]
    if owner is not None and owner not in names:
        raise ValueError(f"{o.where}: there is no server {owner!r}; the servers are {', '.join(names)}")
    if space.gpu.is_cpu:
        check_on_cpu(flag, o.values, o.where)
    if flag == "max_model_len":
        return _contract(space, o, owner)
    if flag in MEMORY_KNOBS:
        return _memory(space, o, flag)
    targets = _targets(space, o.name)
    if targets:
        return _replaced(space, o, [(t, _changed(space.by_name[t], o)) for t in targets])
    if o.kind == "set":
        return _extra(space, o, flag)
    if o.kind != "add" and flag not in FLAGS:
        hint = unknown_flag(flag) or f"; to search a flag this program does not know, write --add {o.name}=VALUE,VALUE"
        raise ValueError(f"{o.where}: unknown flag {flag!r}{hint}")
    return _added(space, o)


def _targets(space: SearchSpace, name: str) -> list[str]:
    """The parameters a name means: itself, or without a server every server's."""
    if name in space.by_name:
        return [name]
    owner, flag = split_name(name)
    if owner is None:
        return [p.name for p in space.parameters if flag_of(p.name) == flag]
    if flag in space.by_name and len(space.servers) == 1:
        return [flag]
    if flag in space.by_name:
        raise ValueError(f"{name}: {flag} is shared by all servers; write it without {owner}.")
    return []


# ---- one parameter changed -----------------------------------------------------------------------------------------


def _changed(parameter: Parameter, o: Override) -> Parameter:
    if o.kind == "range":
        return _ranged(parameter, o)
    values = tuple(dict.fromkeys(o.values))
    if isinstance(parameter, ShareParameter):
        return _shared(parameter, values, o.where)
    if parameter.name == KV_SPLIT:
        return _split(parameter, values, o.where)
    if isinstance(parameter, NumberParameter):
        return _numbers(parameter, values, o.where)
    if isinstance(parameter, ChoiceParameter):
        return replace(parameter, choices=values)
    raise ValueError(f"{o.where}: this parameter cannot be changed")


def _numbers(parameter: NumberParameter, values: tuple[Value, ...], where: str) -> NumberParameter:
    numbers = sorted(v for v in values if isinstance(v, int | float) and not isinstance(v, bool))
    if len(numbers) != len(values):
        raise ValueError(f"{where}: {list(values)} are not all numbers")
    is_log = parameter.is_log and numbers[0] > 0
    if isinstance(parameter, IntParameter):
        return replace(parameter, grid=tuple(int(v) for v in numbers), is_log=is_log)
    return replace(parameter, grid=tuple(float(v) for v in numbers), is_log=is_log)


def _shared(parameter: ShareParameter, values: tuple[Value, ...], where: str) -> Parameter:
    """Shares stay shares; whole numbers above 1 make it a plain number of tokens."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) != len(values):
        raise ValueError(f"{where}: {list(values)} are not all numbers")
    if all(0 <= v < 1 for v in numbers):
        return replace(parameter, choices=tuple(sorted(numbers)))
    if any(0 < v < 1 for v in numbers):
        raise ValueError(f"{where}: {list(values)} mixes shares (below 1) and tokens; give one kind")
    return IntParameter(
        **{f: getattr(parameter, f) for f in ("name", "why", "unit", "group", "change", "since", "default")},
        grid=tuple(sorted(int(v) for v in numbers)),
        is_log=False,
    )


def _split(parameter: Parameter, values: tuple[Value, ...], where: str) -> Parameter:
    if bad := [v for v in values if v not in parameter.values()]:
        raise ValueError(f"{where}: {bad[0]!r} is no split that fits; allowed: {list(parameter.values())}")
    if isinstance(parameter, NumberParameter):
        return _numbers(parameter, values, where)
    assert isinstance(parameter, ChoiceParameter)
    return replace(parameter, choices=values)


def _ranged(parameter: Parameter, o: Override) -> Parameter:
    low, high = (float(v) for v in o.values if isinstance(v, int | float))
    if isinstance(parameter, ShareParameter):
        raise ValueError(f"{o.where}: give its values (shares of {flag_of(parameter.of)}, or tokens) as a list")
    if not isinstance(parameter, NumberParameter):
        raise ValueError(f"{o.where}: has no range; list its values, of {list(parameter.values())}")
    if parameter.name == KV_SPLIT:
        return _split(parameter, tuple(v for v in parameter.grid if low <= v <= high), o.where)
    if isinstance(parameter, IntParameter):
        return replace(parameter, grid=_whole_grid(int(low), int(high), o), is_log=parameter.is_log and low > 0)
    return replace(parameter, grid=_real_grid(low, high, o), is_log=False)


def _whole_grid(low: int, high: int, o: Override) -> tuple[int, ...]:
    if o.step is not None:
        step = int(o.step)
        if step != o.step or step < 1:
            raise ValueError(f"{o.where}: step {o.step:g} is not allowed; this flag takes whole numbers")
        return tuple(sorted({*range(low, high + 1, step), high}))
    if low < 1:
        raise ValueError(f"{o.where}: a geometric range starts above 0, got {low}; give a step")
    multiple = MULTIPLES.get(flag_of(o.name), 1)
    return geometric_ints(low, high, ratio=o.ratio or math.sqrt(2), multiple_of=multiple)


def _real_grid(low: float, high: float, o: Override) -> tuple[float, ...]:
    if o.ratio is not None:
        n = int(math.log(high / low) / math.log(o.ratio) + 1e-9)
        return tuple(sorted({*(round(low * o.ratio**k, 6) for k in range(n + 1)), high}))
    step = o.step or DEFAULT_STEP
    n = int((high - low) / step + 1e-9)
    return tuple(sorted({*(round(low + k * step, 6) for k in range(n + 1)), high}))


# ---- the space changed ---------------------------------------------------------------------------------------------


def _replaced(space: SearchSpace, o: Override, changes: list[tuple[str, Parameter]]) -> SearchSpace:
    new = dict(changes)
    parameters = tuple(new.get(p.name, p) for p in space.parameters)
    held = {**space.held, **{name: _rest(p, space.held.get(name)) for name, p in changes}}
    notes = space.notes
    for parameter in new.values():
        if parameter.can_change_answers and any(v != parameter.default for v in parameter.values()):
            notes = (*notes, risk_note(parameter.name))
    try:
        return replace(
            space, parameters=parameters, held=held, active=space.active | set(new), notes=tuple(dict.fromkeys(notes))
        )
    except ValueError as error:
        raise ValueError(f"{o.where}: {error}") from error


def _rest(parameter: Parameter, before: Value) -> Value:
    values = parameter.values()
    if before in values:
        return before
    return parameter.default if parameter.default in values else values[len(values) // 2]


def _contract(space: SearchSpace, o: Override, owner: str | None) -> SearchSpace:
    value = o.values[0]
    if o.kind != "set" or not isinstance(value, int):
        raise ValueError(f"{o.where}: max_model_len is a contract, not a knob; fix it to one value")
    servers = tuple(_capped(s, value) if owner in (None, s.name) else s for s in space.servers)
    try:
        return replace(space, servers=servers)
    except ValueError as error:
        raise ValueError(f"{o.where}: {error}") from error


def _capped(server: Server, longest: int) -> Server:
    return replace(server, max_model_len=longest)


def _memory(space: SearchSpace, o: Override, flag: str) -> SearchSpace:
    """One memory knob, never both: naming the other one replaces it. Several servers share through kv_split."""
    if len(space.servers) > 1:
        raise ValueError(f"{o.where}: several servers on one card share its memory through {KV_SPLIT}; change that")
    warnings = (w for v in o.values for w in warn_config({flag: v}))
    space = replace(space, notes=tuple(dict.fromkeys((*space.notes, *warnings))))
    if flag in space.by_name:
        return _replaced(space, o, [(flag, _changed(space.by_name[flag], o))])
    other = next(p for p in space.parameters if p.name in MEMORY_KNOBS)
    made = _made(o, flag, other)
    without = tuple(made if p.name == other.name else p for p in space.parameters)
    held = {**{k: v for k, v in space.held.items() if k != other.name}, flag: _rest(made, None)}
    active = (space.active - {other.name}) | {flag}
    return replace(space, parameters=without, held=held, active=active)


def _made(o: Override, flag: str, model: Parameter) -> NumberParameter:
    why = f"Replaces {model.name} at the user's wish. {model.why}"
    start: NumberParameter = (
        IntParameter(name=flag, why=why, unit="bytes", grid=(1,))
        if flag == "kv_cache_memory_bytes"
        else FloatParameter(name=flag, why=why, grid=(1.0,))
    )
    made = _changed(start, o)
    assert isinstance(made, NumberParameter)
    return made


def _extra(space: SearchSpace, o: Override, flag: str) -> SearchSpace:
    if flag not in FLAGS:
        hint = unknown_flag(flag) or f"; to pass a flag this program does not know, write --add {o.name}={o.values[0]}"
        raise ValueError(f"{o.where}: unknown flag {flag!r}{hint}")
    try:
        return replace(space, extras={**space.extras, o.name: o.values[0]})
    except ValueError as error:
        raise ValueError(f"{o.where}: {error}") from error


def _added(space: SearchSpace, o: Override) -> SearchSpace:
    """A flag that was not in the space: values as given, a boot each, its effect on answers unknown."""
    values = tuple(dict.fromkeys(o.values))
    if o.kind == "range":
        values = _range_values(o)
    flag = flag_of(o.name)
    is_switch = all(isinstance(v, bool) for v in values)
    shape = FlagParameter if is_switch else ChoiceParameter
    added = shape(name=o.name, why="Added by the user.", choices=values, can_change_answers=flag not in FLAGS)
    notes = space.notes if flag in FLAGS else (*space.notes, f"{o.name}: not known here, passed to vLLM as it is")
    try:
        return replace(
            space,
            parameters=(*space.parameters, added),
            held={**space.held, o.name: values[0]},
            active=space.active | {o.name},
            notes=notes,
        )
    except ValueError as error:
        raise ValueError(f"{o.where}: {error}") from error


def _range_values(o: Override) -> tuple[Value, ...]:
    low, high = (v for v in o.values if isinstance(v, int | float))
    if FLAGS[flag_of(o.name)].kind == "int":
        return _whole_grid(int(low), int(high), o)
    return _real_grid(float(low), float(high), o)
