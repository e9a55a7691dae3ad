"""Question 5: should it become faster or steadier, what would either cost, and which limit binds?

Verdicts: `steadier` (something is already beyond its limit), `faster` (a resource stands idle that an objective could
use), `balanced` (one buys the other), `unknown`.
"""

from __future__ import annotations

from optimizer.questions.answer import Answer, Change, unknown
from optimizer.questions.demand import kv_demand
from optimizer.questions.health import problems
from optimizer.questions.situation import Situation

TITLE = "faster or steadier?"
WAITS = "requests wait while memory is free"
FULL_KV, IDLE_KV = 0.95, 0.6
"""Use of the KV cache: at its most above the first it binds; at its most below the second it stands idle."""


def binding(s: Situation) -> tuple[str, str] | None:
    """(which budget, its numbers) that stops one more request from running; None if none does, or nobody knows."""
    seats = s.whole("max_num_active_seqs") or s.whole("max_num_seqs")
    if s.kv_usage is not None and s.kv_usage.most >= FULL_KV:
        return "kv", f"the KV cache was full ({s.kv_usage.most:.0%} at most, {s.kv_usage.mean:.0%} on average)"
    if seats is not None and s.running is not None and s.running.most >= seats:
        return "seats", f"every seat was taken ({s.running.most:.0f} of max_num_seqs {seats})"
    return None


def faster_or_steadier(s: Situation) -> Answer:
    if s.kv_usage is None and s.running is None:
        return unknown(5, TITLE, "running requests and the use of the KV cache")
    bound, found = binding(s), problems(s)
    evidence = tuple(x for x in (bound[1] if bound else None, _slack(s), *found) if x)
    if found:
        return _steadier(s, bound, evidence, found[0])
    if bound is not None and bound[0] == "seats" and (s.kv_usage is None or s.kv_usage.most < FULL_KV):
        return _more_seats(s, evidence)
    if bound is None and s.load != "saturation":
        text = "no budget binds at this load: the latencies are those of the hardware, and more load would still fit"
        return Answer(5, TITLE, "faster", text, "medium", evidence, "a budget that is full at its most")
    text = "one buys the other: more requests at once give throughput and cost ITL, fewer give ITL and cost TTFT"
    return Answer(5, TITLE, "balanced", text, "medium", evidence, "preemptions, or a budget that stands idle")


def _steadier(s: Situation, bound: tuple[str, str] | None, evidence: tuple[str, ...], problem: str) -> Answer:
    changes: tuple[Change, ...] = ()
    demand, seats = kv_demand(s), s.whole("max_num_seqs")
    if s.n_preemptions:
        watermark = s.config.get("watermark")
        if not watermark:
            why = "blocks kept free on admission let running requests grow"
            changes += (Change("watermark", 0.05, why, "fewer preemptions and shorter ITL tails, longer TTFT"),)
        if demand is not None and seats is not None and demand.n_fit < seats:
            why = f"the pool holds {demand.n_fit:.0f} requests of mean length"
            changes += (Change("max_num_seqs", max(int(demand.n_fit), 1), why, "fewer preemptions, a longer queue"),)
    text = f"steadier first: {problem}"
    if bound is not None and bound[0] == "seats" and not s.n_preemptions:
        text += "; seats bind while the KV cache has room, so more seats trade ITL for TTFT"
        changes += (Change("max_num_seqs", 2 * (seats or 1), WAITS, "TTFT falls, ITL rises"),)
    return Answer(5, TITLE, "steadier", text, "high", evidence, "a load without these problems", changes)


def _more_seats(s: Situation, evidence: tuple[str, ...]) -> Answer:
    seats = s.whole("max_num_seqs") or 1
    demand = kv_demand(s)
    most = 2 * seats if demand is None else max(min(2 * seats, int(demand.n_fit)), seats)
    text = "seats bind while the KV cache has room: more seats bring throughput and a shorter TTFT, and cost ITL"
    if most <= seats:
        text = "seats bind, and the pool holds no more requests than there are seats: one buys the other"
        return Answer(5, TITLE, "balanced", text, "medium", evidence, "room in the KV cache")
    change = Change(
        "max_num_seqs", most, "requests wait while memory is free", "throughput rises, TTFT falls, ITL rises"
    )
    return Answer(5, TITLE, "faster", text, "medium", evidence, "a full KV cache", (change,))


def _slack(s: Situation) -> str | None:
    if s.kv_usage is None or s.kv_usage.most >= IDLE_KV:
        return None
    return f"{1 - s.kv_usage.most:.0%} of the KV cache was never used"
