"""The answer first: what to do, in a few sentences; then the picks. Honest where there is none, or not yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optimizer.reporting.front_table import reference_name
from optimizer.reporting.report.picks import Pick, pick_of
from optimizer.reporting.report.source import Source
from optimizer.reporting.report.words import capital, limit_text, small


@dataclass(frozen=True)
class Answer:
    headline: str
    sentences: tuple[str, ...]
    picks: tuple[Pick, ...]
    reference: Pick | None
    reference_name: str


def answer_of(source: Source) -> Answer:
    front = source.front
    picks = tuple(pick_of(m, source) for m in source.picked)
    reference = pick_of(front.reference, source) if front.reference is not None else None
    name = reference_name(front)
    headline, sentences = _said(source, picks, name)
    return Answer(headline, sentences, picks, reference, name)


def _said(source: Source, picks: Sequence[Pick], reference: str) -> tuple[str, tuple[str, ...]]:
    n_done = sum(t.is_finished for t in source.trials)
    if not n_done:
        return "Nothing has been measured yet", (_unfinished(source, 0),)
    if not picks:
        return _without_front(source, n_done)
    headline, told = _recommended(source, picks, reference)
    return headline, tuple(x for x in (*told, _unfinished(source, n_done)) if x)


def _recommended(source: Source, picks: Sequence[Pick], reference: str) -> tuple[str, tuple[str, ...]]:
    """The first pick, unless the reference keeps every limit and is as good."""
    first, current = picks[0], source.front.reference
    told = (f"It {first.meaning}. {first.sentence}", _held(first))
    start = f"Start with trial {first.trial}: {small(first.title)}"
    if first.is_reference:
        rest = "The other picks gain in one objective and pay in another." if len(picks) > 1 else ""
        return f"Keep {reference}: it is the best balance that was found", (rest,)
    if current is not None and not current.is_feasible:
        missed = ", ".join(limit_text(limit) for limit, _ in current.missed)
        return start, (*told, f"{capital(reference)} misses a limit: {missed}.")
    if not any(f.verdict in ("better", "worse") for f in first.figures):
        gaining = any(f.verdict == "better" for p in picks for f in p.figures)
        but = "unless one objective matters most to you" if gaining else "nothing beats it beyond the noise"
        text = f"Trial {first.trial} {first.meaning}. {first.sentence}"
        return f"Keep {reference}{', ' if gaining else ': '}{but}", (text,)
    return start, told


def _without_front(source: Source, n_done: int) -> tuple[str, tuple[str, ...]]:
    n_measured = sum(t.values is not None for t in source.trials)
    if not n_measured:
        text = "None of them came up and served its load: read what failed, and what to do about it, under Failures."
        headline = f"None of {n_done} configurations could be measured" if n_done > 1 else "The one trial failed"
        return headline, tuple(x for x in (text, _unfinished(source, n_done)) if x)
    text = (
        f"{n_measured} of {n_done} configurations were measured, and each misses at least one limit. The nearest are"
        " listed below with the limit that blocks them. Loosen that limit, lower the rate (--rate), take more or"
        " larger GPUs, or turn away the longest requests; the diagnosis of the nearest one says which."
    )
    return "No configuration keeps every limit", tuple(x for x in (text, _unfinished(source, n_done)) if x)


def _unfinished(source: Source, n_done: int) -> str:
    if source.status == "finished":
        return ""
    total = source.manifest.n_trials
    how = "is still running" if source.status == "running" else "was interrupted"
    text = f"The study {how}: {n_done} of {total} trials are done, so this answer may change"
    if source.calibration is None:
        text = f"The study {how} while its reference was measured: no trial has begun"
    return text + ("." if source.status == "running" else "; the command that goes on with it is under Commands.")


def _held(pick: Pick) -> str:
    if pick.is_confirmed:
        where = " on traffic that the search never saw" if "held-out" in pick.confirmation else ""
        return f"Measured again{where}, {f'it kept every limit, but {pick.unseen}' if pick.unseen else 'it held'}."
    doubt = "It is not confirmed by a second measurement: measure it again before you deploy it."
    return "" if pick.is_reference else doubt
