"""Question 3: is it the steady state or the peak that is not healthy?

Verdicts: `healthy` (both), `peak` (steady healthy, stress not), `overloaded` (the steady load itself is not),
`creeping` (memory grows while nothing else does), `broken at once`, `unknown` (nothing was read that trouble shows
in).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optimizer.questions.answer import Answer, Confidence, unknown
from optimizer.questions.health import cure_of, health_of, is_readable, problems, remarks
from optimizer.questions.situation import Situation

TITLE = "steady state or peak?"


@dataclass(frozen=True, slots=True)
class Breakage:
    """When a load first went wrong, and what had just arrived."""

    time_s: float
    sign: str
    arrived: tuple[tuple[float, str, int, int], ...]
    """(arrival in s, tenant, prompt tokens, output tokens asked), the largest first."""

    @property
    def text(self) -> str:
        rows = "; ".join(f"{t:.1f} s {tenant}: {p} + {o} tokens" for t, tenant, p, o in self.arrived)
        return f"{self.sign} at {self.time_s:.1f} s" + (f"; shortly before arrived {rows}" if rows else "")


def steady_or_peak(loads: Sequence[Situation], breakage: Breakage | None = None) -> Answer:
    """`loads`: the loads of one configuration, or the one stretch of a running server that was watched."""
    steady = [s for s in loads if s.load != "stress" and s.load != "saturation"]
    peak = [s for s in loads if s.load == "stress"]
    if not steady:
        return unknown(3, TITLE, "a steady load")
    if not any(is_readable(s) or problems(s) for s in (*steady, *peak)):
        return unknown(3, TITLE, "requests waiting, preemptions, or failures of requests")
    found = [text for s in steady for text in problems(s)]
    evidence = [f"{s.source}: {', '.join(problems(s)) or _well(s)}" for s in (*steady, *peak)]
    evidence += [breakage.text] if breakage else []
    creeping = next((s.memory_trend for s in (*steady, *peak) if s.memory_trend), None)
    if any(health_of(s) == "broken" for s in steady):
        text = "it fails at the steady load already"
        return _answer("broken at once", text, "high", evidence, would=_cure(steady))
    if creeping and len(found) <= 1:
        advice = ("run a soak of hours before relying on it", "report the leak with the vLLM version")
        return _answer("creeping", f"device memory is {creeping}", "medium", evidence, advice)
    if found:
        text = f"the steady load itself is not healthy: {found[0]}"
        return _answer("overloaded", text, "high", evidence, would=_cure(steady))
    if not peak:
        text = "healthy while it was watched; no peak was seen"
        return _answer("healthy", text, "low" if len(loads) == 1 else "medium", evidence)
    if not any(is_readable(s) or problems(s) for s in peak):
        return _answer("healthy", "healthy at the steady load; the peak could not be read", "low", evidence)
    broken = [text for s in peak for text in problems(s)]
    if broken:
        text = f"healthy on average, not at the peak: {broken[0]}"
        keep = ("keep the budgets that survive it, or admit fewer meanwhile",)
        return _answer("peak", text, "high", evidence, keep, f"under the stress load {_cure(peak)}")
    is_whole = all(s.n_failed is not None and s.n_preemptions is not None for s in peak)
    text = "healthy at the steady load and at the peak"
    text += "" if is_whole else ", as far as it was seen: failures or preemptions could not be read"
    return _answer("healthy", text, "high" if is_whole else "low", evidence)


def _well(s: Situation) -> str:
    return "; ".join([health_of(s), *remarks(s)])


def _cure(loads: Sequence[Situation]) -> str:
    return next(cure_of(s) for s in loads if problems(s))


def _answer(
    verdict: str, text: str, confidence: Confidence, evidence: Sequence[str], advice: tuple[str, ...] = (),
    would: str = "",
) -> Answer:  # fmt: skip
    usual = {
        "healthy": "preemptions, failures or a rising queue in either load",
        "creeping": "device memory that stays as it is over hours",
    }
    return Answer(3, TITLE, verdict, text, confidence, tuple(evidence), would or usual[verdict], advice=advice)
