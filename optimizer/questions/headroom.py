"""Question 5: should it become faster or steadier, what would either cost, and which limit binds?

Verdicts: `steadier` (something is already beyond its limit), `faster` (a resource stands idle that an objective could
use), `balanced` (one buys the other, or nothing is to be had before question 2 is settled), `unknown`.
"""

from __future__ import annotations

from optimizer.questions.answer import Answer, Change, Confidence, unknown
from optimizer.questions.health import cure_of, problems, remarks
from optimizer.questions.interference import Spikes
from optimizer.questions.physics import is_compute_full
from optimizer.questions.pool import kv_demand
from optimizer.questions.processes import limiting_roles, named
from optimizer.questions.seats import FULL_KV, are_seats_taken, more_seats, seats_of
from optimizer.questions.situation import Situation

TITLE = "faster or steadier?"
IDLE_KV = 0.6
"""Use of the KV cache at its most below which part of it stands idle."""
SOME_WAIT = 1.0
"""Requests that wait on average, from which on something holds them back."""
FEWER = 0.9
"""Of the most that ran: so many seats are worth a trial where fewer preempted than the pool holds on average."""


def binding(s: Situation) -> tuple[str, str] | None:
    """(which budget, its numbers) that stops one more request from running; None if none does, or nobody knows."""
    if s.kv_usage is not None and s.kv_usage.most >= FULL_KV:
        return "kv", f"the KV cache was full ({s.kv_usage.most:.0%} at most, {s.kv_usage.mean:.0%} on average)"
    if are_seats_taken(s) and s.running is not None:
        return "seats", f"every seat was taken ({s.running.most:.0f} of max_num_seqs {seats_of(s)})"
    if is_compute_full(s):
        return "compute", "the card's arithmetic is full"
    if full := limiting_roles(s):
        return "cpu", f"{named(full)} at a full core"
    return None


def faster_or_steadier(s: Situation, host: Answer | None = None, spikes: Spikes | None = None) -> Answer:
    """`host`: the answer to question 2, which comes first: what waits for a CPU gains nothing by a budget. `spikes`:
    whether the token budget makes the long gaps."""
    if s.kv_usage is None and s.running is None:
        return unknown(5, TITLE, "running requests and the use of the KV cache")
    bound, found = binding(s), problems(s)
    evidence = tuple(x for x in (bound[1] if bound else None, _slack(s), *found, *remarks(s)) if x)
    if found:
        return _steadier(s, bound, evidence, found[0])
    if host is not None and host.verdict in ("cpu", "client"):
        text = f"question 2 comes first: {host.text}; until then no budget makes it faster"
        sure: Confidence = "low" if host.confidence == "low" else "medium"
        return Answer(5, TITLE, "balanced", text, sure, evidence or _idle(s), host.would_change)
    if bound is not None and bound[0] == "seats":
        return _more_seats(s, evidence)
    if bound is None and s.load != "saturation":
        return _nothing_binds(s, evidence or _idle(s), spikes)
    if bound is not None and bound[0] == "cpu":
        text = f"{bound[1]} binds: relieve it first (question 2); until then no budget makes it faster"
        return Answer(5, TITLE, "balanced", text, "medium", evidence, "idle processes")
    text = "one buys the other: more requests at once give throughput and cost ITL, fewer give ITL and cost TTFT"
    return Answer(5, TITLE, "balanced", text, "medium", evidence, "preemptions, or a budget that stands idle")


def _nothing_binds(s: Situation, evidence: tuple[str, ...], spikes: Spikes | None) -> Answer:
    if _waits_for_something(s):
        return _held_back(s, evidence)
    would = f"a budget that is full: KV cache at {FULL_KV:.0%}" + _seats_told(s)
    if spikes is not None and spikes.is_prefill:
        text = (
            "no budget keeps requests out, and prefills make the long gaps of the others: fewer tokens a step"
            " (max_num_batched_tokens) buy ITL with the TTFT of long prompts"
        )
        return Answer(5, TITLE, "balanced", text, "medium", (*evidence, spikes.text), "long gaps beside no prefill")
    if not s.is_alone:
        text = "no budget of its own binds at this load: its latencies are those of a card that it shares"
        return Answer(5, TITLE, "faster", text, "medium", evidence, would)
    text = "no budget binds at this load: the latencies are those of the hardware, and more load would still fit"
    return Answer(5, TITLE, "faster", text, "medium", evidence, would)


