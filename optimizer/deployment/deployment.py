"""Deployment: how one server is started; and CurrentConfig, one that was read from what a user runs today.

Readers of every format turn a file into `Given`s (flag and raw value, in order); `assemble` turns those into one
meaning, so that no format has spellings of its own.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from optimizer.deployment.flag_values import read_value, whole_of_suffixed
from optimizer.deployment.secrets import has_secret, is_secret_name, mask
from optimizer.deployment.vllm_flags import FLAGS, REMOVED, SHORT, TUNABLES, VLLM_VERSION, Flag, find_flag
from optimizer.errors import UserError
from search_spaces.config import Config
from search_spaces.constraint import check_config
from search_spaces.parameter import Value


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """One server's start. Holds no secret: what looked like one was left out and is named in `withheld`."""

    model: str | None
    config: Config
    """The arguments that may be tuned, by vLLM's argument name (underscores)."""
    other: Mapping[str, object] = field(default_factory=dict)
    """Flag (hyphens; unknown ones as written) -> value, kept and written back unchanged."""
    order: tuple[str, ...] = ()
    """Flags in the order they were read (hyphens), tunable ones included."""
    environment: Mapping[str, str] = field(default_factory=dict)
    shell_filled: Mapping[str, str] = field(default_factory=dict)
    """Flag -> text that a shell fills in (`${PORT:-8000}`); its value is unknown here."""
    withheld: tuple[str, ...] = ()
    """Flags and variables that held a secret: never written, the user adds them again."""

    def __hash__(self) -> int:
        return hash((self.model, self.config, self.order))

    def flags(self) -> dict[str, object]:
        """Every flag to write, hyphens -> value: in the order read, then what was added."""
        values: dict[str, object] = {**self.other, **{k.replace("_", "-"): v for k, v in self.config.items()}}
        names = dict.fromkeys((*(n for n in self.order if n in values), *values))
        return {name: structured(name, values[name]) for name in names}


def structured(name: str, value: object) -> object:
    """A JSON argument's text as what it says; every other value as it is."""
    flag = FLAGS.get(name)
    if flag is None or flag.kind != "json" or not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


@dataclass(frozen=True, kw_only=True)
class CurrentConfig(Deployment):
    """A deployment that was read, with what the user should know about the reading."""

    source: str
    notices: tuple[str, ...] = ()
    """`line 3: …`, or without a line; `source` is left out."""

    __hash__ = Deployment.__hash__


@dataclass(frozen=True, slots=True)
class Given:
    """One flag as it was given."""

    name: str
    """As written, without leading hyphens."""
    value: object
    """Words of a command, True for a bare flag, or a YAML value."""
    where: str
    """`serve.yaml line 3`"""
    is_filled_in: bool = False
    """A shell fills in a part of the value."""
    is_short: bool = False
    """One leading hyphen, as in `-tp`."""


@dataclass
class _Reading:
    """What has been understood so far."""

    notices: list[str]
    values: dict[str, object] = field(default_factory=dict)
    """Canonical flag, or an unknown one as written -> value. A flag that was given again keeps its first place."""
    filled: dict[str, str] = field(default_factory=dict)
    withheld: list[str] = field(default_factory=list)
    dotted: dict[str, Given] = field(default_factory=dict)
    """Root as written -> the JSON value that its dotted parts add up to."""

    def note(self, text: str) -> None:
        if text not in self.notices:
            self.notices.append(text)

    def withhold(self, name: str) -> None:
        self.withheld.append(name)
        self.values.pop(name, None)
        self.note(f"{name}: looks like a secret; it is left out here and of every export, so pass it yourself")


def assemble(
    givens: Iterable[Given],
    *,
    source: str,
    model: str | None = None,
    environment: Mapping[str, str] | None = None,
    notices: Iterable[str] = (),
) -> CurrentConfig:
    """One meaning out of flags in order: the last one wins. `model` (a positional word) wins over a `model` flag.

    Raises UserError for values that no vLLM 0.32 server starts with."""
    reading = _Reading(list(notices))
    if model is not None:
        givens = [*givens, Given("model", model, source)]
    kept_environment = _without_secrets(reading, environment or {})
    for given in givens:
        _take(reading, given)
    for given in reading.dotted.values():
        _take(reading, given)
    flag_model = reading.values.pop("model", None)
    config = Config({k: s for n, v in reading.values.items() if (k := _tunable(n)) and (s := _scalar(v)) is not None})
    _refuse_bad(config, source)
    if "kv_cache_memory_bytes" in config and "gpu_memory_utilization" in config:
        reading.note("gpu-memory-utilization: vLLM ignores it where kv-cache-memory-bytes is given")
    return CurrentConfig(
        model=None if flag_model is None else str(flag_model),
        config=config,
        other={n: v for n, v in reading.values.items() if _tunable(n) not in config},
        order=tuple(reading.values),
        environment=kept_environment,
        shell_filled=reading.filled,
        withheld=tuple(dict.fromkeys(reading.withheld)),
        source=source,
        notices=tuple(note.removeprefix(f"{source} ") for note in reading.notices),
    )


