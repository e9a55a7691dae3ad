"""The five questions about each chosen trial: verdict, confidence, evidence, what would change it, what to try."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from objectives.titles import title_of
from optimizer.errors import UserError
from optimizer.questions.answer import Change
from optimizer.questions.diagnosis import Diagnosis
from optimizer.reporting.report.source import Source
from optimizer.reporting.report.words import number, percent
from optimizer.reporting.study_diagnosis import StudyDiagnosis, diagnose_study
from optimizer.reporting.trial_diagnosis import StudyReader, TrialDiagnosis

MOST_READ = 30
"""Trials read for the study's own answers: some seconds."""
_PREDICTED = {
    "ttft_p99_ms": "P99 TTFT, ms",
    "itl_p99_ms": "P99 ITL, ms",
    "preemptions_per_request": "preemptions per request",
    "requests_per_s_per_gpu": "requests/s/GPU",
}


@dataclass(frozen=True)
class Suggestion:
    """A change worth a trial; figures are simulated, with and without it."""

    argument: str
    value: str
    why: str
    expected: str
    predicted: tuple[tuple[str, str], ...]
    """(figure, `844 -> 780 (-7.6 %)`)"""


@dataclass(frozen=True)
class ServerAnswers:
    """Of one server of a trial."""

    name: str
    diagnosis: Diagnosis
    suggestions: tuple[Suggestion, ...]


@dataclass(frozen=True)
class TrialAnswers:
    trial: int
    title: str
    missed: tuple[str, ...]
    servers: tuple[ServerAnswers, ...]
    failure: str
    advice: tuple[str, ...]
    tried: tuple[str, ...]
    missing: str = ""
    """Why there is no diagnosis."""


def study_answers(source: Source) -> StudyDiagnosis | None:
    """None where nothing was measured. It reads fewer trials than `optimizer.diagnose --study`."""
    if not source.shown:
        return None
    try:
        return diagnose_study(StudyReader(source.folder, source.front, most_predicted=0), most=MOST_READ)
    except UserError:
        return None


def trial_answers(source: Source, titles: Mapping[int, str]) -> list[TrialAnswers]:
    if not source.shown:
        return []
    try:
        reader = StudyReader(source.folder, source.front)
    except UserError as error:
        return [TrialAnswers(-1, "", (), (), "", (), (), str(error))]
    return [_of_trial(reader, m.trial, titles.get(m.trial, "")) for m in source.shown]


def _of_trial(reader: StudyReader, trial: int, title: str) -> TrialAnswers:
    try:
        found = reader.diagnose(trial)
    except UserError as error:
        return TrialAnswers(trial, title, (), (), "", (), (), str(error))
    servers = tuple(ServerAnswers(name, d, tuple(map(_suggestion, d.changes))) for name, d in found.servers.items())
    failure = f"{found.failure.kind}: {found.failure.cause}" if found.failure else ""
    advice = found.failure.advice if found.failure else ()
    return TrialAnswers(trial, title, found.missed, servers, failure, advice, tuple(_tried(found)))


def _tried(found: TrialDiagnosis) -> Iterator[str]:
    for tried in found.tried:
        figures = ", ".join(f"{title_of(k)} {_both(*both)}" for k, both in tried.measured.items())
        yield f"{tried.change.name} = {tried.change.value} was tried as trial {tried.trial}; measured: {figures}"


def _suggestion(change: Change) -> Suggestion:
    predicted = tuple((_PREDICTED.get(k, k), _both(a, b)) for k, (a, b) in change.predicted.items())
    return Suggestion(change.name, str(change.value), change.why, change.expected, predicted)


def _both(now: float, then: float) -> str:
    if number(now) == number(then):
        return f"{number(now)}, unchanged"
    change = f" ({percent(then / now - 1)})" if now else ""
    return f"{number(now)} \N{RIGHTWARDS ARROW} {number(then)}{change}"
