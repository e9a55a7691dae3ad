"""Narrow, widen, fix or add parameters, from the command line or a YAML mapping.

    --set max_num_seqs=128                 fix
    --range max_num_seqs=16:256            another range (default steps), `:16` fixed steps, `:*2` a ratio
    --choices watermark=0,0.05             exactly these values
    --add block_size=16,32                 a vLLM flag that is not in the space

and in YAML, under `space:`,

    max_num_seqs: {min: 16, max: 256}      # also step: or ratio:
    watermark: [0, 0.05]
    enable_prefix_caching: false
    chat: {max_num_seqs: 64}               # one server of several; also chat.max_num_seqs

Every bad value raises ValueError in one line: field path, value, allowed range. Applied by `adjust.apply_overrides`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from search_spaces.flags import FLAGS, parse_value
from search_spaces.parameter import Value
from search_spaces.space import flag_of

Kind = Literal["set", "range", "choices", "add"]
MAX_VALUES = 200
_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)?")


@dataclass(frozen=True)
class Override:
    """One change of the space. `where` is the field path for messages."""

    kind: Kind
    name: str
    """Flag with underscores, `server.flag` for one of several."""
    values: tuple[Value, ...]
    """set: one; range: low, high; choices and add: all of them."""
    where: str
    step: float | None = None
    ratio: float | None = None


def parse_overrides(
    sets: Iterable[str] = (), ranges: Iterable[str] = (), choices: Iterable[str] = (), adds: Iterable[str] = ()
) -> tuple[Override, ...]:
    """The texts after --set, --range, --choices and --add."""
    found = [_parse_set(text) for text in sets]
    found += [_parse_range(text) for text in ranges]
    found += [_parse_list("choices", text) for text in choices]
    found += [_parse_list("add", text) for text in adds]
    return tuple(found)


def read_overrides(
    section: Mapping[str, Any], servers: Sequence[str] = (), where: str = "space"
) -> tuple[Override, ...]:
    """The YAML mapping. `servers` are the names under which a nested mapping belongs to one server."""
    if not isinstance(section, Mapping):
        raise ValueError(f"{where}: expected a mapping of flag to value, got {section!r}")
    found: list[Override] = []
    for key, spec in section.items():
        path = f"{where}.{key}"
        if key in servers:
            if not isinstance(spec, Mapping):
                raise ValueError(f"{path}: {key} is a server; expected a mapping of flag to value, got {spec!r}")
            nested = read_overrides(spec, (), path)
            found += [Override(o.kind, f"{key}.{o.name}", o.values, o.where, o.step, o.ratio) for o in nested]
        else:
            found.append(_read_one(_name(str(key), path), spec, path))
    return tuple(found)


def _read_one(name: str, spec: Any, path: str) -> Override:
    if isinstance(spec, Mapping):
        return _read_mapping(name, spec, path)
    if isinstance(spec, list | tuple):
        if not spec:
            raise ValueError(f"{path}: the list is empty; give at least one value")
        return Override("choices", name, tuple(_value(name, v, f"{path}[{i}]") for i, v in enumerate(spec)), path)
    if spec is None:
        raise ValueError(f"{path}: no value; give a value, a list, or {{min: .., max: ..}}")
    return Override("set", name, (_value(name, spec, path),), path)


def _read_mapping(name: str, spec: Mapping[str, Any], path: str) -> Override:
    allowed = ("min", "max", "step", "ratio", "log", "values", "value")
    if unknown := [k for k in spec if k not in allowed]:
        raise ValueError(f"{path}.{unknown[0]}: not understood; allowed are {', '.join(allowed)}")
    if "values" in spec or "value" in spec:
        if len(spec) > 1:
            raise ValueError(f"{path}: give either values, or value, or min and max")
        return _read_one(name, spec.get("values", spec.get("value")), path)
    if missing := [k for k in ("min", "max") if spec.get(k) is None]:
        raise ValueError(f"{path}.{missing[0]}: missing; a range needs min and max")
    low, high = (_bound(name, spec[k], f"{path}.{k}") for k in ("min", "max"))
    ratio = spec.get("ratio") if spec.get("ratio") is not None else (math.sqrt(2) if spec.get("log") is True else None)
    return _range(name, low, high, spec.get("step"), ratio, path, ".step", ".ratio")


def _parse_set(text: str) -> Override:
    name, raw = _halves(text, "--set")
    return Override("set", name, (_value(name, raw, f"--set {name}"),), f"--set {name}")


def _parse_range(text: str) -> Override:
    name, raw = _halves(text, "--range")
    path = f"--range {name}"
    parts = raw.split(":")
    if len(parts) not in (2, 3) or not all(p.strip() for p in parts):
        raise ValueError(f"{path}: {raw!r} is no range; write LOW:HIGH, LOW:HIGH:STEP or LOW:HIGH:*RATIO")
    low, high = (_bound(name, p, path) for p in parts[:2])
    pace = parts[2].strip() if len(parts) == 3 else None
    if pace is not None and pace.startswith("*"):
        return _range(name, low, high, None, pace[1:], path, "", "")
    return _range(name, low, high, pace, None, path, "", "")


def _parse_list(kind: Literal["choices", "add"], text: str) -> Override:
    name, raw = _halves(text, f"--{kind}")
    path = f"--{kind} {name}"
    items = [raw] if raw.strip().startswith("{") else raw.split(",")
    if any(not item.strip() for item in items):
        raise ValueError(f"{path}: {raw!r} holds an empty value; write {name}=VALUE,VALUE")
    return Override(kind, name, tuple(_value(name, item.strip(), path) for item in items), path)


def _range(
    name: str, low: float, high: float, step: Any, ratio: Any, path: str, step_path: str, ratio_path: str
) -> Override:
    if low > high:
        raise ValueError(f"{path}: min {low:g} is above max {high:g}; swap them")
    if step is not None and ratio is not None:
        raise ValueError(f"{path}: give step or ratio, not both")
    pace_step = _pace(step, f"{path}{step_path}", "step", 0.0)
    pace_ratio = _pace(ratio, f"{path}{ratio_path}", "ratio", 1.0)
    if pace_ratio is not None and low <= 0:
        raise ValueError(f"{path}: a ratio (log scale) needs min above 0, got {low:g}; give a step instead")
    override = Override("range", name, (low, high), path, pace_step, pace_ratio)
    n = _count(low, high, pace_step, pace_ratio)
    if n > MAX_VALUES:
        raise ValueError(
            f"{path}: {n} values from {low:g} to {high:g}; at most {MAX_VALUES}: take a larger step or ratio"
        )
    return override


def _count(low: float, high: float, step: float | None, ratio: float | None) -> int:
    if step is not None:
        return int((high - low) / step) + 1
    if ratio is not None:
        return int(math.log(high / low) / math.log(ratio)) + 1
    return 1


def _pace(raw: Any, path: str, what: str, above: float) -> float | None:
    if raw is None:
        return None
    number = _number(raw)
    if number is None or not math.isfinite(number) or number <= above:
        raise ValueError(f"{path}: {what} {raw!r} is not allowed; it must be a number above {above:g}")
    return number


def _bound(name: str, raw: Any, path: str) -> float:
    """One end of a range: the flag's own check, and a number."""
    value = _value(name, raw, path)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{path}: {raw!r} is no number, so {name} has no range; list its values instead")
    return value


