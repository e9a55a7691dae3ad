"""How many more requests than now the best budgets would carry on this card, by simulation: are the parameters to blame
or the load?

Never a measurement. Both sides are simulated with requests of the lengths seen, and only their ratio is used, so that
the simulator's own error mostly falls out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimizer.engines.engine import Instance, LoadPlan, Placement
from optimizer.engines.simulator.engine import SimulatedEngine, SimulatorSpec
from optimizer.errors import OptimizerError
from optimizer.questions.answer import Change
from optimizer.questions.pool import MOST_UTILIZATION
from optimizer.questions.situation import Lengths, Situation
from optimizer.workload.trace import Trace
from search_spaces.config import Config

LEAST_REQUESTS, MOST_REQUESTS, ROUNDS = 400, 2000, 3
"""So many are replayed: every seat is taken a few times, and a simulation still costs tenths of a second."""
SEATS, BUDGETS = (32, 128, 256), (2048, 8192)
"""Tried together: below and above what vLLM's defaults are."""
SPREAD = 0.5
"""Lengths are drawn evenly this far around their mean: throughput hangs on means, not on the shape."""


@dataclass(frozen=True)
class Achievable:
    """Requests per second, simulated."""

    now_per_s: float
    best_per_s: float
    changes: tuple[Change, ...]
    """From now to the best."""

    @property
    def gain(self) -> float:
        """How many times what it carries now."""
        return self.best_per_s / self.now_per_s


def achievable(s: Situation) -> Achievable | None:
    """None where model, card, budgets or lengths are not known, or the simulator does not model them."""
    if s.model is None or s.gpu is None or s.gpu.is_cpu or s.prompts is None or s.outputs is None:
        return None
    if s.whole("max_num_seqs") is None or s.whole("max_num_batched_tokens") is None or not s.is_alone:
        return None
    now = _rate(s, dict(s.config))
    if now is None:
        return None
    tried = [(rate, config) for config in _others(s) if (rate := _rate(s, config)) is not None]
    best, config = max([(now, dict(s.config)), *tried], key=lambda row: row[0])
    changes = tuple(
        Change(name, value, f"of the budgets simulated, those that carry most ({best / now:.2g} times)")
        for name, value in config.items()
        if s.config.get(name) != value
    )
    return Achievable(now, best, changes)


def _others(s: Situation) -> Iterator[dict[str, Any]]:
    """More seats and larger budgets than now; the present ones stand in for what lies below."""
    seats, budget = s.whole("max_num_seqs") or 0, s.whole("max_num_batched_tokens") or 0
    pool = _pool(s)
    for n in (seats, *(n for n in SEATS if n > seats)):
        for size in (budget, *(b for b in BUDGETS if b > budget)):
            if n <= size:
                yield {**s.config, **pool, "max_num_seqs": n, "max_num_batched_tokens": size}


def _pool(s: Situation) -> dict[str, Any]:
    if s.config.get("kv_cache_memory_bytes") or s.config.get("num_gpu_blocks_override"):
        return {}
    share = s.config.get("gpu_memory_utilization")
    return {"gpu_memory_utilization": MOST_UTILIZATION} if isinstance(share, float) and share < 0.85 else {}


def _rate(s: Situation, config: Mapping[str, Any]) -> float | None:
    assert s.model is not None and s.gpu is not None
    engine = SimulatedEngine(SimulatorSpec(s.model, s.gpu, noise=0.0))
    try:
        engine.boot(Placement((Instance("server", Config(dict(config)), ("default",)),)), 0)
        done = engine.replay(_plan(s))
    except (OptimizerError, ValueError):
        return None
    finally:
        engine.stop()
    ended = np.sort([r.token_times_s[-1] for r in done.records if r.token_times_s.size])
    if ended.size < LEAST_REQUESTS:
        return None
    first, last = ended.size // 4, 3 * ended.size // 4
    return float((last - first) / max(ended[last] - ended[first], 1e-9))


def _plan(s: Situation) -> LoadPlan:
    """All at once. What the prefix cache held is not computed, so it is left out of the prompts."""
    rng = np.random.default_rng(0)
    n = min(max(LEAST_REQUESTS, ROUNDS * max(s.whole("max_num_seqs") or 0, SEATS[-1])), MOST_REQUESTS)
    trace = Trace(
        np.zeros(n),
        _drawn(rng, n, s.prompts, 1.0 - (s.cached_share or 0.0)),
        _drawn(rng, n, s.outputs, 1.0),
        np.zeros(n, np.int16),
    )
    return LoadPlan("saturation", trace, 0, None, 36_000.0)


def _drawn(rng: np.random.Generator, n: int, lengths: Lengths | None, share: float) -> Any:
    mean = max(lengths.mean * share, 1.0) if lengths is not None else 1.0
    return np.maximum(np.rint(rng.uniform(1 - SPREAD, 1 + SPREAD, n) * mean), 1).astype(np.int32)
