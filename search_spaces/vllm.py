"""The serving space of vLLM 0.32: one entry per flag, with the reason it is tuned and why over this range.

Main group: searched from the start. Advanced group: held at vLLM's defaults until asked for. `max_model_len` is a
contract, not a knob. To tune another flag, add one entry here (or `--add` it from the command line).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement, permutations
from typing import Literal

from search_spaces.capacity import (
    DEFAULT_UTILIZATION,
    KV_STEP_BYTES,
    MARGIN_SHARE,
    Capacity,
    card_kv_bytes,
    state_slots,
)
from search_spaces.config import Config
from search_spaces.constraint import resolve_defaults
from search_spaces.cpu import check_on_cpu
from search_spaces.fit import MOST_UTILIZATION, ceiling, fit_notes, fitting
from search_spaces.hardware import GpuFacts
from search_spaces.memory_use import demand_of
from search_spaces.model import ModelFacts
from search_spaces.parameter import (
    ChoiceParameter,
    FlagParameter,
    FloatParameter,
    IntParameter,
    Parameter,
    ShareParameter,
    Value,
    geometric_ints,
)
from search_spaces.space import KV_SPLIT, SearchSpace, Server, shares_of

MemoryKnob = Literal["kv_cache_memory_bytes", "gpu_memory_utilization"]
START_UTILIZATION = 0.05
"""Beside exact KV bytes vLLM sizes nothing by gpu_memory_utilization, but still refuses to start while less than that
share of the card is free (0.32 v1/worker/gpu_worker.py:535, utils.py:758; default 0.92): the second server on a card
never would. What the servers need together is solved before."""
MIN_SEQS, MAX_SEQS = 8, 8192

MAX_NUM_BATCHED_TOKENS = IntParameter(
    name="max_num_batched_tokens",
    why="Tokens one step may process: a large budget finishes prompts sooner and fills the GPU, a small one keeps "
    "running streams from waiting behind prefills. Below 256 steps are all overhead, above 32768 no card gains.",
    unit="tokens",
    change="live",
    grid=geometric_ints(256, 32768, multiple_of=64),
)
CPU_TOKENS = replace(
    MAX_NUM_BATCHED_TOKENS,
    why="Tokens one step may process: a large budget finishes prompts sooner, a small one keeps running streams from "
    "waiting behind prefills. A CPU is busy with 128 already, and a step of more than 8192 takes seconds.",
    grid=geometric_ints(128, 8192, multiple_of=64),
)
CPU_MAX_SEQS = 256
"""Most sequences tried on a CPU, whatever its memory holds: twice vLLM 0.32's default for servers there
(engine/arg_utils.py:2894); steps grow with every one of them."""
WATERMARK = FloatParameter(
    name="watermark",
    why="Share of KV blocks kept free when a request is admitted: head room for answers that grow, so that fewer are "
    "preempted; above 0.1 it only idles memory.",
    change="live",
    since="0.24",
    grid=(0.0, 0.01, 0.02, 0.05, 0.1),
    default=0.0,
)
LONG_PREFILL = ShareParameter(
    name="long_prefill_token_threshold",
    why="The most prompt tokens one request may take of a step: lets short prompts pass long ones. A share of the "
    "budget, because only that means the same at every budget; 0 is off.",
    unit="tokens",
    change="live",
    since="0.8.4",
    of="max_num_batched_tokens",
    choices=(0, 0.25, 0.5),
    default=0,
)
ENABLE_PREFIX_CACHING = FlagParameter(
    name="enable_prefix_caching",
    why="Reuses KV blocks of shared prefixes; costs a little hashing where nothing is shared.",
    group="advanced",
    choices=(True, False),
    default=True,
)
KV_CACHE_DTYPE = ChoiceParameter(
    name="kv_cache_dtype",
    why="fp8 halves the KV cache; it is known to break some models' answers, so it is never tried unasked.",
    group="advanced",
    can_change_answers=True,
    choices=("auto", "fp8"),
    default="auto",
)
SPECULATIVE_CONFIG = ChoiceParameter(
    name="speculative_config",
    why="Drafts tokens by n-gram look-up: shorter ITL where answers repeat their prompt. Depends on the real text.",
    group="advanced",
    can_change_answers=True,
    choices=(
        None,
        '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}',
        '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}',
    ),
    default=None,
)
API_SERVER_COUNT = ChoiceParameter(
    name="api_server_count",
    why="Front-end processes: one saturates a core at some thousand tokens a second.",
    group="advanced",
    since="0.9",
    choices=(1, 2, 4),
    default=1,
)


def max_num_seqs(high: int, most: int = MAX_SEQS) -> IntParameter:
    """8 (fewer leaves the GPU idle) up to 1.25 x the sequences the KV cache holds (more only wait or preempt)."""
    top = min(max(high, 1), most)
    grid = geometric_ints(min(MIN_SEQS, top), top)
    if len(grid) > 1 and grid[-1] < 1.2 * grid[-2]:  # the end is soft: no step that cannot be told from the last
        grid = grid[:-1]
    return IntParameter(
        name="max_num_seqs",
        why=f"Sequences that run at once: more fill the GPU, too many preempt each other. Up to {top}: 1.25 x what the "
        f"KV cache holds at the workload's mean length.",
        unit="sequences",
        change="live",
        grid=grid,
    )


def kv_cache_memory_bytes(ceiling_bytes: int, span: float) -> IntParameter:
    """Exact KV bytes, 64 MiB steps, from (1 - span) of the ceiling up to it: six values at most."""
    top = max(ceiling_bytes // KV_STEP_BYTES, 1)
    steps = sorted({max(1, round(top * (1 - span * i / 5))) for i in range(6)})
    return IntParameter(
        name="kv_cache_memory_bytes",
        why="Memory for the KV cache, exact and independent of vLLM's profiling. More holds more sequences; the end is "
        "the ceiling that weights, activations, graphs and a margin leave.",
        unit="bytes",
        since="0.11",
        grid=tuple(s * KV_STEP_BYTES for s in steps),
    )


def gpu_memory_utilization(most: float, span: float) -> FloatParameter:
    """Steps of 0.01 below the solved ceiling (at most 0.98), at most six values."""
    top = min(max(int(most * 100) / 100, 0.05), MOST_UTILIZATION)
    steps = sorted({max(0.05, round(top * (1 - span * i / 5), 2)) for i in range(6)})
    return FloatParameter(
        name="gpu_memory_utilization",
        why="Share of the card vLLM may fill; the end is where the solved costs outside it still fit.",
        grid=tuple(steps),
    )


def tensor_parallel_size(sizes: Sequence[int]) -> ChoiceParameter:
    """The sizes at which the model fits, of those that divide its attention heads and the machine has GPUs for."""
    return ChoiceParameter(
        name="tensor_parallel_size",
        why="GPUs that share every layer: more memory and shorter steps for more communication. Throughput is per GPU.",
        group="advanced",
        choices=tuple(sizes),
        default=1,
    )


def model_variant(base: str, variants: Mapping[str, ModelFacts]) -> ChoiceParameter:
    return ChoiceParameter(
        name="model",
        why="Another checkpoint of the same model, e.g. quantised: its gain is reported apart from tuning.",
        group="advanced",
        can_change_answers=True,
        choices=(base, *variants),
        default=base,
    )


def serving_space(
    model: ModelFacts,
    gpu: GpuFacts,
    servers: Sequence[Server],
    *,
    memory_knob: MemoryKnob = "kv_cache_memory_bytes",
    memory_span: float = 0.15,
    advanced: Sequence[str] = (),
    n_gpus: int = 1,
    variants: Mapping[str, ModelFacts] | None = None,
    margin_bytes: int | None = None,
    extras: Mapping[str, Value] | None = None,
) -> SearchSpace:
    """The space for one server, or for several that share one card.

    `advanced` names the parameters of the advanced group to search. Raises ValueError when the model cannot fit even
    optimistically, or several servers ask for `gpu_memory_utilization` (they need exact bytes)."""
    if len(servers) > 1 and memory_knob != "kv_cache_memory_bytes":
        raise ValueError("gpu_memory_utilization cannot split one card between servers; use kv_cache_memory_bytes")
    if not servers:
        raise ValueError("a space needs at least one server")
    if gpu.is_cpu:
        check_on_cpu(memory_knob, (), "space.memory_knob")
    if not 0 < memory_span < 1:
        raise ValueError(f"memory_span must lie between 0 and 1, got {memory_span}")
    margin = round(gpu.memory_bytes * MARGIN_SHARE) if margin_bytes is None else margin_bytes
    by_size = fitting(model, gpu, servers, margin, n_gpus, (_tokens(gpu).grid[0], MIN_SEQS))
    capacity = next(iter(by_size.values()))
    own = variants or {}
    parameters = (
        *_main_parameters(capacity, servers, memory_knob, memory_span),
        *(ENABLE_PREFIX_CACHING, KV_CACHE_DTYPE, SPECULATIVE_CONFIG, API_SERVER_COUNT),
        *((model_variant(model.name, own),) if own else ()),
        tensor_parallel_size(tuple(by_size)),
    )
    asked = frozenset(_named(advanced, {p.name for p in parameters}))
    return SearchSpace(
        parameters=parameters,
        servers=tuple(servers),
        model=model,
        gpu=gpu,
        active=frozenset(p.name for p in parameters if p.group == "main") | asked,
        held={p.name: _resting_value(p) for p in parameters},
        margin_bytes=margin,
        base_kv_bytes=ceiling(capacity),
        base_tensor_parallel_size=next(iter(by_size)),
        extras=dict(extras or {}),
        variants=own,
        notes=(*fit_notes(capacity), *(risk_note(p.name) for p in parameters if _is_risky(p, asked))),
    )


def _is_risky(parameter: Parameter, asked: frozenset[str]) -> bool:
    return parameter.can_change_answers and parameter.name in asked


def _main_parameters(
    capacity: Capacity, servers: Sequence[Server], memory_knob: MemoryKnob, span: float
) -> tuple[Parameter, ...]:
    if len(servers) == 1:
        return (
            *_budgets(capacity, servers[0], ceiling(capacity)),
            LONG_PREFILL,
            _memory(capacity, memory_knob, span),
        )
    splits = kv_split(capacity, servers)
    largest = _largest_shares(splits, len(servers))
    found: list[Parameter] = []
    for server, share in zip(servers, largest, strict=True):
        own = (*_budgets(capacity, server, ceiling(capacity) * share), replace(LONG_PREFILL, group="advanced"))
        found += [replace(p, name=f"{server.name}.{p.name}") for p in own]
    return (*found, splits)


def _budgets(capacity: Capacity, server: Server, pool_bytes: float) -> tuple[Parameter, ...]:
    worth_trying = round(1.25 * capacity.concurrency(server.mean_request_tokens, pool_bytes))
    slots = state_slots(capacity.model, pool_bytes, capacity.demand.tensor_parallel_size)
    most = CPU_MAX_SEQS if capacity.gpu.is_cpu else MAX_SEQS
    seqs = max_num_seqs(worth_trying if slots is None else min(worth_trying, slots), most)
    return _tokens(capacity.gpu), seqs, WATERMARK


def _tokens(gpu: GpuFacts) -> IntParameter:
    return CPU_TOKENS if gpu.is_cpu else MAX_NUM_BATCHED_TOKENS


def _memory(capacity: Capacity, knob: MemoryKnob, span: float) -> Parameter:
    if knob == "kv_cache_memory_bytes":
        return kv_cache_memory_bytes(ceiling(capacity), span)
    used = ceiling(capacity) + capacity.demand.inside.likely
    return gpu_memory_utilization(used / capacity.gpu.memory_bytes, span)


def kv_split(capacity: Capacity, servers: Sequence[Server]) -> Parameter:
    """Shares of the card's KV bytes, tenths for two servers, coarser for more; only splits where every server can hold
    one request of its max_model_len (optimistically)."""
    why = "How the card's KV memory is split: a server with too little preempts, one with too much idles it."
    total = max(capacity.optimistic_bytes, capacity.ceiling_bytes)
    tp = capacity.demand.tensor_parallel_size
    needs = [capacity.model.kv_bytes(s.max_model_len + 32, tp) / max(total, 1) for s in servers]
    if len(servers) == 2:
        grid = tuple(i / 20 for i in range(2, 19) if i / 20 >= needs[0] and 1 - i / 20 >= needs[1])
        if grid:
            return FloatParameter(name=KV_SPLIT, why=why, unit=f"share of {servers[0].name}", grid=grid)
    parts = [p for p in _compositions(10, len(servers)) if all(a / 10 >= n for a, n in zip(p, needs, strict=True))]
    if not parts:
        raise ValueError(
            f"no split of the KV memory lets every server hold one request: they need "
            f"{', '.join(f'{s.name} {n:.0%}' for s, n in zip(servers, needs, strict=True))} of it; lower max_model_len"
        )
    return ChoiceParameter(name=KV_SPLIT, why=why, choices=tuple(":".join(str(10 * a) for a in p) for p in parts))


def _compositions(total: int, n: int) -> list[tuple[int, ...]]:
    """All ways to write `total` as n whole parts of at least 1, in order."""
    sets = (c for c in combinations_with_replacement(range(1, total), n) if sum(c) == total)
    return sorted({p for c in sets for p in permutations(c)})


def _largest_shares(split: Parameter, n: int) -> list[float]:
    shares = [shares_of(v, n) for v in split.values()]
    return [max(s[i] for s in shares) for i in range(n)]


def _resting_value(parameter: Parameter) -> Value:
    """vLLM's default where it is a value of the grid, else the fewest GPUs, else the grid's middle."""
    values = parameter.values()
    if parameter.name == "tensor_parallel_size":
        return values[0]
    return parameter.default if parameter.default in values else values[len(values) // 2]


def _named(asked: Sequence[str], names: set[str]) -> list[str]:
    found = []
    for name in asked:
        matches = [n for n in names if n == name or n.endswith(f".{name}")]
        if not matches:
            raise ValueError(f"advanced: no parameter is called {name!r}; there are {', '.join(sorted(names))}")
        found += matches
    return found


def risk_note(name: str) -> str:
    """What is said wherever such a parameter is switched on."""
    return f"{name} can change the model's answers: compare them before deploying"


def default_configs(space: SearchSpace) -> dict[str, Config]:
    """vLLM's own defaults on this GPU, written out. Several servers, or a CPU: scheduler defaults, KV memory in bytes,
    split equally."""
    values = {s.name: _default_values(space, s) for s in space.servers}
    if len(values) == 1 and not space.gpu.is_cpu:
        return {name: Config({**own, "gpu_memory_utilization": DEFAULT_UTILIZATION}) for name, own in values.items()}
    kv = equal_kv_bytes(space, list(values.values()))
    return {name: Config({**own, "kv_cache_memory_bytes": kv}) for name, own in values.items()}


def equal_kv_bytes(space: SearchSpace, servers: Sequence[Mapping[str, Value]]) -> int:
    """What each of these servers gets when they share the device's KV memory equally; whole steps."""
    demands = [demand_of(space.model, space.gpu, own) for own in servers]
    each = card_kv_bytes(demands, space.gpu, space.margin_bytes).likely / len(servers)
    return max(KV_STEP_BYTES, int(each // KV_STEP_BYTES * KV_STEP_BYTES))


def _default_values(space: SearchSpace, server: Server) -> dict[str, Value]:
    filled = resolve_defaults({}, space.model, server.max_model_len, space.gpu)
    values = {name: filled[name] for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len")}
    if space.base_tensor_parallel_size > 1:
        values["tensor_parallel_size"] = space.base_tensor_parallel_size
    return values
