"""Question 4: can parameters mend it, or is it the workload?

Verdicts: `fits`, `parameters` (the demand fits what the best setting seen carries), `workload` (no setting seen, or
none possible, carries it), `extreme requests` (some can never be served as they are), `unknown`.

Demand for KV cache by Little's law: requests in the system, running and waiting together, are rate times latency; each
holds its prompt and on average half its answer while it runs, and all of both at its end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from optimizer.questions.answer import Answer, Change, Confidence, unknown
from optimizer.questions.health import is_queue_rising, problems
from optimizer.questions.situation import Situation

TITLE = "parameters or workload?"
LONG_WAIT = 0.5
"""Waiting over running requests from which on the queue is no passing burst."""
FULL_POOL = 0.9
HARDLY_FITS = 0.5
"""Share of the pool that one request may hold before it alone decides how many run beside it."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Tokens of KV cache wanted, and held."""

    wanted_tokens: float
    n_in_system: float
    n_fit: float
    """Mean requests that the pool holds at full length."""


def kv_demand(s: Situation) -> Demand | None:
    total = _mean_total(s)
    if not s.kv_tokens or not total:
        return None
    n = _in_system(s)
    return None if n is None else Demand(n * total, n, s.kv_tokens / total)


def _mean_total(s: Situation) -> float | None:
    if s.totals is not None:
        return s.totals.mean
    if s.prompts is None:
        return None
    return s.prompts.mean + (s.outputs.mean if s.outputs is not None else 0.0)


def _in_system(s: Situation) -> float | None:
    """Little's law where the load is sustained, else what was seen to run and wait."""
    if s.is_sustained and s.offered_per_s is not None and s.e2e_mean_s is not None:
        return s.offered_per_s * s.e2e_mean_s
    if s.running is None:
        return None
    return s.running.mean + (s.waiting.mean if s.waiting is not None else 0.0)


def parameters_or_workload(s: Situation, best_per_s: float | None = None) -> Answer:
    """`best_per_s`: requests per second that the best configuration seen carries, where others were measured."""
    extreme = _extreme(s)
    if extreme is not None:
        return extreme
    demand = kv_demand(s)
    if best_per_s is not None and s.offered_per_s is not None and s.offered_per_s > best_per_s:
        text = (
            f"{s.offered_per_s:.3g} requests/s are offered and the best setting seen carries {best_per_s:.3g}:"
            " parameters cannot fix it"
        )
        advice = (f"add replicas ({math.ceil(s.offered_per_s / best_per_s)} for this rate), or admit fewer requests",)
        would = "a setting that carries the rate offered"
        return Answer(4, TITLE, "workload", text, "high", _evidence(s, demand), would, advice=advice)
    found = problems(s)
    is_carried = best_per_s is not None and s.offered_per_s is not None
    if demand is not None and not is_carried and _is_beyond_pool(s, demand):
        return _beyond_pool(s, demand)
    if not found:
        if demand is None and s.is_sustained is None and s.waiting is None:
            return unknown(4, TITLE, "the load offered, lengths of requests and the size of the KV cache")
        text = "the load fits: what arrives is served"
        confidence: Confidence = "high" if s.is_sustained else "medium"
        return Answer(4, TITLE, "fits", text, confidence, _evidence(s, demand), "a queue that rises")
    if is_carried:
        text = f"the best setting seen carries {best_per_s:.3g} requests/s, more than offered: a matter of parameters"
        return Answer(4, TITLE, "parameters", text, "high", _evidence(s, demand), "no setting that carries the rate")
    if demand is not None:
        text = "requests wait while the KV cache has room: a matter of budgets, not of the load"
        return Answer(4, TITLE, "parameters", text, "medium", _evidence(s, demand), "more in the system than fits")
    return unknown(4, TITLE, "what other settings carry, or the size of the KV cache")


def _waits(s: Situation) -> bool:
    if s.waiting is None or s.running is None:
        return False
    return is_queue_rising(s) or s.waiting.mean > LONG_WAIT * max(s.running.mean, 1.0)


def _is_beyond_pool(s: Situation, demand: Demand) -> bool:
    """More is wanted than the pool holds, and it is the pool that makes it wait: not seats, with blocks to spare."""
    is_pool_full = s.kv_usage is None or s.kv_usage.most >= FULL_POOL
    return demand.wanted_tokens > (s.kv_tokens or math.inf) and is_pool_full and _waits(s)


def _beyond_pool(s: Situation, demand: Demand) -> Answer:
    n_fit = int(demand.n_fit)
    text = (
        f"the load exceeds the KV cache: {s.kv_tokens} tokens hold about {n_fit} requests of {_mean_total(s):.0f}"
        f" tokens, {demand.n_in_system:.0f} are in the system: parameters cannot fix it"
    )
    seats = s.whole("max_num_seqs")
    changes = (
        (Change("max_num_seqs", max(n_fit, 1), "more cannot be held at once", "preemptions fall, the queue stays"),)
        if seats is not None and seats > n_fit
        else ()
    )
    advice = (f"cap admission at about {n_fit} requests at once, or add replicas (or a card with more memory)",)
    would = "fewer or shorter requests at once than the pool holds"
    return Answer(4, TITLE, "workload", text, "high", _evidence(s, demand), would, changes, advice)


def _extreme(s: Situation) -> Answer | None:
    longest = s.totals.longest if s.totals is not None else None
    if longest is None:
        return None
    limit = s.whole("max_model_len")
    room = min(x for x in (s.kv_tokens or math.inf, limit or math.inf))
    if longest <= room:
        return None
    what = "max_model_len" if limit is not None and room == limit else "the whole KV cache"
    text = f"the longest request wants {longest:.0f} tokens, {what} is {room:.0f}: no scheduler setting can serve it"
    changes = (
        (Change("max_model_len", math.ceil(longest), "the longest request needs it", "it is served"),)
        if what == "max_model_len" and (s.kv_tokens is None or longest <= s.kv_tokens)
        else ()
    )
    advice = () if changes else ("route such requests to a server with a larger KV cache, or refuse them early",)
    return Answer(4, TITLE, "extreme requests", text, "high", _evidence(s, None), "shorter requests", changes, advice)


def _evidence(s: Situation, demand: Demand | None) -> tuple[str, ...]:
    told = []
    if s.offered_per_s is not None:
        served = "" if s.finished_per_s is None else f", {s.finished_per_s:.3g} finished"
        told.append(f"{s.offered_per_s:.3g} requests/s offered{served}")
    if s.running is not None:
        waiting = "" if s.waiting is None else f", {s.waiting.mean:.3g} wait (at most {s.waiting.most:.0f})"
        told.append(f"{s.running.mean:.3g} requests run (at most {s.running.most:.0f}){waiting}")
    if demand is not None:
        told.append(
            f"KV demand {demand.wanted_tokens:.0f} tokens ({demand.n_in_system:.3g} in the system), pool {s.kv_tokens}"
            f" ({demand.n_fit:.3g} requests of mean length)"
        )
    return (*told, *problems(s))
