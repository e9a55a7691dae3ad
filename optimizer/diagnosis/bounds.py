"""Numbers in a failure's text: what would have fitted, what was missing. All in bytes, tokens, sequences or shares.

| name | what |
|---|---|
| `max_model_len_at_most` | the longest request that fits, by vLLM's own estimate |
| `max_num_seqs_at_most`, `max_num_batched_tokens_at_least` | from vLLM's texts |
| `gpu_memory_utilization_at_least` | the least share that leaves room for one request, a margin of 0.01 included |
| `gpu_memory_utilization_at_most` | the share that was free at start |
| `kv_cache_memory_bytes_at_most` | the RAM that was free for the KV cache (CPU backend) |
| `tensor_parallel_size_at_most` | visible GPUs |
| `kv_deficit_bytes` | missing for one request of max_model_len (below 0 available: for any KV cache at all) |
| `needed_bytes`, `available_bytes` | KV cache for one request, and what there was |
| `requested_bytes`, `free_bytes`, `total_bytes` | device memory (on a CPU: RAM) |
| `tried_to_allocate_bytes` | the allocation that failed |
| `used_by_this_process_bytes`, `used_by_others_bytes` | as PyTorch saw them then |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from optimizer.diagnosis.circumstances import Circumstances
from optimizer.diagnosis.scan import Finding
from optimizer.diagnosis.vllm_log import GIB, LogFacts
from search_spaces.fit import MOST_UTILIZATION

MARGIN = 0.01
"""Share of the card on top of the least that fits: profiling varies by about this much from boot to boot."""
UTILIZATION_0_32 = 0.92
"""vLLM 0.32 config/cache.py; other versions have other defaults, so it is used for 0.32 and 0.33 alone."""

_OF_MEMORY = ("kv_capacity", "weights", "runtime_peak")
_UNITS = {"bytes": 1.0, "B": 1.0, "KiB": 1024.0, "MiB": 1024.0**2, "GiB": GIB, "KB": 1024.0, "MB": 1024.0**2, "GB": GIB}
_SIZE = r"([\d.]+) (bytes|[KMG]i?B)"
_OOM = {
    "tried_to_allocate_bytes": re.compile(rf"[Tt]ried to allocate {_SIZE}"),
    "total_bytes": re.compile(rf"total capacity of {_SIZE}|; {_SIZE} total capacity"),
    "free_bytes": re.compile(rf"of which {_SIZE} is free|; {_SIZE} free"),
    "used_by_this_process_bytes": re.compile(rf"this process has {_SIZE} memory in use"),
    "allocated_bytes": re.compile(rf"allocated memory {_SIZE} is allocated by PyTorch|; {_SIZE} already allocated"),
}
_OTHER = re.compile(rf"Process (\d+) has {_SIZE} memory in use")
_ESTIMATE = re.compile(r"estimated maximum model length is (\d+)")
_CPU_BYTES = re.compile(r"you tried to allocate (\d+) bytes")


def utilization_of(facts: LogFacts, circumstances: Circumstances, groups: Mapping[str, str]) -> float | None:
    """The server's gpu_memory_utilization, or None where neither the log nor the arguments tell."""
    if "utilization" in groups:
        return float(groups["utilization"])
    for arguments in (circumstances.arguments, facts.non_default_args):
        value = _argument(arguments, "gpu_memory_utilization")
        if value is not None:
            return value
    if facts.gpu_memory_utilization is not None:
        return facts.gpu_memory_utilization
    version = facts.vllm_version or ""
    return UTILIZATION_0_32 if version.startswith(("0.32", "0.33")) else None


def _argument(arguments: Mapping[str, Any] | None, name: str) -> float | None:
    try:
        return float((arguments or {})[name])
    except (KeyError, TypeError, ValueError):
        return None


def bounds_of(
    root: Finding, same_failure: Iterable[Finding], facts: LogFacts, given: Circumstances
) -> dict[str, float]:
    """Every number that the failure's lines give, and what follows from them."""
    bounds: dict[str, float] = {}
    for finding in same_failure:
        bounds.update({k: v for k, v in _sizes(finding.line.message).items() if k not in bounds})
    text = root.line.message
    bounds.update(_sizes(text))
    bounds.update(_named(root))
    if match := _ESTIMATE.search(text):
        bounds["max_model_len_at_most"] = float(match[1])
    if "total_bytes" not in bounds and given.device_memory_bytes:
        bounds["total_bytes"] = given.device_memory_bytes
    elif "total_bytes" not in bounds and facts.device_memory_bytes and root.kind in _OF_MEMORY:
        bounds["total_bytes"] = facts.device_memory_bytes
    if root.kind == "kv_capacity":
        _add_deficit(bounds, root, facts, given)
    return {k: float(round(v)) if k.endswith("_bytes") or "_bytes_" in k else v for k, v in bounds.items()}