def _value(name: str, raw: Any, path: str) -> Value:
    flag = flag_of(name)
    if flag == "long_prefill_token_threshold" and (share := _share(raw)) is not None:
        return share
    if flag not in FLAGS and isinstance(raw, Mapping | list | tuple):
        raise ValueError(f"{path}: {raw!r} is not one value")
    return parse_value(flag, raw, path)


def _share(raw: Any) -> float | None:
    """`1/4` or 0.25: a share of max_num_batched_tokens; whole numbers above 1 are tokens."""
    try:
        number = Fraction(raw) if isinstance(raw, str | float) else None
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
    return float(number) if number is not None and 0 < number <= 1 and number != 1 else None


def _number(raw: Any) -> float | None:
    if isinstance(raw, bool):
        return None
    try:
        return float(raw)
    except (TypeError, ValueError):
        return None


def _halves(text: str, option: str) -> tuple[str, str]:
    name, equals, raw = text.partition("=")
    if not equals or not raw.strip():
        raise ValueError(f"{option} {text!r}: write {option} FLAG=VALUE")
    return _name(name, option), raw.strip()


def _name(text: str, where: str) -> str:
    """`--max-num-seqs`, `max-num-seqs` and `max_num_seqs` are the same flag; a server's name is kept as it is."""
    plain = text.strip().removeprefix("--")
    if not _NAME.fullmatch(plain):
        raise ValueError(f"{where}: {text!r} is no flag's name; write it as max_num_seqs or server.max_num_seqs")
    owner, dot, flag = plain.rpartition(".")
    return f"{owner}{dot}{flag.replace('-', '_')}"
