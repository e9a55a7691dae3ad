"""Question 4: can parameters mend it, or is it the workload?

Verdicts: `fits`, `parameters` (the demand fits what the best setting seen carries), `workload` (no setting seen, or
none possible, carries it), `extreme requests` (some can never be served as they are), `unknown`.

Demand for KV cache by Little's law: requests in the system, running and waiting together, are rate times latency; each
holds its prompt and on average half its answer while it runs, and all of both at its end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from optimizer.questions.achievable import achievable
from optimizer.questions.answer import Answer, Change, Confidence, unknown
from optimizer.questions.bound import Response
from optimizer.questions.health import is_queue_growing, is_queue_rising, is_readable, problems, remarks, waits
from optimizer.questions.physics import is_compute_full
from optimizer.questions.pool import Demand, attainable_tokens, kv_demand, larger_pool, total_tokens
from optimizer.questions.processes import limiting_roles, named
from optimizer.questions.seats import FULL_KV, are_seats_taken, more_seats, seats_of
from optimizer.questions.situation import Situation

TITLE = "parameters or workload?"
FULL_POOL = 0.9
NEARLY = 0.9
"""Of a pool that was seen full: demand is a mean over the time watched, and a queue that grows began at nothing."""
CLOSE = 0.1
"""Nearer to what is missing, a simulated gain does not decide."""
FEW_WAIT = 2.0
"""Requests that wait on average while every seat is taken: no passing burst."""
OWN_PREFILL_SHARE, OWN_PREFILL_MS = 0.7, 1000.0
"""Of a long time to first token, the prompt's own prefill: nothing waits, the prompt is long."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What other configurations did under the same loads."""

    n_kept: int
    """That keep every limit; at least one."""
    told: str = ""
    """In what they differ from this one."""
    changes: tuple[Change, ...] = ()


def parameters_or_workload(
    s: Situation, best_per_s: float | None = None, response: Response | None = None, elsewhere: Elsewhere | None = None
) -> Answer:
    """`best_per_s`: requests per second that the best configuration seen carries, where others were measured.
    `response`: how throughput answered to more requests at once."""
    if (extreme := _extreme(s)) is not None:
        return extreme
    if s.client_fault:
        return unknown(4, TITLE, f"a load generator that keeps up ({s.client_fault})")
    demand, found = kv_demand(s), problems(s)
    is_carried = best_per_s is not None and s.offered_per_s is not None
    if not found:
        return _fits(s, demand)
    if elsewhere is not None:
        return _kept_elsewhere(s, demand, elsewhere)
    if best_per_s is not None and s.offered_per_s is not None and s.offered_per_s > best_per_s:
        return _beyond_best(s, s.offered_per_s, best_per_s, demand)
    if demand is not None and not is_carried and _is_beyond_pool(s, demand):
        return _beyond_pool(s, demand)
    if is_carried:
        text = f"the best setting seen carries {best_per_s:.3g} requests/s, more than offered: a matter of parameters"
        would = f"a best setting that carries less than {s.offered_per_s or 0:.3g} requests/s"
        return Answer(4, TITLE, "parameters", text, "high", _evidence(s, demand), would)
    if _queues(s) and not _is_flat(s, response) and (simulated := _by_simulation(s, demand)) is not None:
        return simulated
    if _is_flat(s, response) or (_queues(s) and is_compute_full(s)):
        return _full_card(s, demand, response)
    if _queues(s):
        return _queue(s, demand)
    return _without_queue(s, demand, found)


def _kept_elsewhere(s: Situation, demand: Demand | None, elsewhere: Elsewhere) -> Answer:
    """What others carry is no matter of the load."""
    n = elsewhere.n_kept
    who = "another trial keeps" if n == 1 else f"{n} other trials keep"
    text = f"a matter of parameters: {who} every limit under the same load{elsewhere.told}"
    would = "no other trial that keeps every limit"
    return Answer(4, TITLE, "parameters", text, "high", _evidence(s, demand), would, elsewhere.changes)


def _beyond_best(s: Situation, offered_per_s: float, best_per_s: float, demand: Demand | None) -> Answer:
    text = (
        f"{offered_per_s:.3g} requests/s are offered and the best setting seen carries {best_per_s:.3g}:"
        " parameters cannot fix it"
    )
    advice = (f"add replicas ({math.ceil(offered_per_s / best_per_s)} for this rate), or admit fewer requests",)
    would = "a setting that carries the rate offered"
    return Answer(4, TITLE, "workload", text, "high", _evidence(s, demand), would, advice=advice)


