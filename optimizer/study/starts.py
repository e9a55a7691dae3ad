"""What a study's real starts said of memory: its servers' logs, read back beside the arguments they ran with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from optimizer.diagnosis.vllm_log import LogFacts, facts_of, read_log
from optimizer.engines.engine import Placement
from optimizer.study.events import Listener, Notice
from optimizer.study.folder import StudyFolder
from optimizer.study.outcomes import own_entries
from optimizer.study.setup import Setup
from search_spaces.capacity import DEFAULT_UTILIZATION, solve_capacity
from search_spaces.hardware import GIB, GpuFacts
from search_spaces.memory_seen import MemorySeen, is_loaded_otherwise
from search_spaces.memory_use import demand_of, sure_failure
from search_spaces.model import ModelFacts

GRAPHS_COUNTED_SINCE = (0, 21)
MOST_LOGS = 64
OLD_UTILIZATION, OLD_UNTIL = 0.90, (0, 20)
"""vLLM's default up to 0.19; written out in the log of later ones' servers or in the arguments."""


def memory_seen(folder: Path, model: ModelFacts, gpu: GpuFacts) -> tuple[MemorySeen, ...]:
    """Of every stored run of the study in this folder, calibration first; the first start of each size. Runs without
    logs (a simulator's) and servers that are loaded otherwise say nothing."""
    found: dict[tuple[int, int, int, bool, bool], MemorySeen] = {}
    for run in [*sorted(folder.glob("runs/*")), *sorted(folder.glob("trials/*/run-*"))][:MOST_LOGS]:
        for arguments, log in _servers_of(run):
            seen = seen_in(facts_of(read_log(log)), arguments, model, gpu)
            if seen is not None:
                found.setdefault(seen.key, seen)
    return tuple(found.values())


def seen_in(facts: LogFacts, arguments: Mapping[str, Any], model: ModelFacts, gpu: GpuFacts) -> MemorySeen | None:
    """What one server's log says; None for nothing."""
    if is_loaded_otherwise(arguments):
        return None
    demand, version = demand_of(model, gpu, arguments), _version(facts)
    seen = MemorySeen(
        demand.max_num_batched_tokens,
        demand.n_rows,
        demand.tensor_parallel_size,
        demand.is_eager,
        are_graphs_counted=version is None or version >= GRAPHS_COUNTED_SINCE,
        non_kv_bytes=_non_kv_bytes(facts, arguments, model, gpu),
        weights_bytes=facts.model_weights_bytes,
        graph_bytes=None if demand.is_eager else facts.graph_bytes,
    )
    return None if seen.is_empty else seen


def _non_kv_bytes(facts: LogFacts, arguments: Mapping[str, Any], model: ModelFacts, gpu: GpuFacts) -> float | None:
    """What the share of the card holds besides the KV cache; None where KV bytes were given, and on a CPU."""
    if gpu.is_cpu or arguments.get("kv_cache_memory_bytes") or arguments.get("num_gpu_blocks_override"):
        return None
    kv_bytes = facts.kv_available_bytes
    if kv_bytes is None and facts.kv_tokens and all(g.kind in ("full", "mla") for g in model.groups):
        kv_bytes = facts.kv_tokens * model.kv_bytes_per_token(int(arguments.get("tensor_parallel_size") or 1))
    if kv_bytes is None:
        return None
    version = _version(facts)
    default = OLD_UTILIZATION if version is not None and version < OLD_UNTIL else DEFAULT_UTILIZATION
    share = float(arguments.get("gpu_memory_utilization") or facts.gpu_memory_utilization or default)
    return max(gpu.memory_bytes * share - kv_bytes, 0.0)


def _version(facts: LogFacts) -> tuple[int, int] | None:
    parts = (facts.vllm_version or "").split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else None


def _servers_of(run: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """(arguments, log) of each server of a stored run."""
    logs = sorted(run.glob("*.log"))
    try:
        arguments = json.loads((run / "outcome.json").read_text("utf-8"))["about"]["parameters"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for log in logs:
        own = own_entries(arguments, log.stem)
        yield (own if len(logs) > 1 else own or dict(arguments)), log.read_text("utf-8", errors="replace")


def memory_check(folder: StudyFolder, setup: Setup, listener: Listener) -> Callable[[Placement], str | None] | None:
    """`cannot_start` by what this study's starts took, and a word about it; None where none told."""
    seen = memory_seen(folder.path, setup.model, setup.gpu)
    told = correction_text(setup.model, setup.gpu, seen)
    if told is None:
        return None
    listener(Notice(told))
    model = replace(setup.model, memory_seen=(*seen, *setup.model.memory_seen))
    return partial(cannot_start, model=model, gpu=setup.gpu, variants=setup.space.variants)


def cannot_start(
    placement: Placement, model: ModelFacts, gpu: GpuFacts, variants: Mapping[str, ModelFacts]
) -> str | None:
    """Why these servers cannot start even at the optimistic end of what is known; None if they may."""
    models = [variants.get(str(i.config.get("model")), model) for i in placement.instances]
    configs = [i.config for i in placement.instances]
    if any(is_loaded_otherwise(config, frozenset({"model"})) for config in configs):
        return None
    failure = sure_failure(models, gpu, configs)
    return None if failure is None else failure.cause


def correction_text(model: ModelFacts, gpu: GpuFacts, seen: Sequence[MemorySeen]) -> str | None:
    """What the first start that sized its own KV cache says beside what was predicted; None without one."""
    first = next((s for s in seen if s.non_kv_bytes is not None), None)
    if first is None or first.non_kv_bytes is None:
        return None
    predicted = solve_capacity(
        model,
        gpu,
        max_num_batched_tokens=first.max_num_batched_tokens,
        max_num_seqs=first.n_rows,
        tensor_parallel_size=first.tensor_parallel_size,
        is_eager=first.is_eager,
        are_graphs_counted=first.are_graphs_counted,
    ).demand.inside
    low, likely, high = (f"{b / GIB:.2f}" for b in (predicted.low, predicted.likely, predicted.high))
    return (
        f"memory: a start took {first.non_kv_bytes / GIB:.2f} GiB beside its KV cache, {low} .. {likely} .. {high} GiB"
        " were predicted; the arithmetic of this study follows the start from now on"
    )
