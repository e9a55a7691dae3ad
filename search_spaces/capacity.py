"""Capacity: how much KV cache a model leaves on a GPU, as an interval whose arithmetic can be read.

Rejects only when even the optimistic end fails, and keeps three kinds of running out of memory apart:
`weights` (certain: they alone exceed the card), `kv_capacity` (no room for one request of max_model_len; the bound is
the longest that fits) and `runtime_peak` (a step at the limits needs more than is left: a risk between 0 and 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from search_spaces.hardware import GIB, MIB, GpuFacts
from search_spaces.memory import BLOCK_TOKENS, Demand, Interval, OomKind
from search_spaces.model import ModelFacts, describe_parameters

DEFAULT_UTILIZATION = 0.92
"""vLLM 0.32 config/cache.py:102 (0.90 up to 0.19)."""
MARGIN_SHARE = 0.02
"""Part of the card kept free when the KV bytes are set exactly."""
KV_STEP_BYTES = 64 * MIB
"""Exact KV budgets are multiples of this."""


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Why something does not fit, even optimistically. `deficit_bytes` > 0."""

    kind: OomKind
    cause: str
    deficit_bytes: int
    bound: int | None = None
    """kv_capacity: the longest request (tokens) that fits, or the most sequences for models with constant state."""


@dataclass(frozen=True, slots=True)
class Term:
    """One line of the sum."""

    name: str
    bytes: Interval
    arithmetic: str


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What a configuration leaves for the KV cache, on one GPU."""

    model: ModelFacts
    gpu: GpuFacts
    demand: Demand
    utilization: float
    n_instances: int
    margin_bytes: int
    max_model_len: int | None
    kv_dtype_bytes: float
    terms: tuple[Term, ...] = field(repr=False)
    kv_bytes: Interval
    """One instance: what vLLM allots at `utilization`. Several, or a CPU: the total to give out in bytes, margin taken
    off."""
    ceiling_bytes: int
    """The most KV bytes to ask for exactly (all instances): likely costs and margin off, 64 MiB steps."""
    optimistic_bytes: int
    """The same with optimistic costs and no margin: asking for more cannot work."""
    risk: float
    """0..1 that a step at the limits runs out of memory at `utilization` (several instances: at the ceiling)."""
    failure: OutOfMemory | None

    @property
    def kv_tokens(self) -> Interval:
        """Tokens the cache holds as vLLM logs them (requests of max_model_len for windowed and hybrid models)."""
        return Interval(
            *(float(self.tokens_in(b)) for b in (self.kv_bytes.low, self.kv_bytes.likely, self.kv_bytes.high))
        )

    @property
    def n_blocks(self) -> Interval:
        tokens = self.kv_tokens
        return Interval(tokens.low // BLOCK_TOKENS, tokens.likely // BLOCK_TOKENS, tokens.high // BLOCK_TOKENS)

    def tokens_in(self, kv_bytes: float) -> int:
        length = self.max_model_len or min(self.model.max_position_tokens, 32768)
        return kv_tokens_in(self.model, kv_bytes, length, self.demand.tensor_parallel_size, self.kv_dtype_bytes)

    def concurrency(self, request_tokens: float, kv_bytes: float | None = None) -> float:
        """How many requests of this mean length the cache holds at once (likely end unless bytes are given)."""
        one = self.model.kv_bytes(max(1, round(request_tokens)), self.demand.tensor_parallel_size, self.kv_dtype_bytes)
        pool = self.kv_bytes.likely if kv_bytes is None else kv_bytes
        return max(0.0, pool) / max(1, one)

    def kv_budget(self, share: float = 1.0) -> int:
        """Exact bytes for one instance: its share of the ceiling, whole 64 MiB steps, never more than the share."""
        return int(max(0, self.ceiling_bytes) * share // KV_STEP_BYTES * KV_STEP_BYTES)

    def explain(self) -> str:
        """The sum, one line a term; what `--explain-capacity` prints."""
        return _explain(self)


def solve_capacity(
    model: ModelFacts,
    gpu: GpuFacts,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    tensor_parallel_size: int = 1,
    utilization: float = DEFAULT_UTILIZATION,
    n_instances: int = 1,
    max_model_len: int | None = None,
    margin_bytes: int | None = None,
    kv_dtype_bytes: float | None = None,
    is_eager: bool = False,
    are_graphs_counted: bool = True,
) -> Capacity:
    """Solve one GPU's memory. Several instances are taken as equals; `card_kv_bytes` takes each as it is.

    `are_graphs_counted=False` reproduces vLLM before 0.21. Raises ValueError for sizes below 1 or a utilisation
    outside (0, 1]."""
    _check(max_num_batched_tokens, max_num_seqs, tensor_parallel_size, utilization, n_instances)
    demand = Demand(
        model,
        max_num_batched_tokens,
        max_num_seqs,
        tensor_parallel_size,
        is_eager,
        are_graphs_counted=are_graphs_counted,
        is_cpu=gpu.is_cpu,
    )
    margin = round(gpu.memory_bytes * MARGIN_SHARE) if margin_bytes is None else margin_bytes
    dtype = model.kv_dtype_bytes if kv_dtype_bytes is None else kv_dtype_bytes
    card = card_kv_bytes([demand] * n_instances, gpu, margin)
    optimistic = card_kv_bytes([demand] * n_instances, gpu, 0).high
    kv = card if n_instances > 1 or gpu.is_cpu else demand.inside.taken_from(gpu.memory_bytes * utilization)
    return Capacity(
        model=model,
        gpu=gpu,
        demand=demand,
        utilization=utilization,
        n_instances=n_instances,
        margin_bytes=margin,
        max_model_len=max_model_len,
        kv_dtype_bytes=dtype,
        terms=_terms(demand),
        kv_bytes=kv,
        ceiling_bytes=max(0, int(card.likely // KV_STEP_BYTES * KV_STEP_BYTES)),
        optimistic_bytes=max(0, int(optimistic // KV_STEP_BYTES * KV_STEP_BYTES)),
        risk=_risk(demand, gpu, utilization, n_instances, margin),
        failure=_failure(demand, gpu, kv, n_instances, max_model_len, dtype),
    )


def card_kv_bytes(demands: Sequence[Demand], gpu: GpuFacts, margin_bytes: int) -> Interval:
    """KV bytes left on one card for all these servers together: total - (each one's costs) - margin."""
    costs = sum((d.inside + d.outside for d in demands), Interval(margin_bytes, margin_bytes, margin_bytes))
    return costs.taken_from(gpu.memory_bytes)


def kv_tokens_in(model: ModelFacts, kv_bytes: float, max_model_len: int, tp: int, kv_dtype_bytes: float) -> int:
    """Size in tokens: whole blocks where every layer grows alike; else in requests of max_model_len, as vLLM logs."""
    if kv_bytes <= 0:
        return 0
    if all(g.kind in ("full", "mla") for g in model.groups):
        return int(kv_bytes // (BLOCK_TOKENS * model.kv_bytes_per_token(tp, kv_dtype_bytes))) * BLOCK_TOKENS
    whole = -(-max_model_len // BLOCK_TOKENS) * BLOCK_TOKENS
    return int(kv_bytes / model.kv_bytes(whole, tp, kv_dtype_bytes) * max_model_len)


def state_slots(model: ModelFacts, kv_bytes: float, tp: int) -> int | None:
    """Most sequences a model with constant state can run (each needs a state block); None without such layers.

    vLLM splits the layers into groups of equal size that share one pool, so a block spans one group's layers."""
    sizes = [g.state_bytes_per_sequence for g in model.groups if g.kind == "state"]
    if not sizes or not max(sizes):
        return None
    n_per_group = min(g.n_layers for g in model.groups)
    return int(kv_bytes // (n_per_group * max(sizes) / tp))


def _failure(
    demand: Demand, gpu: GpuFacts, kv: Interval, n_instances: int, max_model_len: int | None, dtype: float
) -> OutOfMemory | None:
    fixed = (demand.weights + demand.context).times(n_instances)
    if fixed.low > gpu.memory_bytes:
        deficit = int(fixed.low - gpu.memory_bytes)
        where = (
            f"for {n_instances} instances"
            if n_instances > 1
            else f"at tensor parallel size {demand.tensor_parallel_size}"
        )
        cause = (
            f"the weights of {demand.model.name} need {_gib(demand.weights.low * n_instances)} a GPU {where}, "
            f"{gpu.name} has {_gib(gpu.memory_bytes)}: use a quantised or smaller checkpoint, or more GPUs"
        )
        return OutOfMemory("weights", cause, deficit)
    return kv_failure(demand.model, kv.high / n_instances, max_model_len or 1, demand.tensor_parallel_size, dtype)


def kv_failure(
    model: ModelFacts, kv_bytes: float, max_model_len: int, tp: int, kv_dtype_bytes: float
) -> OutOfMemory | None:
    """vLLM's check at start: one request of max_model_len must fit beside the null block."""
    whole = -(-max_model_len // BLOCK_TOKENS) * BLOCK_TOKENS
    needed = model.kv_bytes(whole, tp, kv_dtype_bytes) + model.kv_bytes(BLOCK_TOKENS, tp, kv_dtype_bytes)
    if kv_bytes >= needed:
        return None
    bound = model.tokens_in(max(0.0, kv_bytes - model.kv_bytes(BLOCK_TOKENS, tp, kv_dtype_bytes)), tp, kv_dtype_bytes)
    bound = bound // BLOCK_TOKENS * BLOCK_TOKENS
    what = (
        f"at most {bound} tokens fit: lower max_model_len" if bound else "nothing is left: lower max_num_batched_tokens"
    )
    cause = (
        f"one request of {max_model_len} tokens needs {_gib(needed)} of KV cache, {_gib(kv_bytes)} are left; {what}, "
        f"or give the KV cache more memory"
    )
    return OutOfMemory("kv_capacity", cause, int(needed - kv_bytes), bound)


def _risk(demand: Demand, gpu: GpuFacts, utilization: float, n_instances: int, margin: int) -> float:
    if n_instances > 1:
        spread = (demand.inside + demand.outside).times(n_instances)
        need = Interval(spread.low - spread.likely, 0, spread.high - spread.likely) + demand.spike
        return risk_of(margin, need)
    return risk_of(gpu.memory_bytes * (1 - utilization), demand.outside + demand.spike)


def risk_of(free_bytes: float, need: Interval) -> float:
    """Chance that `need` exceeds what is free: 1 below its low end, 0.5 at the likely one, 0 above the high end."""
    if free_bytes <= need.low:
        return 1.0
    if free_bytes >= need.high:
        return 0.0
    if free_bytes < need.likely:
        return 1.0 - 0.5 * (free_bytes - need.low) / (need.likely - need.low)
    return 0.5 * (need.high - free_bytes) / (need.high - need.likely)


def _terms(d: Demand) -> tuple[Term, ...]:
    m, tp = d.model, d.tensor_parallel_size
    split = f", split over {tp} GPUs" if tp > 1 else ""
    terms = [
        Term("weights", d.weights, f"{_weights_source(m)}; {m.weight_bytes_per_parameter:.3g} B a parameter{split}"),
        *_profiled_terms(d),
        Term("CUDA graphs", d.graphs, _graphs_text(d)),
        Term("CUDA context", d.context, "per process" + (" and NCCL" if tp > 1 else "")),
    ]
    return tuple(t for t in terms if not (d.is_cpu and t.name.startswith("CUDA")))


def _weights_source(m: ModelFacts) -> str:
    if any(s.weights_bytes is not None for s in m.memory_seen):
        return "as a start logged them"
    return "its files" if m.measured_weight_bytes is not None else describe_parameters(m.parameters())


def _graphs_text(d: Demand) -> str:
    if d.is_eager:
        return "enforce_eager"
    seen = any(
        s.graph_bytes is not None and s.tensor_parallel_size == d.tensor_parallel_size for s in d.model.memory_seen
    )
    return f"{d.model.n_layers} layers x captured batch sizes" + (", scaled to what a start logged" if seen else "")


def _profiled_terms(d: Demand) -> tuple[Term, ...]:
    """Buffers and activations apart as they are assumed, together as a start shows them."""
    activations = (
        f"the larger of {d.max_num_batched_tokens} tokens x {d.forward_width:.0f} x 6 B and "
        f"{d.n_rows} rows x {d.model.vocab} entries x 16 B"
    )
    seen = d.seen
    if seen is None:
        buffers = Term("buffers", d.buffers, "persistent buffers, kernels, workspaces")
        return buffers, Term("activations", d.activations, activations)
    there = (
        f"a start took {_gib(d.profiled_at(seen).likely)} for buffers and activations at max_num_batched_tokens"
        f" {seen.max_num_batched_tokens}, max_num_seqs {seen.n_rows}"
    )
    is_same = (seen.max_num_batched_tokens, seen.n_rows) == (d.max_num_batched_tokens, d.n_rows)
    return (Term("profiled", d.profiled, there if is_same else f"{there}; activations moved by {activations}"),)


def _explain(c: Capacity) -> str:
    what = "of the host's memory" if c.gpu.is_cpu else "device memory"
    lines = [f"{c.model.name} on {c.gpu.name}: {_gib(c.gpu.memory_bytes)} {what}"]
    is_exact = c.n_instances > 1 or c.gpu.is_cpu
    instances = f"{c.n_instances} instance{'s' if c.n_instances > 1 else ''}"
    where = f"{instances}, exact KV bytes" if is_exact else f"utilisation {c.utilization:g}"
    lines.append(
        f"  max_num_batched_tokens {c.demand.max_num_batched_tokens}, max_num_seqs {c.demand.max_num_seqs}, "
        f"tensor parallel size {c.demand.tensor_parallel_size}, {where}"
    )
    times = f"{c.n_instances} x " if c.n_instances > 1 else ""
    for term in c.terms:
        size = f"{term.bytes.low / GIB:.2f} .. {term.bytes.likely / GIB:.2f} .. {term.bytes.high / GIB:.2f} GiB"
        lines.append(f"  - {times}{term.name:<13}{size:>30}   {term.arithmetic}")
    if not is_exact:
        lines.append(
            f"  KV = {c.utilization:g} x {_gib(c.gpu.memory_bytes)} - weights - buffers - activations - graphs "
            f"(the context lies outside the utilisation)"
        )
    else:
        total, margin = _gib(c.gpu.memory_bytes), _gib(c.margin_bytes)
        lines.append(f"  KV = {total} - {c.n_instances} x (all of the above) - margin {margin}")
    lines += _result_lines(c)
    return "\n".join(lines)


def _result_lines(c: Capacity) -> list[str]:
    kv, tokens, blocks = c.kv_bytes, c.kv_tokens, c.n_blocks
    one = c.model.kv_bytes_per_token(c.demand.tensor_parallel_size, c.kv_dtype_bytes)
    lines = [
        f"  KV cache       {kv.low / GIB:.2f} .. {kv.likely / GIB:.2f} .. {kv.high / GIB:.2f} GiB",
        f"  tokens         {tokens.low:.0f} .. {tokens.likely:.0f} .. {tokens.high:.0f} ({one:.0f} B at long context)",
        f"  blocks of {BLOCK_TOKENS}   {blocks.low:.0f} .. {blocks.likely:.0f} .. {blocks.high:.0f}",
        f"  exact ceiling  {_gib(c.ceiling_bytes)} ({c.ceiling_bytes} bytes), {_gib(c.margin_bytes)} kept free",
        f"  run-time risk  {c.risk:.0%} that a step at the limits does not fit",
    ]
    if not c.gpu.is_calibrated:
        lines.append(f"  {c.gpu.name} is uncalibrated: {c.gpu.source}")
    lines += [f"  note: {note}" for note in c.model.notes]
    if c.failure is not None:
        lines.append(f"  does not fit even at the optimistic end ({c.failure.kind}): {c.failure.cause}")
    return lines


def _check(mnbt: int, mns: int, tp: int, utilization: float, n_instances: int) -> None:
    named = {
        "max_num_batched_tokens": mnbt,
        "max_num_seqs": mns,
        "tensor_parallel_size": tp,
        "n_instances": n_instances,
    }
    for name, value in named.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if not 0 < utilization <= 1:
        raise ValueError(f"gpu_memory_utilization must lie in (0, 1], got {utilization}")


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"
