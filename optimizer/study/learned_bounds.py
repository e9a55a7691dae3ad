"""Learned bounds: what failed starts said would fit, so that no start is spent on what they rule out.

A bound holds for configurations that agree in everything it depends on, and for no others:

| failure | ruled out afterwards |
|---|---|
| `weights` | every placement with the same checkpoints, quantisation, parallel sizes, in the same number |
| `max_num_seqs_at_most` of the sampler's warm-up | more sequences with the same checkpoint, whatever its memory |
| `..._at_most`, `..._at_least` of the KV cache | values beyond it at the same memory and max_model_len |
| `kv_deficit_bytes` | fewer KV bytes than were given and missing, at the same max_model_len |
| ... of refused arguments | values beyond it with all other arguments equal |

Bounds are for one device: a study never leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from optimizer.engines.engine import Placement
from optimizer.study.outcomes import own_entries
from search_spaces.parameter import Value

AT_MOST, AT_LEAST = "_at_most", "_at_least"
DEFICIT = "kv_deficit_bytes"
KV_BYTES, MODEL_LEN = "kv_cache_memory_bytes", "max_model_len"
CHECKPOINT = frozenset(
    {
        "model",
        "quantization",
        "dtype",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "load_format",
        "cpu_offload_gb",
    }
)
"""What the size of the weights on a card depends on."""
KV_ROOM = CHECKPOINT | {
    "gpu_memory_utilization", KV_BYTES, "num_gpu_blocks_override", "kv_cache_dtype", "block_size", MODEL_LEN,
    "speculative_config", "enforce_eager",
}  # fmt: skip
"""What decides how much KV cache there is, and how much one request needs. The token budget moves it a little, too."""
Arguments = Mapping[str, Value]


@dataclass(frozen=True)
class _Bound:
    """One flag's values beyond `value` are ruled out where the arguments agree with `where`."""

    flag: str
    value: float
    is_most: bool
    where: tuple[tuple[str, Value], ...]
    depends_on: frozenset[str] | None
    """None: on every other argument."""

    def rules_out(self, arguments: Arguments) -> bool:
        asked = arguments.get(self.flag)
        if isinstance(asked, bool) or not isinstance(asked, int | float):
            return False
        is_beyond = asked > self.value if self.is_most else asked < self.value
        return is_beyond and _context(arguments, self.flag, self.depends_on) == self.where

    @property
    def text(self) -> str:
        return f"{self.flag} {'above' if self.is_most else 'below'} {self.value:.10g}"


class LearnedBounds:
    """Grows with every failure that said something. Knows nothing at first and then rules nothing out.

    `cannot_start`: why servers cannot start by the memory that real starts took; None: no start told."""

    def __init__(self, cannot_start: Callable[[Placement], str | None] | None = None) -> None:
        self._cannot_start = cannot_start
        self._bounds: dict[_Bound, None] = {}
        self._overweight: dict[tuple[object, ...], None] = {}

    def __bool__(self) -> bool:
        return bool(self._bounds or self._overweight or self._cannot_start)

    def learn(self, placement: Placement, kind: str, phase: str | None, bounds: Mapping[str, float]) -> tuple[str, ...]:
        """A failure that was the configuration's fault. What is ruled out from now on that was not before, in words.

        Of several servers the failed one must be named (`chat.max_num_seqs_at_most`), else nobody knows whose bound it
        is; weights are the whole placement's."""
        found: list[str] = []
        key = _weight_key(placement)
        if kind == "weights" and key not in self._overweight:
            self._overweight[key] = None
            found.append("every other configuration with this checkpoint and these parallel sizes")
        for instance, own in _by_instance(placement, bounds):
            for bound in _bounds_of(dict(instance), kind, phase, own):
                if bound not in self._bounds:
                    self._bounds[bound] = None
                    found.append(bound.text)
        return tuple(found)

    def rules_out(self, placement: Placement) -> str | None:
        """Why these servers cannot start; None if nothing is known against them."""
        if not self:
            return None
        if _weight_key(placement) in self._overweight:
            return "its weights do not fit"
        for instance in placement.instances:
            for bound in self._bounds:
                if bound.rules_out(instance.config):
                    return bound.text
        return None if self._cannot_start is None else self._cannot_start(placement)


def _weight_key(placement: Placement) -> tuple[object, ...]:
    return tuple(_context(i.config, "", CHECKPOINT) for i in placement.instances)


def _context(arguments: Arguments, flag: str, depends_on: frozenset[str] | None) -> tuple[tuple[str, Value], ...]:
    """The arguments that a bound on `flag` depends on, without that flag itself."""
    names = arguments.keys() if depends_on is None else depends_on & arguments.keys()
    return tuple((name, arguments[name]) for name in sorted(names) if name != flag)


def _by_instance(placement: Placement, bounds: Mapping[str, float]) -> Iterator[tuple[Arguments, dict[str, float]]]:
    """Each server's arguments with the bounds that are its own; only where it is known whose they are."""
    for instance in placement.instances:
        own = own_entries(bounds, instance.name)
        if len(placement.instances) == 1:
            own |= {k: v for k, v in bounds.items() if "." not in k}
        yield instance.config, own


def _bounds_of(arguments: Arguments, kind: str, phase: str | None, said: Mapping[str, float]) -> Iterator[_Bound]:
    depends_on = _depends_on(kind, phase)
    for name, value in said.items():
        for ending in (AT_MOST, AT_LEAST):
            flag = name.removesuffix(ending)
            if flag != name and flag in arguments:
                where = _context(arguments, flag, depends_on)
                yield _Bound(flag, value, ending == AT_MOST, where, depends_on)
    given = arguments.get(KV_BYTES)
    is_short = DEFICIT in said or f"{MODEL_LEN}{AT_MOST}" in said
    if kind == "kv_capacity" and is_short and isinstance(given, int):
        needed = given + max(said.get(DEFICIT, 0.0), 1.0)
        yield _Bound(KV_BYTES, needed, False, _context(arguments, KV_BYTES, KV_ROOM), KV_ROOM)


def _depends_on(kind: str, phase: str | None) -> frozenset[str] | None:
    """A peak of the sampler's warm-up is the sequences' alone; the KV cache is the memory's; the rest may be any's."""
    if kind == "runtime_peak" and phase == "warmup":
        return CHECKPOINT
    return KV_ROOM if kind == "kv_capacity" else None
