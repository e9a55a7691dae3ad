"""Booting in the simulator: does it fit, how large is the KV cache, how long would it take.

Memory arithmetic is `search_spaces.memory_use`; here it becomes vLLM's boot: phases in order, the first that fails
raises EngineFailed with `weights`, `kv_capacity`, `runtime_peak` or `arguments`, always the configuration's fault.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from optimizer.engines.engine import Instance, Placement
from optimizer.engines.simulator.settings import Settings, resolve
from optimizer.engines.simulator.step_time import graph_sizes
from optimizer.errors import EngineFailed
from search_spaces.capacity import OutOfMemory
from search_spaces.hardware import GpuFacts
from search_spaces.memory_use import MemoryUse, check_card, free_bytes_at_peak, memory_use, runtime_risk
from search_spaces.model import ModelFacts

START_S = 15.0
"""Imports of API server and engine core, before anything of the model is touched."""
LOAD_BYTES_PER_S = 1.5e9
"""Weights from local disk into one GPU; NVMe without a page cache."""
COMPILE_S, COMPILE_LAYER_S = 12.0, 0.5
"""torch.compile of one layer and its pieces, cold: any new (max_num_batched_tokens, max_num_seqs) misses the cache."""
GRAPH_S = 0.12
"""Capture of one CUDA-graph size."""
PROFILE_S = 2.0
MAX_RISK = 0.5
"""Under stress the likely spike (fragmentation) is taken to happen: above this risk the engine dies."""


@dataclass(frozen=True)
class Booted:
    """One instance that is up."""

    instance: Instance
    settings: Settings
    model: ModelFacts
    """The checkpoint it serves."""
    memory: MemoryUse
    """As booted; a live change moves limits, not allocations."""
    n_blocks: int
    """KV blocks, the null block included."""

    @property
    def kv_tokens(self) -> int:
        return self.n_blocks * self.settings.budgets.block_size


def boot_instances(placement: Placement, models: Seq[ModelFacts], gpu: GpuFacts) -> tuple[Booted, ...]:
    """Every instance of the placement on one card, each with its own checkpoint. Raises EngineFailed at the first
    phase that cannot pass."""
    pairs = list(zip(placement.instances, models, strict=True))
    settings = [resolve(i.config, model, gpu) for i, model in pairs]
    if len({s.tp for s in settings}) > 1:
        sizes = ", ".join(str(s.tp) for s in settings)
        raise EngineFailed(
            "arguments",
            "arguments",
            f"instances that share a card need one tensor_parallel_size, got {sizes}",
            is_config_fault=True,
        )
    uses = [memory_use(model, gpu, i.config) for i, model in pairs]
    failed = check_card(uses, gpu, [i.config for i in placement.instances])
    if failed is not None:
        raise out_of_memory(*failed, gpu)
    return tuple(Booted(i, s, m, u, _n_blocks(i, s, u)) for (i, m), s, u in zip(pairs, settings, uses, strict=True))


def move_live(booted: Booted, instance: Instance, gpu: GpuFacts) -> Booted:
    """The booted instance with other live arguments. Buffers, graphs and KV pool stay allocated, so the token budget,
    the seats and the KV budget only go down from their boot values. Raises EngineFailed otherwise."""
    settings = resolve(instance.config, booted.model, gpu)
    was, now, n_blocks = booted.settings.budgets, settings.budgets, booted.n_blocks
    if "kv_cache_memory_bytes" in instance.config:
        n_blocks = _n_blocks(instance, settings, memory_use(booted.model, gpu, instance.config))
    grown = {
        "max_num_batched_tokens": now.max_num_batched_tokens > was.max_num_batched_tokens,
        "max_num_seqs": now.max_num_seqs > was.max_num_seqs,
        "kv_cache_memory_bytes": n_blocks > booted.n_blocks,
    }
    for name, has_grown in grown.items():
        if has_grown:
            cause = f"{instance.name}: a running engine can only lower {name} from its boot value; boot again"
            raise EngineFailed("arguments", "configure", cause, is_config_fault=False)
    return Booted(instance, settings, booted.model, booted.memory, n_blocks)


def _n_blocks(instance: Instance, settings: Settings, memory: MemoryUse) -> int:
    """Blocks, and vLLM's own check on them (v1/core/kv_cache_utils.py:1031), which rounding and overrides may fail."""
    budgets = settings.budgets
    override = instance.config.get("num_gpu_blocks_override")
    n_blocks = (
        memory.kv_tokens // budgets.block_size if override is None else instance.config.int_("num_gpu_blocks_override")
    )
    fits = (n_blocks - 1) * budgets.block_size
    if fits >= budgets.max_model_len:
        return n_blocks
    cause = (
        f"{n_blocks} KV blocks hold no request of max_model_len {budgets.max_model_len} tokens; "
        f"the estimated maximum model length is {max(fits, 0)}"
    )
    missing = (budgets.max_model_len - fits) / budgets.max_model_len
    raise EngineFailed("kv_capacity", "kv_alloc", cause, is_config_fault=True, violation=max(missing, 0.01))


def out_of_memory(failure: OutOfMemory, phase: str, gpu: GpuFacts) -> EngineFailed:
    cause = failure.cause
    if failure.kind == "kv_capacity" and failure.bound is not None:
        cause += f" (the estimated maximum model length is {failure.bound})"
    violation = max(failure.deficit_bytes / gpu.memory_bytes, 0.01)
    return EngineFailed(failure.kind, phase, cause, is_config_fault=True, violation=violation)


def check_stress(booted: Seq[Booted], gpu: GpuFacts) -> None:
    """A full-budget step at max_num_seqs rows in every instance at once. Raises EngineFailed `runtime_peak`."""
    uses = [b.memory for b in booted]
    risk = runtime_risk(uses, gpu)
    if risk <= MAX_RISK:
        return
    free = free_bytes_at_peak(uses, gpu)
    cause = (
        f"CUDA out of memory at the peak of the stress load: {free / 1024**2:.0f} MiB would be left beside a "
        f"full-budget step, less than fragmentation takes; lower the KV budget, max_num_batched_tokens or max_num_seqs"
    )
    raise EngineFailed("runtime_peak", "stress", cause, is_config_fault=True, violation=max(risk - MAX_RISK, 0.01))


def min_free_bytes(booted: Seq[Booted], gpu: GpuFacts, is_stress: bool) -> int:
    """Least free device memory: torch keeps the profiled peak reserved, stress adds the likely spike."""
    free = free_bytes_at_peak([b.memory for b in booted], gpu)
    if is_stress:
        free -= round(sum(b.memory.demand.spike.likely for b in booted))
    return max(free, 0)


def boot_seconds(booted: Seq[Booted]) -> dict[str, float]:
    """Virtual seconds per phase; instances on one card start one after the other."""
    seconds = dict.fromkeys(("start", "load", "compile", "profile", "graph_capture"), 0.0)
    for one in booted:
        b, s = one.settings.budgets, one.settings
        seconds["start"] += START_S
        seconds["load"] += one.model.weight_bytes(s.tp) / LOAD_BYTES_PER_S
        seconds["profile"] += PROFILE_S
        if not s.is_eager:
            sizes = graph_sizes(b.max_num_batched_tokens, b.max_num_seqs, s.max_graph_tokens)
            seconds["compile"] += COMPILE_S + COMPILE_LAYER_S * one.model.n_layers
            seconds["graph_capture"] += GRAPH_S * len(sizes)
    return seconds