def _fits(s: Situation, demand: Demand | None) -> Answer:
    if not is_readable(s):
        return unknown(4, TITLE, "the load offered, lengths of requests and the size of the KV cache")
    text = "the load fits: what arrives is served"
    advice: tuple[str, ...] = ()
    if (own_ms := _own_prefill_ms(s)) is not None:
        text += f"; its time to first token ({own_ms:.0f} ms) is the prefill of its own long prompts, no queue"
        advice = ("shorter prompts, shared prefixes, more GPUs a replica or a faster card; no budget shortens it",)
    confidence: Confidence = "high" if s.is_sustained else "medium"
    if told := remarks(s):
        text, confidence = f"the load fits: {told[0]}", "medium"
    elif _is_on_the_brink(s):
        text += ", so far: some requests wait already; a longer load would tell"
        confidence = "low"
    would = "a queue that rises, or fewer requests finished than offered"
    return Answer(4, TITLE, "fits", text, confidence, _evidence(s, demand), would, advice=advice)


def _is_on_the_brink(s: Situation) -> bool:
    """More arrived than ended, or as many wait as run, though no limit was passed in the time watched."""
    slope = s.waiting.slope_per_s if s.waiting is not None else None
    is_behind = bool(s.offered_per_s and s.finished_per_s and s.offered_per_s > (1 + CLOSE) * s.finished_per_s)
    is_held_back = are_seats_taken(s) or (seats_of(s) is None and not s.is_sustained)
    is_seatless = is_held_back and s.waiting is not None and s.waiting.mean >= FEW_WAIT
    return waits(s) or is_queue_growing(s) or is_seatless or (is_behind and slope is not None and slope > 0)


def _own_prefill_ms(s: Situation) -> float | None:
    if s.ttft_ms is None or s.ttft_ms.mean is None or s.prefill_mean_s is None or s.ttft_ms.mean < OWN_PREFILL_MS:
        return None
    return s.ttft_ms.mean if 1e3 * s.prefill_mean_s > OWN_PREFILL_SHARE * s.ttft_ms.mean else None


def _queues(s: Situation) -> bool:
    """Whether the trouble is that requests wait: an unsustained rate means that, too."""
    return s.is_sustained is False or waits(s) or (s.queue_mean_s or 0.0) > 1.0


def _by_simulation(s: Situation, demand: Demand | None) -> Answer | None:
    """Whether the best budgets carry what is offered: what they gain by simulation, held against what is missing."""
    needed = _times_more(s)
    found = achievable(s) if needed is not None and not limiting_roles(s) else None
    if found is None or needed is None:
        return None
    told = f"{needed:.2g} times what it serves is offered; by simulation the best budgets serve {found.gain:.2g} times"
    confidence: Confidence = "low" if abs(found.gain / needed - 1) < CLOSE else "medium"
    evidence, would = (*_evidence(s, demand), f"predicted: {told}"), "a trial of the best budgets that serves otherwise"
    if found.gain >= needed:
        text = f"{told}: a matter of parameters"
        return Answer(4, TITLE, "parameters", text, confidence, evidence, would, found.changes)
    text = f"{told}: parameters cannot fix it"
    advice = (f"add replicas ({math.ceil(needed / found.gain)} for this rate), or admit fewer requests",)
    return Answer(4, TITLE, "workload", text, confidence, evidence, would, found.changes, advice)


def _times_more(s: Situation) -> float | None:
    """What arrives over what is served, where it is more; None where the queue only stands, or nobody knows."""
    if not s.finished_per_s:
        return None
    arriving = s.offered_per_s
    if arriving is None and is_queue_rising(s) and s.waiting is not None and s.waiting.slope_per_s is not None:
        arriving = s.finished_per_s + s.waiting.slope_per_s
    return arriving / s.finished_per_s if arriving is not None and arriving > s.finished_per_s else None


def _is_flat(s: Situation, response: Response | None) -> bool:
    at = response.saturates_at if response is not None else None
    return at is not None and s.running is not None and s.running.mean > at and not limiting_roles(s)


def _full_card(s: Situation, demand: Demand | None, response: Response | None) -> Answer:
    at = response.saturates_at if response is not None else None
    text = "the card's arithmetic is full: no scheduler setting makes it serve more, requests only wait"
    if _is_flat(s, response) and at is not None and response is not None:
        text = f"throughput is flat from about {at:.3g} requests at once on: more only wait, and no scheduler setting"
        text += " raises it"
    cap = "" if at is None else f" near {at:.3g} requests at once"
    advice = (f"cap admission{cap}, or add replicas (or a faster card, a smaller or quantised model)",)
    told = (*_evidence(s, demand), *((response.text,) if response is not None else ()))
    return Answer(4, TITLE, "workload", text, "medium", told, "a setting that serves more", advice=advice)