def _sizes(text: str) -> dict[str, float]:
    """What PyTorch prints when an allocation fails (c10/cuda/CUDACachingAllocator.cpp), old wording and new."""
    found = {}
    for name, pattern in _OOM.items():
        if match := pattern.search(text):
            number, unit = [g for g in match.groups() if g]
            found[name] = float(number) * _UNITS[unit]
    if match := _CPU_BYTES.search(text):
        found["tried_to_allocate_bytes"] = float(match[1])
    allocated = found.pop("allocated_bytes", 0.0)
    if "used_by_this_process_bytes" in found:
        found["used_by_this_process_bytes"] = max(found["used_by_this_process_bytes"], allocated)
    if others := others_in(text):
        found["used_by_others_bytes"] = sum(others.values())
    return found


def others_in(text: str) -> dict[int, float]:
    """pid -> bytes of the processes PyTorch names beside its own. In a container it cannot tell its own from others
    and names them all alike; then none is returned."""
    if "this process has" not in text or "this process has 0 bytes" in text:
        return {}
    return {int(pid): float(number) * _UNITS[unit] for pid, number, unit in _OTHER.findall(text)}


def _named(root: Finding) -> dict[str, float]:
    """The named numbers of a sign's text."""
    groups, name = root.groups, root.sign.name if root.sign else ""
    found = {f"{k.removesuffix('_gib')}_bytes": float(v) * GIB for k, v in groups.items() if k.endswith("_gib")}
    match name:
        case "kv_tokens":
            found["max_model_len_at_most"] = float(groups["max_tokens"])
        case "state_blocks":
            found["max_num_seqs_at_most"] = float(groups["max_seqs"])
        case "sampler":
            found["max_num_seqs_at_most"] = float(groups["n_seqs"]) - 1
        case "derived_length":
            found["max_model_len_at_most"] = float(groups["derived"])
        case "budget_below_length":
            found["max_num_batched_tokens_at_least"] = float(groups["max_model_len"])
        case "budget_below_seqs":
            found["max_num_batched_tokens_at_least"] = float(groups["n_seqs"])
            found["max_num_seqs_at_most"] = float(groups["budget"])
        case "world_size":
            found["tensor_parallel_size_at_most"] = float(groups["n_gpus"])
        case "free_memory" | "free_ram":
            found["gpu_memory_utilization_at_most"] = _floor(found["free_bytes"] / max(found["total_bytes"], 1.0))
    if name == "kv_ram" and found["requested_bytes"] > 0:
        found["kv_cache_memory_bytes_at_most"] = found["free_bytes"]
    return {k: v for k, v in found.items() if v != 0.0 or k == "free_bytes"}


def _floor(share: float) -> float:
    return int(share * 1000) / 1000


def _add_deficit(bounds: dict[str, float], root: Finding, facts: LogFacts, given: Circumstances) -> None:
    """What was missing, and the smallest utilisation that would have given it."""
    if root.sign is not None and root.sign.name in ("no_kv", "auto_fit") and facts.kv_available_bytes is not None:
        bounds["available_bytes"] = facts.kv_available_bytes
        bounds["kv_deficit_bytes"] = max(-facts.kv_available_bytes, 0.0)
    elif "needed_bytes" in bounds:
        bounds["kv_deficit_bytes"] = max(bounds["needed_bytes"] - bounds.get("available_bytes", 0.0), 0.0)
    if bounds.get("kv_deficit_bytes") == 0.0 and "needed_bytes" not in bounds:
        del bounds["kv_deficit_bytes"]
    now, total = utilization_of(facts, given, root.groups), bounds.get("total_bytes")
    has_fixed_kv = _has_fixed_kv(facts.non_default_args) or _has_fixed_kv(given.arguments)
    if "kv_deficit_bytes" in bounds and now is not None and total and not has_fixed_kv:
        least = now + bounds["kv_deficit_bytes"] / total + MARGIN
        if least <= MOST_UTILIZATION:
            bounds["gpu_memory_utilization_at_least"] = round(least + 0.0005, 3)


def _has_fixed_kv(arguments: Mapping[str, Any] | None) -> bool:
    """With these the utilisation is ignored (vLLM 0.32 v1/worker/gpu_worker.py:650)."""
    return any((arguments or {}).get(name) is not None for name in ("kv_cache_memory_bytes", "num_gpu_blocks_override"))
