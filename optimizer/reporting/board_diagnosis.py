"""The diagnosis of the picks and of the reference in short, for the notes in optuna-dashboard.

It must cost little at the end of a study: predictions are simulated for the knee and the reference only, and few.
`python -m optimizer.diagnose` gives the evidence and all predictions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from optimizer.errors import OptimizerError
from optimizer.questions.answer import Change
from optimizer.questions.diagnosis import Diagnosis
from optimizer.reporting.front_table import pick_titles
from optimizer.reporting.member import Front, FrontMember
from optimizer.reporting.trial_diagnosis import StudyReader, TrialDiagnosis
from optimizer.study.board_text import escape
from optimizer.study.folder import StudyFolder

MOST_PREDICTED = 1
"""Changes a server that are simulated here: two simulations of up to 600 requests."""
MAX_CHANGES = 3
_TROUBLE = (OptimizerError, ArithmeticError, LookupError, ValueError)
"""A folder that cannot be read, figures that nobody foresaw: at the end of a study its answer comes first."""
_log = logging.getLogger(__name__)


def diagnoses(folder: StudyFolder, front: Front) -> dict[int, str]:
    """trial -> Markdown. A trial that cannot be read is left out, and said in the log."""
    found = {}
    try:
        quick, slow = StudyReader(folder, most_predicted=0), StudyReader(folder, most_predicted=MOST_PREDICTED)
    except _TROUBLE as error:
        _log.warning("no diagnosis in optuna-dashboard: %s", error)
        return {}
    for member in _told(front):
        reader = slow if _is_first(member, front) else quick
        try:
            found[member.trial] = "\n".join(_lines(reader.diagnose(member.trial))).strip()
        except _TROUBLE as error:
            _log.warning("no diagnosis of trial %d in optuna-dashboard: %s", member.trial, error)
    return found


def study_diagnosis(told: Mapping[int, str], front: Front) -> str:
    """The knee and the reference; the other picks' stand in their own notes."""
    parts = [f"{_title(m, front)}\n\n{told[m.trial]}" for m in _told(front) if m.trial in told and _is_first(m, front)]
    others = [m for m in _told(front) if m.trial in told and not _is_first(m, front)]
    if others:
        numbers = ", ".join(str(m.trial) for m in others)
        what = f"note of trial {numbers} says" if len(others) == 1 else f"notes of trials {numbers} say"
        parts.append(f"The {what} the same of {'it' if len(others) == 1 else 'them'}.")
    return "\n\n".join(parts)


def _told(front: Front) -> list[FrontMember]:
    """The knee first, then the other picks, then the reference."""
    picked = sorted((m for m in front.members if m.picks), key=lambda m: "knee" not in m.picks)
    reference = front.reference
    return picked if reference is None or reference in picked else [*picked, reference]


def _is_first(member: FrontMember, front: Front) -> bool:
    return "knee" in member.picks or member is front.reference


def _title(member: FrontMember, front: Front) -> str:
    names = [pick_titles(member, front)] if member.picks else []
    names += [f"reference: {member.label}" if member.label else "reference"] if member is front.reference else []
    return f"**Trial {member.trial}** ({', '.join(names)})"


def _lines(found: TrialDiagnosis) -> Iterator[str]:
    for name, server in found.servers.items():
        yield f"*{escape(name)}*: {server.health}"
        yield from (f"* {line}" for line in _server_lines(server))
        yield ""
    yield from (f"* Tried: {escape(tried.text)}" for tried in found.tried)


def _server_lines(server: Diagnosis) -> Iterator[str]:
    for answer in server.answers:
        yield f"{answer.title[:1].upper()}{answer.title[1:]} **{escape(answer.text)}** ({answer.confidence})"
    causes = [line.name for line in server.checklist.lines if line.verdict == "cause"]
    why = f"; cause by the checklist: {', '.join(causes)}" if causes and server.checklist.is_preempting else ""
    yield escape(f"{server.checklist.text[:1].upper()}{server.checklist.text[1:]}{why}")
    yield from (f"Worth a trial: {escape(_change(change))}" for change in server.changes[:MAX_CHANGES])
    yield from (f"Mind: {escape(text)}" for text in server.notes)


def _change(change: Change) -> str:
    """A size is marked as simulated by the change itself; a direction is here."""
    expected = f" (predicted, not simulated: {change.expected})" if change.expected and not change.predicted else ""
    return change.text + expected
