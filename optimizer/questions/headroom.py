"""Question 5: should it become faster or steadier, what would either cost, and which limit binds?

Verdicts: `steadier` (something is already beyond its limit), `faster` (a resource stands idle that an objective could
use), `balanced` (one buys the other), `unknown`.
"""

from __future__ import annotations

from optimizer.questions.answer import Answer, Change, unknown
from optimizer.questions.health import problems
from optimizer.questions.physics import is_compute_full
from optimizer.questions.pool import kv_demand
from optimizer.questions.processes import limiting_roles, named
from optimizer.questions.seats import FULL_KV, are_seats_taken, more_seats, seats_of
from optimizer.questions.situation import Situation

TITLE = "faster or steadier?"
IDLE_KV = 0.6
"""Use of the KV cache at its most below which part of it stands idle."""
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


def faster_or_steadier(s: Situation) -> Answer:
    if s.kv_usage is None and s.running is None:
        return unknown(5, TITLE, "running requests and the use of the KV cache")
    bound, found = binding(s), problems(s)
    evidence = tuple(x for x in (bound[1] if bound else None, _slack(s), *found) if x)
    if found:
        return _steadier(s, bound, evidence, found[0])
    if bound is not None and bound[0] == "seats":
        return _more_seats(s, evidence)
    if bound is None and s.load != "saturation":
        text = "no budget binds at this load: the latencies are those of the hardware, and more load would still fit"
        return Answer(5, TITLE, "faster", text, "medium", evidence or _idle(s), "a budget that is full at its most")
    if bound is not None and bound[0] == "cpu":
        text = f"{bound[1]} binds: relieve it first (question 2); until then no budget makes it faster"
        return Answer(5, TITLE, "balanced", text, "medium", evidence, "idle processes")
    text = "one buys the other: more requests at once give throughput and cost ITL, fewer give ITL and cost TTFT"
    return Answer(5, TITLE, "balanced", text, "medium", evidence, "preemptions, or a budget that stands idle")


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
    return Answer(5, TITLE, "steadier", text, "high", evidence, "a load without these problems", changes)


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
