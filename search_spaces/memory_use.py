"""A running server's memory by its configuration: boot failures, free memory and the run-time peak.

The same arithmetic as `capacity`, applied to one Config; the simulator's engine decides with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from search_spaces.capacity import (
    DEFAULT_UTILIZATION,
    OutOfMemory,
    kv_failure,
    kv_tokens_in,
    risk_of,
    state_slots,
)
from search_spaces.hardware import GIB, GpuFacts, batch_defaults
from search_spaces.memory import BLOCK_TOKENS, Demand
from search_spaces.model import ModelFacts

KV_DTYPE_BYTES: Mapping[str, float] = {
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "fp8_inc": 1.0,
    "int8_per_token_head": 1.0,
    "fp8_per_token_head": 1.0,
    "int4_per_token_head": 0.5,
    "nvfp4": 0.5 + 1 / 16,
    "float16": 2.0,
    "bfloat16": 2.0,
}
"""kv_cache_dtype -> bytes per element (per-token-head scales, 4 B a head, are left out)."""


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes one server holds on one GPU, likely values."""

    demand: Demand
    context_bytes: int
    """CUDA context and NCCL; there before vLLM looks."""
    weights_bytes: int
    buffer_bytes: int
    activation_bytes: int
    """Peak of a full-budget step at max_num_seqs rows; free again after it."""
    graph_bytes: int
    kv_bytes: int
    kv_tokens: int
    kv_blocks: int
    """Blocks of 16 tokens, the null block included."""
    max_model_len: int
    failure: OutOfMemory | None
    """This server's own fault: no room for one request, more sequences than state slots. The card's is `check_card`."""

    @property
    def idle_bytes(self) -> int:
        """Held while nothing runs."""
        return self.context_bytes + self.weights_bytes + self.buffer_bytes + self.graph_bytes + self.kv_bytes

    @property
    def peak_bytes(self) -> int:
        return self.idle_bytes + self.activation_bytes


def demand_of(model: ModelFacts, gpu: GpuFacts, config: Mapping[str, Any]) -> Demand:
    """What the configuration asks for, vLLM's defaults for this GPU where it says nothing."""
    mnbt, mns = batch_defaults(gpu)
    return Demand(
        model,
        int(config.get("max_num_batched_tokens") or mnbt),
        int(config.get("max_num_seqs") or mns),
        int(config.get("tensor_parallel_size") or 1),
        bool(config.get("enforce_eager")),
        n_draft_tokens(config),
        is_cpu=gpu.is_cpu,
    )


def n_draft_tokens(config: Mapping[str, Any]) -> int:
    """num_speculative_tokens of `speculative_config` (JSON text or mapping); 0 without one."""
    settings = config.get("speculative_config")
    if isinstance(settings, str):
        try:
            settings = json.loads(settings)
        except json.JSONDecodeError:  # refused by `constraint`, which names it
            return 0
    return int(settings.get("num_speculative_tokens") or 0) if isinstance(settings, Mapping) else 0


def kv_dtype_bytes(model: ModelFacts, config: Mapping[str, Any]) -> float:
    return KV_DTYPE_BYTES.get(str(config.get("kv_cache_dtype") or "auto"), model.kv_dtype_bytes)


