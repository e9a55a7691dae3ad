"""A whole study diagnosed: the five questions over all its trials, and what became of those without figures.

A study of thousands of trials is not read whole: the front, the reference, the nearest misses and an even choice of the
rest stand for it, and the text says how many were read.
"""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from optimizer.errors import UserError
from optimizer.questions.answer import Answer, Confidence, unknown
from optimizer.questions.bound import TITLE as BOUND
from optimizer.questions.bound import Point, batch_response
from optimizer.questions.demand import TITLE as DEMAND
from optimizer.questions.diagnosis import Diagnosis
from optimizer.questions.host import TITLE as HOST
from optimizer.questions.peak import TITLE as PEAK
from optimizer.questions.words import answer_lines
from optimizer.reporting.member import Front, FrontMember
from optimizer.reporting.trial_diagnosis import BROKEN, Failure, StudyReader, TrialDiagnosis

MOST_READ = 60
"""Trials that are read: 0.2 s each for a simulated one of two instances."""
N_NEAREST = 5
UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)
"""What reading a damaged record may raise."""
RUNNING, TOKENS = "saturation_running_mean", "saturation_output_tokens_per_s_per_gpu"
CLEAR = 0.8
"""Share of the servers that agree, from which on a verdict is the study's and not only some trials'."""


@dataclass(frozen=True)
class FailureKind:
    """Trials that failed alike. `advice` is that of the first."""

    kind: str
    trials: tuple[int, ...]
    advice: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "trials": list(self.trials), "advice": list(self.advice)}


@dataclass(frozen=True)
class StudyDiagnosis:
    study: str
    is_simulated: bool
    n_trials: int
    n_feasible: int
    n_read: int
    answers: tuple[Answer, ...]
    failures: tuple[FailureKind, ...]
    limits: tuple[tuple[str, int], ...]
    """(limit, trials with figures that miss it), the most first."""
    unread: tuple[tuple[int, str], ...] = ()
    """(trial, why) of those chosen whose records cannot be read."""

    def to_json(self) -> dict[str, Any]:
        return {
            "study": self.study,
            "is_simulated": self.is_simulated,
            "n_trials": self.n_trials,
            "n_feasible": self.n_feasible,
            "n_read": self.n_read,
            "questions": [a.to_json() for a in self.answers],
            "failures": [f.to_json() for f in self.failures],
            "unread": [{"trial": number, "why": why} for number, why in self.unread],
            "missed_limits": [{"limit": name, "n_trials": n} for name, n in self.limits],
        }


def diagnose_study(
    reader: StudyReader, tell: Callable[[int, int], None] = lambda k, n: None, most: int = MOST_READ
) -> StudyDiagnosis:
    """`most`: trials that are read; `tell` is told how many of how many have been. Make the reader with
    `most_predicted=0`: predictions belong to single trials."""
    front, chosen, read = reader.front, _chosen(reader.front, most), list[TrialDiagnosis]()
    unread: list[tuple[int, str]] = []
    for k, member in enumerate(chosen):
        tell(k, len(chosen))
        try:
            read.append(reader.diagnose(member.trial))
        except (UserError, *UNREADABLE) as error:
            unread.append((member.trial, str(error).splitlines()[0] if str(error) else type(error).__name__))
    if chosen and not read:
        raise UserError(f"--study {front.meta.study}: no trial's records can be read ({unread[0][1]})")
    measured = [(d.trial, s) for d in read for s in d.servers.values()]
    missed = Counter(name for m in front.trials if m.values is not None for name, _ in m.missed)
    return StudyDiagnosis(
        study=front.meta.study,
        is_simulated=front.meta.is_simulated,
        n_trials=len(front.trials),
        n_feasible=sum(m.is_feasible for m in front.trials),
        n_read=len(read),
        answers=(
            _bound(front, measured),
            _tally(2, HOST, measured),
            _tally(3, PEAK, measured),
            _load(front, reader.best_per_s),
            _kept(reader.faster_or_steadier()),
        ),
        failures=_failures(reader, read),
        limits=tuple(missed.most_common()),
        unread=tuple(unread),
    )


