"""The KV cache: what is wanted of it, what it holds, and how large it could be on this card."""

from __future__ import annotations

import math
from dataclasses import dataclass

from optimizer.questions.answer import Change
from optimizer.questions.situation import Situation
from search_spaces.capacity import KV_STEP_BYTES
from search_spaces.hardware import GIB
from search_spaces.memory_use import kv_dtype_bytes, memory_use

MOST_UTILIZATION = 0.95
"""What is recommended at most: above it a run-time peak has hardly any room left."""
WORTH_IT = 1.1
"""A pool that could be larger by less than this is as large as it gets."""
CACHED = 0.05
"""Share of prompt tokens found in the cache from which on prefixes are shared, and lengths overstate the demand."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Tokens of KV cache wanted, and held."""

    wanted_tokens: float
    n_in_system: float
    n_fit: float
    """Mean requests that the pool holds at full length."""


def kv_demand(s: Situation) -> Demand | None:
    each = held_tokens(s)
    if not s.kv_tokens or not each:
        return None
    n = _in_system(s)
    return None if n is None else Demand(n * each, n, s.kv_tokens / each)


def most_wanted_tokens(s: Situation) -> float:
    """Of the most requests that ran and, where the load is not made to queue, waited; 0 where that is not known."""
    each = held_tokens(s)
    if each is None or s.running is None:
        return 0.0
    queued = s.waiting.most if s.waiting is not None and s.load not in ("saturation", "stress") else 0.0
    return each * (s.running.most + queued)


def total_tokens(s: Situation) -> float | None:
    """Prompt and answer of the mean request."""
    if s.totals is not None:
        return s.totals.mean
    if s.prompts is None:
        return None
    return s.prompts.mean + (s.outputs.mean if s.outputs is not None else 0.0)


def held_tokens(s: Situation) -> float | None:
    """What one request adds to the cache at its end: less than its length where requests share prefixes.

    By how much is measured, where use and running requests are known: the cache's use counts a shared block once."""
    total = total_tokens(s)
    if total is None or s.prompts is None or (s.cached_share or 0.0) < CACHED:
        return total
    shared = (s.cached_share or 0.0) * s.prompts.mean
    if s.kv_usage is None or not s.kv_tokens or s.running is None or not s.is_busy:
        return total - shared
    held = s.kv_usage.mean * s.kv_tokens / s.running.mean
    expected = s.prompts.mean + (s.outputs.mean / 2 if s.outputs is not None else 0.0)
    return total * min(max(held / expected, (total - shared) / total), 1.0)


def _in_system(s: Situation) -> float | None:
    """Little's law where the load is sustained, else what was seen to run and wait. Under saturation and stress what
    ran: their queues are as long as somebody made them."""
    if s.load in ("saturation", "stress"):
        return s.running.mean if s.running is not None else None
    if s.is_sustained and s.offered_per_s is not None and s.e2e_mean_s is not None:
        return s.offered_per_s * s.e2e_mean_s
    if s.running is None:
        return None
    return s.running.mean + (s.waiting.mean if s.waiting is not None else 0.0)


def attainable_tokens(s: Situation) -> int | None:
    """Tokens that the largest KV cache of this card would hold with these budgets; None where it cannot be told."""
    if s.model is None or s.gpu is None or s.gpu.is_cpu or not s.is_alone or s.kv_tokens is None:
        return None
    if (s.whole("pipeline_parallel_size") or 1) > 1:
        return None
    own = {k: v for k, v in s.config.items() if k not in ("kv_cache_memory_bytes", "num_gpu_blocks_override")}
    wanted = {**own, "gpu_memory_utilization": MOST_UTILIZATION, "tensor_parallel_size": s.tensor_parallel_size}
    return int(memory_use(s.model, s.gpu, wanted).kv_tokens * s.n_replicas)


def larger_pool(s: Situation, wanted_tokens: float) -> Change | None:
    """The budget that holds `wanted_tokens`, or as many as the card can; None where it cannot grow."""
    most = attainable_tokens(s)
    if most is None or s.kv_tokens is None or s.model is None or s.gpu is None or most < WORTH_IT * s.kv_tokens:
        return None
    more = (min(wanted_tokens, most) - s.kv_tokens) / s.n_replicas
    each = s.model.kv_bytes_per_token(s.tensor_parallel_size, kv_dtype_bytes(s.model, s.config))
    why = f"the pool holds {s.kv_tokens} tokens, {wanted_tokens:.0f} are wanted, about {most} fit on the card"
    then = "fewer preemptions, a shorter queue"
    if (blocks := s.whole("num_gpu_blocks_override")) is not None:
        return Change("num_gpu_blocks_override", math.ceil(blocks * min(wanted_tokens, most) / s.kv_tokens), why, then)
    if (now := s.whole("kv_cache_memory_bytes")) is not None:
        size = math.ceil((now + more * each) / KV_STEP_BYTES) * KV_STEP_BYTES
        return Change("kv_cache_memory_bytes", size, f"{why} ({size / GIB:.1f} GiB)", then)
    share = s.config.get("gpu_memory_utilization")
    if not isinstance(share, int | float):
        return None
    value = min(math.ceil(100 * (share + more * each / s.gpu.memory_bytes)) / 100, MOST_UTILIZATION)
    return Change("gpu_memory_utilization", value, why, then) if value > share else None