def memory_use(model: ModelFacts, gpu: GpuFacts, config: Mapping[str, Any]) -> MemoryUse:
    """One server's memory on one GPU. `kv_cache_memory_bytes` overrides `gpu_memory_utilization`, as in vLLM."""
    demand = demand_of(model, gpu, config)
    kv_bytes = _kv_bytes(demand, gpu, config)
    longest = int(config.get("max_model_len") or model.max_position_tokens)
    dtype, tp = kv_dtype_bytes(model, config), demand.tensor_parallel_size
    tokens = kv_tokens_in(model, kv_bytes, longest, tp, dtype)
    return MemoryUse(
        demand=demand,
        context_bytes=round(demand.context.likely),
        weights_bytes=round(demand.weights.likely),
        buffer_bytes=round(demand.buffers.likely),
        activation_bytes=round(demand.activations.likely),
        graph_bytes=round(demand.graphs.likely),
        kv_bytes=max(0, kv_bytes),
        kv_tokens=tokens,
        kv_blocks=int(config.get("num_gpu_blocks_override") or tokens // BLOCK_TOKENS),
        max_model_len=longest,
        failure=_own_failure(model, kv_bytes, longest, demand, dtype),
    )


def peak_bytes(model: ModelFacts, gpu: GpuFacts, config: Mapping[str, Any]) -> int:
    """The likely peak of one server on one GPU: everything it holds plus the activations of a full step."""
    return memory_use(model, gpu, config).peak_bytes


def check_card(
    uses: Sequence[MemoryUse], gpu: GpuFacts, configs: Sequence[Mapping[str, Any]] = ()
) -> tuple[OutOfMemory, str] | None:
    """The first boot failure of these servers on one card and the phase it strikes in, or None.

    Phases in the order vLLM passes them: load, startup, profile, kv_alloc, graph_capture."""
    total = gpu.memory_bytes
    fixed = sum(u.context_bytes + u.weights_bytes for u in uses)
    if fixed > total:
        return _excess("weights", f"the weights need {_gib(fixed)}", fixed, gpu), "load"
    own = next((u.failure for u in uses if u.failure is not None), None)
    refused = _startup_failure(uses, gpu, configs)
    if refused is not None:
        return refused, "startup"
    steps = (
        ("profile", sum(u.context_bytes + u.weights_bytes + u.buffer_bytes for u in uses) + _largest(uses)),
        ("kv_alloc", sum(u.idle_bytes - u.graph_bytes for u in uses)),
        ("graph_capture", sum(u.idle_bytes for u in uses)),
    )
    for phase, needed in steps:
        if phase == "kv_alloc" and own is not None:
            return own, phase
        if needed > total:
            return _excess("runtime_peak", f"{phase} needs {_gib(needed)}", needed, gpu), phase
    return None


def sure_failure(
    models: Sequence[ModelFacts], gpu: GpuFacts, configs: Sequence[Mapping[str, Any]]
) -> OutOfMemory | None:
    """Why these servers cannot start together on one card even at the optimistic end of every cost; else None.

    Says nothing of a CPU, whose share of the host's memory is a choice and no limit."""
    if gpu.is_cpu:
        return None
    demands = [demand_of(model, gpu, config) for model, config in zip(models, configs, strict=True)]
    needed = sum((d.inside + d.outside).low + float(c.get("kv_cache_memory_bytes") or 0)
                 for d, c in zip(demands, configs, strict=True))  # fmt: skip
    if needed > gpu.memory_bytes:
        return _excess("runtime_peak", f"these servers need at least {_gib(needed)}", needed, gpu)
    for model, demand, config in zip(models, demands, configs, strict=True):
        if config.get("kv_cache_memory_bytes") or config.get("num_gpu_blocks_override"):
            continue
        share = float(config.get("gpu_memory_utilization") or DEFAULT_UTILIZATION)
        most = demand.inside.taken_from(gpu.memory_bytes * share).high
        longest = int(config.get("max_model_len") or model.max_position_tokens)
        failure = kv_failure(model, most, longest, demand.tensor_parallel_size, kv_dtype_bytes(model, config))
        if failure is not None:
            return failure
    return None


def free_bytes_at_peak(uses: Sequence[MemoryUse], gpu: GpuFacts) -> int:
    """What is left while every server runs a full-budget step; below 0 the peak does not fit."""
    return gpu.memory_bytes - sum(u.peak_bytes for u in uses)


def runtime_risk(uses: Sequence[MemoryUse], gpu: GpuFacts) -> float:
    """0..1 that serving at the limits runs out of memory although it booted (fragmentation, log-probabilities)."""
    free = free_bytes_at_peak(uses, gpu)
    need = uses[0].demand.spike
    for use in uses[1:]:
        need = need + use.demand.spike
    return risk_of(free, need)


def _kv_bytes(demand: Demand, gpu: GpuFacts, config: Mapping[str, Any]) -> int:
    if config.get("kv_cache_memory_bytes"):
        return int(config["kv_cache_memory_bytes"])
    utilization = float(config.get("gpu_memory_utilization") or DEFAULT_UTILIZATION)
    return int(gpu.memory_bytes * utilization - demand.inside.likely)


def _own_failure(
    model: ModelFacts, kv_bytes: int, max_model_len: int, demand: Demand, dtype: float
) -> OutOfMemory | None:
    failure = kv_failure(model, kv_bytes, max_model_len, demand.tensor_parallel_size, dtype)
    slots = state_slots(model, kv_bytes, demand.tensor_parallel_size)
    if failure is None and slots is not None and demand.max_num_seqs > slots:
        cause = f"max_num_seqs {demand.max_num_seqs} exceeds the {slots} state blocks; lower it to at most {slots}"
        return OutOfMemory("kv_capacity", cause, demand.max_num_seqs - slots, slots)
    return failure


def _startup_failure(
    uses: Sequence[MemoryUse], gpu: GpuFacts, configs: Sequence[Mapping[str, Any]]
) -> OutOfMemory | None:
    """vLLM refuses to start when less is free than the share it was given (0.32 v1/worker/utils.py:716)."""
    taken = 0
    for use, config in zip(uses, configs, strict=False):
        taken += use.context_bytes
        if not config.get("kv_cache_memory_bytes"):
            share = float(config.get("gpu_memory_utilization") or DEFAULT_UTILIZATION) * gpu.memory_bytes
            if share > gpu.memory_bytes - taken:
                what = f"{_gib(share)} are asked for, {_gib(gpu.memory_bytes - taken)} are free"
                deficit = int(share + taken - gpu.memory_bytes)
                return OutOfMemory("runtime_peak", f"{what}: lower gpu_memory_utilization", deficit)
        taken += use.idle_bytes - use.context_bytes
    return None


def _largest(uses: Sequence[MemoryUse]) -> int:
    return max(u.activation_bytes for u in uses)


def _excess(kind: Any, what: str, needed: float, gpu: GpuFacts) -> OutOfMemory:
    return OutOfMemory(kind, f"{what}, {gpu.name} has {_gib(gpu.memory_bytes)}", int(needed - gpu.memory_bytes))


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"
