"""SearchSpace: which parameters are searched, which are held, and how a point becomes the servers' configurations.

A point maps every parameter's name to a latent value: a value of its grid, or a share. `configs` resolves it to the
exact arguments; nothing it returns is refused by `constraint.check_config`. Every distribution stands from the start:
a group that is off is held at fixed values, never left out (a sampler that models parameters together needs that).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from search_spaces.capacity import KV_STEP_BYTES, card_kv_bytes
from search_spaces.config import Config
from search_spaces.constraint import check_config
from search_spaces.hardware import GpuFacts
from search_spaces.memory_use import demand_of
from search_spaces.model import ModelFacts
from search_spaces.parameter import NumberParameter, Parameter, ShareParameter, Value
from search_spaces.repair import repair

Point = Mapping[str, Value]
KV_SPLIT = "kv_split"
"""The shared parameter of several servers on one card: each one's share of the solved KV bytes."""
MAX_ENUMERATED = 20_000


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server and what it must serve."""

    name: str
    max_model_len: int
    """The contract: the longest prompt + output it admits. Not searched."""
    mean_request_tokens: float
    """Mean prompt + output of its workload; sets how many sequences are worth trying."""


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """Ordered parameters over one or more servers on one card. Frozen; every change returns a new space.

    Raises ValueError when pinned values contradict each other or a held value is not admissible."""

    parameters: tuple[Parameter, ...]
    """Names are flags for one server, `chat.max_num_seqs` for several; a name without a server is shared by all."""
    servers: tuple[Server, ...]
    model: ModelFacts
    gpu: GpuFacts
    active: frozenset[str]
    """Names that are searched; the others are held."""
    held: Mapping[str, Value]
    """Latent value of every parameter while it is not searched."""
    margin_bytes: int
    base_kv_bytes: int = 0
    """The ceiling that the KV grid was built for; another model variant or parallel size scales it."""
    base_tensor_parallel_size: int = 1
    extras: Mapping[str, Value] = field(default_factory=dict)
    """Arguments every server gets besides (`chat.block_size`: one server)."""
    variants: Mapping[str, ModelFacts] = field(default_factory=dict)
    """Value of the `model` parameter -> its facts."""
    notes: tuple[str, ...] = ()
    """What the user should be told about this space."""

    def __post_init__(self) -> None:
        names = [p.name for p in self.parameters]
        if len(set(names)) != len(names):
            raise ValueError(f"parameters repeat: {sorted({n for n in names if names.count(n) > 1})}")
        if unknown := self.active - set(names):
            raise ValueError(f"no parameter is called {', '.join(sorted(unknown))}; there are {', '.join(names)}")
        for parameter in self.parameters:
            if self.held.get(parameter.name) not in parameter.values():
                held, admits = self.held.get(parameter.name), list(parameter.values())
                raise ValueError(f"{parameter.name}: held at {held!r}, which is not one of {admits}")
        self._check_pins()

    # ---- which parameters --------------------------------------------------------------------------------------

    @cached_property
    def by_name(self) -> dict[str, Parameter]:
        return {p.name: p for p in self.parameters}

    @property
    def searched(self) -> tuple[Parameter, ...]:
        """Active parameters with more than one value, in order."""
        return tuple(p for p in self.parameters if p.name in self.active and len(p.values()) > 1)

    @property
    def fixed(self) -> dict[str, Value]:
        """Latent values of everything that is not searched: for the sampler to hold."""
        searched = {p.name for p in self.searched}
        return {p.name: self._resting(p) for p in self.parameters if p.name not in searched}

    @property
    def answers_at_risk(self) -> tuple[str, ...]:
        """Searched or pinned parameters whose values can change the model's answers."""
        return tuple(p.name for p in self.parameters if p.can_change_answers and self._can_differ(p))

    @property
    def live(self) -> frozenset[str]:
        """Argument names a running engine can be moved to (without server prefix)."""
        return frozenset(flag_of(p.name) for p in self.parameters if p.change == "live")

    def activate(self, names: Iterable[str]) -> SearchSpace:
        """Also search these. Raises ValueError for unknown names."""
        return replace(self, active=self.active | frozenset(names))

    def hold(self, values: Mapping[str, Value]) -> SearchSpace:
        """Stop searching these and hold them at the given values (which must be admissible)."""
        return replace(self, active=self.active - set(values), held={**self.held, **values})

    def group(self, name: str) -> tuple[str, ...]:
        """Parameter names of `main` or `advanced`."""
        return tuple(p.name for p in self.parameters if p.group == name)

    # ---- points ------------------------------------------------------------------------------------------------

    def complete(self, point: Point) -> dict[str, Value]:
        """The point over every parameter, missing ones at rest. Raises ValueError for what is not on a grid."""
        if unknown := set(point) - set(self.by_name):
            raise ValueError(f"no parameter is called {', '.join(sorted(unknown))}")
        full = {p.name: point.get(p.name, self._resting(p)) for p in self.parameters}
        for name, value in full.items():
            if value not in self.by_name[name].values():
                raise ValueError(f"{name}: {value!r} is not one of {list(self.by_name[name].values())}")
        return full

    def sample(self, rng: np.random.Generator) -> dict[str, Value]:
        """A point drawn uniformly over the grids of the searched parameters."""
        drawn = {p.name: p.values()[int(rng.integers(len(p.values())))] for p in self.searched}
        return self.complete(drawn)

    def neighbours(self, point: Point) -> Iterator[dict[str, Value]]:
        """Points one step away: the next grid value up or down, or any other choice."""
        full = self.complete(point)
        for parameter in self.searched:
            values = parameter.values()
            here = values.index(full[parameter.name])
            is_ordered = isinstance(parameter, NumberParameter | ShareParameter)
            steps = (here - 1, here + 1) if is_ordered else range(len(values))
            yield from ({**full, parameter.name: values[i]} for i in steps if 0 <= i < len(values) and i != here)

    def size(self) -> int:
        """Number of distinct resolved configurations; above MAX_ENUMERATED points the product of the grids, an upper
        bound (repairs make some points equal)."""
        sizes = [len(p.values()) for p in self.searched]
        n_points = int(np.prod(sizes, dtype=object)) if sizes else 1
        if n_points > MAX_ENUMERATED:
            return n_points
        names = [p.name for p in self.searched]
        points = (dict(zip(names, values, strict=True)) for values in product(*(p.values() for p in self.searched)))
        return len({tuple(c.fingerprint for c in self.configs(p).values()) for p in points})

    @property
    def fingerprint(self) -> str:
        """12 hex digits over distributions, contracts and extra arguments; stages (active, held) do not change it."""
        facts = [
            [[type(p).__name__, p.name, [repr(v) for v in p.values()]] for p in self.parameters],
            [[s.name, s.max_model_len] for s in self.servers],
            [self.model.name, self.gpu.name, self.margin_bytes, sorted((k, repr(v)) for k, v in self.extras.items())],
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]

    # ---- configurations ----------------------------------------------------------------------------------------

    def configs(self, point: Point) -> dict[str, Config]:
        """Server name -> the arguments it is started with: every value resolved, cross-rules held, bytes exact."""
        full = self.complete(point)
        values = {s.name: self._repaired(s, full) for s in self.servers}
        if KV_SPLIT in full:
            self._split_kv(values, shares_of(full[KV_SPLIT], len(self.servers)))
        else:
            for own in values.values():
                self._fit_kv(own)
        return {name: Config(self._written(own)) for name, own in values.items()}

    def own_parameters(self, server: str) -> dict[str, Parameter]:
        """Argument name -> parameter, for one server: its own and the shared ones."""
        found = {}
        for parameter in self.parameters:
            owner, flag = split_name(parameter.name)
            if owner in (None, server) and flag != KV_SPLIT:
                found[flag] = parameter
        return found

    def _repaired(self, server: Server, full: Point) -> dict[str, Value]:
        parameters = self.own_parameters(server.name)
        values: dict[str, Value] = {"max_model_len": server.max_model_len, **self._extras_of(server.name)}
        values |= {flag: full[p.name] for flag, p in parameters.items()}
        return repair(values, parameters, lambda flag: flag not in parameters or self._is_pinned(parameters[flag]))

    def _extras_of(self, server: str) -> dict[str, Value]:
        return {split_name(k)[1]: v for k, v in self.extras.items() if split_name(k)[0] in (None, server)}

    def _split_kv(self, values: Mapping[str, dict[str, Value]], shares: Sequence[float]) -> None:
        demands = [demand_of(self._model_of(own), self.gpu, own) for own in values.values()]
        total = card_kv_bytes(demands, self.gpu, self.margin_bytes).likely
        for own, share in zip(values.values(), shares, strict=True):
            own["kv_cache_memory_bytes"] = _whole_steps(total * share)

    def _fit_kv(self, values: dict[str, Value]) -> None:
        """Scale exact KV bytes to another variant or parallel size, and never ask for what cannot be there.

        Above the optimistic end for this max_num_batched_tokens and max_num_seqs nothing can boot."""
        asked = values.get("kv_cache_memory_bytes")
        if not isinstance(asked, int) or "kv_cache_memory_bytes" not in self.by_name:
            return
        if self._is_pinned(self.by_name["kv_cache_memory_bytes"]):
            return
        demand = demand_of(self._model_of(values), self.gpu, values)
        is_other = demand.model is not self.model or demand.tensor_parallel_size != self.base_tensor_parallel_size
        if is_other and self.base_kv_bytes:
            ceiling = card_kv_bytes([demand], self.gpu, self.margin_bytes).likely
            asked = _whole_steps(asked / self.base_kv_bytes * ceiling)
        most = card_kv_bytes([demand], self.gpu, 0).high
        values["kv_cache_memory_bytes"] = min(asked, _whole_steps(most))

    def _model_of(self, values: Mapping[str, Value]) -> ModelFacts:
        return self.variants.get(str(values.get("model")), self.model)

    def _written(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Main parameters are always written out; an advanced one at vLLM's own default is left out."""
        left_out = {
            flag
            for flag, value in values.items()
            if (p := self.by_name.get(flag)) is not None and p.group == "advanced" and value == p.default
        }
        return {flag: value for flag, value in values.items() if flag not in left_out}

    # ---- inside ------------------------------------------------------------------------------------------------

    def _is_pinned(self, parameter: Parameter) -> bool:
        return len(parameter.values()) == 1

    def _resting(self, parameter: Parameter) -> Value:
        return self.held[parameter.name]

    def _can_differ(self, parameter: Parameter) -> bool:
        values = parameter.values() if parameter.name in self.active else (self._resting(parameter),)
        return any(v != parameter.default for v in values)

    def _check_pins(self) -> None:
        for server in self.servers:
            pins = {f: p.values()[0] for f, p in self.own_parameters(server.name).items() if self._is_pinned(p)}
            shares = {f for f, p in self.own_parameters(server.name).items() if isinstance(p, ShareParameter)}
            values: dict[str, Any] = {"max_model_len": server.max_model_len, **self._extras_of(server.name), **pins}
            messages = check_config({k: v for k, v in values.items() if k not in shares}, self.model)
            if messages:
                raise ValueError(f"{'; '.join(messages)} ({server.name}: these values are fixed)")


def split_name(name: str) -> tuple[str | None, str]:
    """`chat.max_num_seqs` -> (`chat`, `max_num_seqs`); a shared name has no server."""
    owner, dot, flag = name.rpartition(".")
    return (owner if dot else None, flag)


def flag_of(name: str) -> str:
    return split_name(name)[1]


def shares_of(split: Value, n_servers: int) -> tuple[float, ...]:
    """A `kv_split` value as shares that sum to 1: a number is the first of two servers' share, text is `30:50:20`."""
    if isinstance(split, str):
        parts = [float(p) for p in split.split(":")]
        return tuple(p / sum(parts) for p in parts)
    if isinstance(split, int | float) and n_servers == 2:
        return (float(split), 1.0 - float(split))
    return (1.0,) * n_servers if n_servers == 1 else tuple(1.0 / n_servers for _ in range(n_servers))


def _whole_steps(size: float) -> int:
    """Whole 64 MiB steps, at least one: an argument vLLM reads, though a server with so little will not start."""
    return max(KV_STEP_BYTES, int(size // KV_STEP_BYTES * KV_STEP_BYTES))