def _waits_for_something(s: Situation) -> bool:
    return s.waiting is not None and s.waiting.mean >= SOME_WAIT and (s.waiting.above_zero or 1.0) >= 0.5


def _held_back(s: Situation, evidence: tuple[str, ...]) -> Answer:
    """No budget is seen full, and yet some requests wait all the time."""
    waiting = s.waiting.mean if s.waiting is not None else 0.0
    ran = "" if s.running is None else f" ({s.running.most:.0f} ran at most)"
    room = "" if s.kv_usage is None else f" while the KV cache has room ({s.kv_usage.most:.0%} used at most)"
    if seats_of(s) is None:
        text = f"cannot be said: {waiting:.3g} requests wait{room}: probably for seats{ran}, max_num_seqs is not known"
        advice = ("look up --max-num-seqs in the server's command line: if as many ran, more seats shorten the queue",)
        return Answer(5, TITLE, "unknown", text, "unknown", evidence, "needs max_num_seqs", advice=advice)
    text = f"no budget is full, and {waiting:.3g} requests wait{room}: for room in a step (max_num_batched_tokens),"
    text += " or for bursts to pass"
    return Answer(5, TITLE, "balanced", text, "low", evidence, f"fewer than {SOME_WAIT:g} waiting on average")


def _seats_told(s: Situation) -> str:
    seats = seats_of(s)
    return "" if seats is None else f" or {seats * s.n_replicas:.0f} requests running"


def _steadier(s: Situation, bound: tuple[str, str] | None, evidence: tuple[str, ...], problem: str) -> Answer:
    changes: tuple[Change, ...] = ()
    if s.n_preemptions:
        changes = (*_watermark(s), *_fewer_seats(s))
    text = f"steadier first: {problem}"
    if bound is not None and bound[0] == "seats" and not s.n_preemptions:
        more = more_seats(s)
        text += "; seats bind while the KV cache has room" + (
            ", so more seats trade ITL for TTFT" if more else ", but more of them would only lengthen the steps"
        )
        changes += (more,) if more else ()
    return Answer(5, TITLE, "steadier", text, "high", evidence, cure_of(s), changes)


def _watermark(s: Situation) -> tuple[Change, ...]:
    if s.config.get("watermark"):
        return ()
    why = "blocks kept free on admission let running requests grow"
    return (Change("watermark", 0.05, why, "fewer preemptions and shorter ITL tails, longer TTFT"),)


def _fewer_seats(s: Situation) -> tuple[Change, ...]:
    demand, seats = kv_demand(s), s.whole("max_num_seqs")
    if demand is None or seats is None:
        return ()
    n_fit = demand.n_fit / s.n_replicas
    if s.running is not None and s.running.most / s.n_replicas <= n_fit:
        n_fit = FEWER * s.running.most / s.n_replicas
    if n_fit >= seats:
        return ()
    why = f"the pool holds {demand.n_fit:.0f} requests of mean length"
    return (Change("max_num_seqs", max(int(n_fit), 1), why, "fewer preemptions, a longer queue"),)


def _more_seats(s: Situation, evidence: tuple[str, ...]) -> Answer:
    change = more_seats(s)
    if change is None:
        text = "seats bind, but the pool holds no more requests, or more would only lengthen steps: one buys the other"
        return Answer(5, TITLE, "balanced", text, "medium", evidence, "room in the KV cache, an idle card")
    text = "seats bind while the KV cache has room: more seats bring throughput and a shorter TTFT, and cost ITL"
    return Answer(5, TITLE, "faster", text, "medium", evidence, "a full KV cache", (change,))


def _slack(s: Situation) -> str | None:
    if s.kv_usage is None or s.kv_usage.most >= IDLE_KV:
        return None
    return f"{1 - s.kv_usage.most:.0%} of the KV cache was never used"


def _idle(s: Situation) -> tuple[str, ...]:
    return () if s.running is None else (f"{s.running.most:.0f} requests ran at most",)