def _queue(s: Situation, demand: Demand | None) -> Answer:
    """Requests wait, and neither the pool nor the card's arithmetic is what they wait for, as far as seen."""
    full, would = limiting_roles(s), "more in the system than the KV cache holds, or a card that is full"
    if are_seats_taken(s):
        text = "requests wait for a seat while the KV cache has room: a matter of budgets, not of the load"
        change = more_seats(s)
        changes = (change,) if change else ()
        return Answer(4, TITLE, "parameters", text, "medium", _evidence(s, demand), would, changes)
    if full:
        text = f"requests wait for {named(full)}, not for memory: see question 2"
        return Answer(4, TITLE, "parameters", text, "low", _evidence(s, demand), would)
    if demand is None:
        return unknown(4, TITLE, "what other settings carry, or the size of the KV cache")
    text = "requests wait while the KV cache has room: a matter of budgets, not of the load"
    return Answer(4, TITLE, "parameters", text, "low", _evidence(s, demand), would)


def _without_queue(s: Situation, demand: Demand | None, found: tuple[str, ...]) -> Answer:
    if s.n_preemptions and any("preemptions" in text for text in found):
        text = "nothing queues, but the KV cache fills at moments: a matter of budgets (see the preemption checklist)"
        return Answer(4, TITLE, "parameters", text, "medium", _evidence(s, demand), "more wanted than the pool holds")
    return unknown(4, TITLE, f"a cause that is neither the load nor a budget ({found[0]})")


def _is_beyond_pool(s: Situation, demand: Demand) -> bool:
    """More is wanted than the pool holds, and it is the pool that makes it wait: not seats, with blocks to spare."""
    is_pool_full = s.kv_usage is None or s.kv_usage.most >= FULL_POOL
    was_full = s.kv_usage is not None and s.kv_usage.most >= FULL_KV
    least = (NEARLY if was_full else 1.0) * (s.kv_tokens or math.inf)
    return demand.wanted_tokens > least and is_pool_full and _queues(s)


def _beyond_pool(s: Situation, demand: Demand) -> Answer:
    larger, most = larger_pool(s, demand.wanted_tokens), attainable_tokens(s)
    if larger is not None and most is not None and most >= demand.wanted_tokens:
        text = (
            f"the load exceeds the KV cache as it is set ({s.kv_tokens} tokens for {demand.n_in_system:.0f} requests of"
            f" {total_tokens(s):.0f}), and the card has room for about {most}: a matter of parameters"
        )
        return Answer(4, TITLE, "parameters", text, "medium", _evidence(s, demand), "a card without room", (larger,))
    n_fit = int(demand.n_fit)
    text = (
        f"the load exceeds the KV cache: {s.kv_tokens} tokens hold about {n_fit} requests of {total_tokens(s):.0f}"
        f" tokens, {demand.n_in_system:.0f} are in the system: parameters cannot fix it"
        + ("" if s.is_alone else ", unless the servers beside it give memory away")
    )
    seats = s.whole("max_num_seqs")
    changes: tuple[Change, ...] = (larger,) if larger is not None else ()
    if seats is not None and seats > n_fit:
        changes += (
            Change("max_num_seqs", max(n_fit, 1), "more cannot be held at once", "preemptions fall, the queue stays"),
        )
    advice = (f"cap admission at about {n_fit} requests at once, or add replicas (or a card with more memory)",)
    would = f"at most {n_fit} requests at once, or shorter ones"
    sure: Confidence = "high" if s.is_alone else "medium"
    return Answer(4, TITLE, "workload", text, sure, _evidence(s, demand), would, changes, advice)


def _extreme(s: Situation) -> Answer | None:
    longest = s.totals.longest if s.totals is not None else None
    if longest is None:
        return None
    limit = s.whole("max_model_len")
    pool = s.kv_tokens / s.n_replicas if s.kv_tokens else math.inf
    room = min(pool, limit or math.inf)
    if longest <= room:
        return None
    what = "max_model_len" if limit is not None and room == limit else "the whole KV cache"
    text = f"the longest request wants {longest:.0f} tokens, {what} is {room:.0f}: no scheduler setting can serve it"
    changes = (
        (Change("max_model_len", math.ceil(longest), "the longest request needs it", "it is served"),)
        if what == "max_model_len" and longest <= pool
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
        waiting = "" if s.waiting is None else f", {_few(s.waiting.mean)} wait (at most {s.waiting.most:,.0f})"
        told.append(f"{_few(s.running.mean)} requests run (at most {s.running.most:,.0f}){waiting}")
    if demand is not None:
        told.append(
            f"KV demand {demand.wanted_tokens:.0f} tokens ({demand.n_in_system:.3g} in the system), pool {s.kv_tokens}"
            f" ({demand.n_fit:.3g} requests of mean length)"
        )
    return (*told, *problems(s), *remarks(s))


def _few(n: float) -> str:
    return f"{n:.3g}" if n < 1000 else f"{n:,.0f}"
