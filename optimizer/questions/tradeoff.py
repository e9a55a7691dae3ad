"""Question 5 across configurations: what the steadiest costs against the fastest, and which limits took others out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from objectives.comparison import Comparison, compare
from objectives.objective import Objective
from objectives.pareto import front
from objectives.titles import title_of
from optimizer.questions.answer import Answer, unknown
from optimizer.questions.headroom import TITLE


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration that was measured."""

    name: str
    values: tuple[float, ...]
    """Of the objectives, in their order."""
    missed: tuple[str, ...] = ()
    """Limits it misses; empty: feasible."""


def fastest_or_steadiest(
    candidates: Sequence[Candidate], objectives: Sequence[Objective], floors: Sequence[float] | None = None,
    reference: Candidate | None = None,
) -> Answer:  # fmt: skip
    """Verdicts: `balanced` (one buys the other), `one for all` (nothing is given up), `unknown` (fewer than two keep
    every limit). `reference`: what runs today, whether it keeps them or not.

    The fastest is the best of the first objective that is maximized, the steadiest of the last that is minimized."""
    kept = [c for c in candidates if not c.missed]
    out = tuple(f"{c.name} misses {', '.join(c.missed)}" for c in candidates if c.missed)
    if not kept:
        return unknown(5, TITLE, "a configuration that keeps every limit")
    if len(kept) == 1:
        return _alone(kept[0], reference, objectives, floors, out)
    on_front = [kept[i] for i in front([c.values for c in kept], objectives, floors)]
    fast, steady = _best(on_front, objectives, "maximize"), _best(on_front, objectives, "minimize")
    lines = tuple(_line(c, fast, objectives, floors) for c in on_front if c is not fast)
    trading = [c for c in on_front if _held(c, fast, objectives, floors).verdict == "trade"]
    if fast is steady and trading:
        steady = trading[0]
    if fast is steady or all(d.verdict == "tie" for d in _held(steady, fast, objectives, floors).deltas):
        text = f"{fast.name} is both the fastest and the steadiest: nothing is given up"
        return Answer(5, TITLE, "one for all", text, "medium", (*lines, *out), "a steadier one that keeps the limits")
    text = f"one buys the other: {_line(steady, fast, objectives, floors)}"
    return Answer(5, TITLE, "balanced", text, "high", (*lines, *out), "one that is best in both beyond the noise")


def _alone(
    only: Candidate, reference: Candidate | None, objectives: Sequence[Objective], floors: Sequence[float] | None,
    out: tuple[str, ...],
) -> Answer:  # fmt: skip
    """One configuration has nothing to be faster or steadier than, but for what runs today."""
    text = f"only {only.name} keeps every limit: nothing to compare with"
    lines = out
    if reference is not None and reference.name != only.name:
        lines = (_line(only, reference, objectives, floors), *out)
        text = f"only {only.name} keeps every limit; {lines[0]}"
    return Answer(5, TITLE, "unknown", text, "unknown", lines, "needs a second configuration that keeps every limit")


def _best(found: Sequence[Candidate], objectives: Sequence[Objective], direction: str) -> Candidate:
    """With no objective of that direction the first."""
    of = [i for i, o in enumerate(objectives) if o.direction == direction]
    if not of:
        return found[0]
    return max(found, key=lambda c: c.values[of[0]]) if direction == "maximize" else min(
        found, key=lambda c: c.values[of[-1]]
    )  # fmt: skip


def _held(a: Candidate, b: Candidate, objectives: Sequence[Objective], floors: Sequence[float] | None) -> Comparison:
    return compare(a.values, b.values, objectives, floors)


def _line(a: Candidate, fast: Candidate, objectives: Sequence[Objective], floors: Sequence[float] | None) -> str:
    told = "; ".join(
        f"{title_of(d.metric)}: " + ("no measurable difference" if d.verdict == "tie" else f"{d.change or 0:+.1%}")
        for d in _held(a, fast, objectives, floors).deltas
    )
    return f"{a.name} against {fast.name}: {told}"
