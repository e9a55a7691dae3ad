"""Builders for tests on the simulated engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from objectives.measurement import Load, PhaseMeasurement
from optimizer.engines.engine import Instance, LoadPlan, Placement, Sharing
from optimizer.engines.simulator.engine import SimulatedEngine, SimulatorSpec
from optimizer.workload.trace import Trace
from search_spaces.config import Config
from search_spaces.hardware import GIB, find_gpu
from search_spaces.known_models import find_model

MODEL = find_model("Llama-3.1-8B")


def engine(gpu: str = "A100-40", model: str = "Llama-3.1-8B", noise: float = 0.0, **fields: Any) -> SimulatedEngine:
    return SimulatedEngine(SimulatorSpec(find_model(model), find_gpu(gpu), noise, **fields))


def placement(**arguments: Any) -> Placement:
    fields = {"max_num_batched_tokens": 2048, "max_num_seqs": 64, "max_model_len": 4096} | arguments
    return Placement((Instance("server", Config(fields), ("default",)),))


def pair(sharing: Sharing = "time-slice", **arguments: Any) -> Placement:
    fields = {
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 64,
        "max_model_len": 4096,
        "kv_cache_memory_bytes": 8 * GIB,
    } | arguments
    return Placement(tuple(Instance(n, Config(fields), (n,)) for n in ("chat", "batch")), sharing)


def trace(
    n: int = 60,
    span_s: float = 20.0,
    seed: int = 0,
    tenants: tuple[str, ...] = ("default",),
    prompts: tuple[int, int] = (20, 1500),
    outputs: tuple[int, int] = (1, 200),
) -> Trace:
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.uniform(0.0, span_s, n))
    return Trace(
        arrival_s=arrivals - arrivals[0],
        prompt_tokens=rng.integers(*prompts, n, endpoint=True).astype(np.int32),
        output_tokens=rng.integers(*outputs, n, endpoint=True).astype(np.int32),
        tenant=rng.integers(0, len(tenants), n).astype(np.int16),
        tenants=tenants,
    )


def with_prefixes(plain: Trace, seed: int = 0, block: int = 128) -> Trace:
    """The same requests as turns of a few conversations: leading blocks shared, the last one their own."""
    rng = np.random.default_rng(seed)
    chains = []
    for row, prompt in enumerate(plain.prompt_tokens.tolist()):
        n = -(-prompt // block)
        family = int(rng.integers(4))
        chains.append(np.array([1000 * family + i for i in range(n - 1)] + [100_000 + row], np.int64))
    start = np.concatenate([[0], np.cumsum([c.size for c in chains])]).astype(np.int64)
    return Trace(
        plain.arrival_s,
        plain.prompt_tokens,
        plain.output_tokens,
        plain.tenant,
        plain.tenants,
        prefix_ids=np.concatenate(chains),
        prefix_start=start,
        prefix_block_tokens=block,
    )


def plan(of: Trace, load: Load = "steady", n_warmup: int = 0, time_limit_s: float = 1e6) -> LoadPlan:
    if load == "saturation":
        of = of.at(np.minimum(of.arrival_s, 0.0))
    elif n_warmup:
        of = of.shifted(-float(of.arrival_s[n_warmup]))
    return LoadPlan(load, of, n_warmup, of.rate_per_s, time_limit_s)


def same(a: PhaseMeasurement, b: PhaseMeasurement) -> bool:
    """Equal to the last bit: token times, samples, counters, window."""
    if len(a.records) != len(b.records):
        return False
    for x, y in zip(a.records, b.records, strict=True):
        if not np.array_equal(x.token_times_s, y.token_times_s):
            return False
        if (x.n_preemptions, x.recomputed_tokens, x.cached_prompt_tokens, x.failure) != (
            y.n_preemptions,
            y.recomputed_tokens,
            y.cached_prompt_tokens,
            y.failure,
        ):
            return False
    names = ("counted_from_s", "counted_until_s", "end_s", "was_running_set_full", "samples", "counters", "cut_reason")
    return all(getattr(a, name) == getattr(b, name) for name in names)


def p99(values: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    return float(np.percentile(values, 99))


def gaps(phase: PhaseMeasurement, tenant: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.concatenate([r.gaps_s for r in phase.records if r.tenant == tenant])