def _refuse_bad(config: Config, source: str) -> None:
    """Raises UserError for what no vLLM 0.32 server starts with, rules between arguments included."""
    if problems := check_config(config):
        raise UserError(f"{source}: vLLM refuses to start: {problems[0]}")


def _scalar(value: object) -> Value:
    """As a Config holds it: a JSON value as its text. None for what is no single value."""
    if isinstance(value, dict):
        return json.dumps(value)
    return value if isinstance(value, int | float | str) else None


def _tunable(name: str) -> str:
    """The argument behind a flag that may be tuned; "" for every other flag."""
    key = name.replace("-", "_")
    return key if key in TUNABLES and name in FLAGS else ""


def _without_secrets(reading: _Reading, environment: Mapping[str, str]) -> dict[str, str]:
    kept = {}
    for name, value in environment.items():
        if is_secret_name(name) or has_secret(value):
            reading.withhold(name)
        else:
            kept[name] = value
    return kept


def _take(reading: _Reading, given: Given) -> None:
    try:
        _take_flag(reading, given)
    except UserError as error:
        raise UserError(f"{given.where}: {error}") from None


def _take_flag(reading: _Reading, given: Given) -> None:
    name = _hyphenated(given.name)
    if "." in name:
        _add_dotted(reading, name, given)
    elif name in REMOVED:
        reading.note(f"{given.where}: {name} does not exist in vLLM {VLLM_VERSION} and is dropped: {REMOVED[name]}")
    elif found := _find(given, name):
        _take_known(reading, *found, given)
    else:
        near = difflib.get_close_matches(name, FLAGS, n=1, cutoff=0.8)
        meant = f" (did you mean {near[0]}?)" if near else ""
        reading.note(f"{given.where}: {given.name} is unknown to vLLM {VLLM_VERSION}{meant}; it is kept as it is")
        _put(reading, given.name, given.value, given)


def _find(given: Given, name: str) -> tuple[Flag, bool] | None:
    if given.is_short or name in SHORT:
        return (FLAGS[SHORT[name]], False) if name in SHORT else None
    return find_flag(name)


def _take_known(reading: _Reading, flag: Flag, is_no: bool, given: Given) -> None:
    if given.is_filled_in:
        reading.filled[flag.name] = str(given.value)
        reading.note(f"{given.where}: {flag.name} is filled in by a shell ({mask(str(given.value))}): not known here")
        reading.values.pop(flag.name, None)
        return
    value = read_value(flag, given.value)
    if is_no and isinstance(value, bool):
        value = not value
    if flag.name == "max-model-len" and value == -1:
        reading.note(f"{given.where}: max-model-len is left to vLLM ({given.value}); the workload decides it here")
        value = None
    if flag.kind == "switch" and value is False:
        value = None
    _put(reading, flag.name, value, given)


def _put(reading: _Reading, name: str, value: object, given: Given) -> None:
    if is_secret_name(name) or has_secret(value):
        reading.withhold(name)
        return
    if name in reading.values and reading.values[name] != value:
        old, new = mask(str(reading.values[name])), mask(str(value))
        reading.note(f"{given.where}: {name} is given more than once; the last one counts ({new}, not {old})")
    reading.filled.pop(name, None)
    if value is None:
        reading.values.pop(name, None)
    else:
        reading.values[name] = value


def _add_dotted(reading: _Reading, name: str, given: Given) -> None:
    """`-cc.mode 3`: parts of one JSON argument, which vLLM adds after all other arguments."""
    root, *path = name.split(".")
    written = given.name.split(".")
    value = _dotted_value(given.value)
    if path[-1].endswith("+"):
        value = str(given.value).split(",")
    for part in reversed(written[1:]):
        value = {part.removesuffix("+"): value}
    known = reading.dotted.get(root)
    whole = _merge(known.value, value) if known else value
    reading.dotted[root] = Given(written[0], whole, given.where, given.is_filled_in, given.is_short)


def _dotted_value(raw: object) -> object:
    if not isinstance(raw, str):
        return raw
    try:
        return json.loads(raw)
    except ValueError:
        return whole_of_suffixed(raw) or raw


def _merge(old: object, new: object) -> object:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{k: _merge(old[k], v) if k in old else v for k, v in new.items()}}
    return [*old, *new] if isinstance(old, list) and isinstance(new, list) else new


def _hyphenated(name: str) -> str:
    """vLLM takes `_` for `-` up to the first dot (utils/argparse_utils.py)."""
    flag, dot, rest = name.partition(".")
    return flag.replace("_", "-") + dot + rest