def _chosen(front: Front, most: int = MOST_READ) -> list[FrontMember]:
    """In the order of their numbers."""
    if len(front.trials) <= most:
        return list(front.trials)
    first = [m for m in (front.reference, *front.members, *front.nearest_misses(N_NEAREST)) if m is not None]
    kept = {m.trial: m for m in first[:most]}
    rest = [m for m in front.trials if m.trial not in kept]
    n = most - len(kept)
    kept |= {m.trial: m for m in (rest[i * len(rest) // n] for i in range(n))} if n else {}
    return [kept[number] for number in sorted(kept)]


def _bound(front: Front, measured: Sequence[tuple[int, Diagnosis]]) -> Answer:
    """By the trials' own verdicts, with the best throughput at each concurrency beside them."""
    counted = _tally(1, BOUND, measured)
    best: dict[float, float] = {}
    for m in front.trials:
        running, tokens = m.metrics.get(RUNNING), m.metrics.get(TOKENS)
        if running and tokens:
            at = float(f"{running:.2g}")
            best[at] = max(best.get(at, 0.0), tokens)
    response = batch_response([Point(at, tokens) for at, tokens in best.items()])
    if response is None:
        return counted
    flat = response.saturates_at
    told = "it still grows with the largest batch tried" if flat is None else f"flat from about {flat:.3g} at once"
    evidence = (*counted.evidence, f"best throughput a GPU by requests running at once: {told} ({response.text})")
    return Answer(1, BOUND, counted.verdict, counted.text, counted.confidence, evidence, counted.would_change)


def _tally(question: int, title: str, measured: Sequence[tuple[int, Diagnosis]]) -> Answer:
    """The verdict of most servers, and who says otherwise."""
    known = [(trial, d.answers[question - 1]) for trial, d in measured]
    known = [(trial, a) for trial, a in known if a.verdict != "unknown"]
    if not known:
        return unknown(question, title, "a trial with figures that could be judged")
    if len(known) == 1:
        trial, only = known[0]
        return replace(only, evidence=(f"trial {trial}, the only one measured", *only.evidence))
    counts = Counter(a.verdict for _, a in known)
    (verdict, n), *others = counts.most_common()
    evidence = tuple(_row(v, k, len(known), [t for t, a in known if a.verdict == v]) for v, k in counts.most_common())
    if any(k == n for _, k in others):
        text = f"mixed: as many say {' as '.join(v for v, k in counts.most_common() if k == n)} ({_servers(known)})"
        return Answer(question, title, "mixed", text, "low", evidence, f"{CLEAR:.0%} of them with one verdict")
    typical = next(a for _, a in known if a.verdict == verdict)
    rated = Counter(a.confidence for _, a in known if a.verdict == verdict)
    confidence: Confidence = rated.most_common(1)[0][0] if n >= CLEAR * len(known) else "low"
    most = f"in all {_servers(known)}: " if n == len(known) else f"{verdict} in {n} of {_servers(known)}, e.g.: "
    return Answer(question, title, verdict, most + typical.text, confidence, evidence, typical.would_change)


def _servers(known: Sequence[tuple[int, Answer]]) -> str:
    n_trials = len({trial for trial, _ in known})
    each = len(known) / n_trials
    return f"{len(known)} trials" if each == 1 else f"{len(known)} servers ({each:.3g} per trial)"


def _row(verdict: str, n: int, of: int, trials: Sequence[int]) -> str:
    return f"{verdict}: {n} of {of} ({_named(list(dict.fromkeys(trials)))})"


def _named(trials: Sequence[int]) -> str:
    shown = ", ".join(map(str, trials[:8])) + (", …" if len(trials) > 8 else "")
    return f"{'trial' if len(trials) == 1 else 'trials'} {shown}"


def _load(front: Front, best_per_s: float | None) -> Answer:
    """R against what the best setting carries when it is saturated."""
    rate, kept = front.meta.rate_per_s, [m for m in front.trials if m.is_feasible]
    if rate is None or best_per_s is None:
        return unknown(4, DEMAND, "the steady rate and a saturated trial")
    evidence = (
        f"R is {rate:.3g} requests/s; saturated, the best setting seen carries {best_per_s:.3g} on all its GPUs",
        f"{len(kept)} of {len(front.trials)} trials keep every limit at R",
    )
    reference = front.reference
    if kept and reference is not None and not reference.is_feasible:
        text = (
            f"a matter of parameters: {reference.label or 'the reference'} misses a limit,"
            f" {len(kept)} {'other keeps' if len(kept) == 1 else 'others keep'} all"
        )
        would = f"{reference.label or 'the reference'} measured again and keeping {_first_missed(reference)}"
        return Answer(4, DEMAND, "parameters", text, "high", evidence, would)
    if kept:
        text = "the load fits: settings that keep every limit were found, and the reference is one of them"
        return Answer(4, DEMAND, "fits", text, "high", evidence, f"a rate nearer {best_per_s:.3g} requests/s")
    text = "no setting tried keeps every limit at R: another rate, more cards, or a limit that is looser"
    confidence: Confidence = "high" if best_per_s < rate else "medium"
    advice = ("look at the rate that would survive and the caps that the run printed, or add replicas",)
    return Answer(
        4, DEMAND, "workload", text, confidence, evidence, "one setting that keeps every limit", advice=advice
    )


def _first_missed(member: FrontMember) -> str:
    return member.missed[0][0] if member.missed else "every limit"


def _kept(answer: Answer) -> Answer:
    """Without a line for every trial that misses a limit, which are counted by limit, nor one that the text has."""
    return replace(answer, evidence=tuple(x for x in answer.evidence if " misses " not in x and x not in answer.text))


def _failures(reader: StudyReader, read: Sequence[TrialDiagnosis]) -> tuple[FailureKind, ...]:
    """Of every trial without figures, also of those that were not chosen: a failure is cheap to read."""
    known = {d.trial for d in read}
    rest = [m.trial for m in reader.front.trials if m.values is None and m.trial not in known]
    more = [d for d in (_failed(reader, trial) for trial in rest) if d is not None]
    read = sorted([*read, *more], key=lambda d: d.trial)
    by_kind: dict[str, list[tuple[int, Failure]]] = {}
    for d in read:
        if d.failure is not None:
            by_kind.setdefault(d.failure.kind, []).append((d.trial, d.failure))
    rows = sorted(by_kind.items(), key=lambda item: -len(item[1]))
    return tuple(FailureKind(kind, tuple(t for t, _ in found), found[0][1].advice) for kind, found in rows)


def _failed(reader: StudyReader, trial: int) -> TrialDiagnosis | None:
    try:
        return reader.diagnose(trial)
    except (UserError, *UNREADABLE):
        return None


def study_exit_code(found: StudyDiagnosis) -> int:
    """0: some configuration keeps every limit; 1: none does; 4: nothing could be measured at all."""
    if found.n_feasible:
        return 0
    return BROKEN if all(a.verdict == "unknown" for a in found.answers[:3]) else 1


def study_text(found: StudyDiagnosis) -> str:
    """For people."""
    simulated = " (simulated)" if found.is_simulated else ""
    read = "" if found.n_read == found.n_trials else f"; {found.n_read} of them read here"
    lines = [f"study {found.study}{simulated}: {found.n_feasible} of {found.n_trials} trials keep every limit{read}"]
    lines += [line for answer in found.answers for line in answer_lines(answer)]
    lines += [
        f"  limit missed by {n} {'trial' if n == 1 else 'trials'} with figures: {name}" for name, n in found.limits
    ]
    for kind in found.failures:
        lines.append(f"  failed as {kind.kind}: {len(kind.trials)} ({_named(kind.trials)})")
        lines += [f"    {n}. {text}" for n, text in enumerate(kind.advice, 1)]
    lines += [f"  trial {number} cannot be read: {why}" for number, why in found.unread]
    return "\n".join([*lines, "  one trial in detail: --trial N"])
