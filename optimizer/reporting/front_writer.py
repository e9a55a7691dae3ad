"""FrontWriter: the front of a running study, kept up to date as front.json, exports and the dashboard's picture."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from objectives.hypervolume import Axes
from optimizer.reporting.answer import BASELINE_ATTRIBUTE, assemble
from optimizer.reporting.board_diagnosis import diagnoses, study_diagnosis
from optimizer.reporting.front import front_json
from optimizer.reporting.front_export import export_files
from optimizer.reporting.front_table import confirmation_mark, front_text, pick_titles, unseen_text
from optimizer.reporting.member import Front, FrontMember, FrontMeta
from optimizer.study.board_artifacts import Attachment
from optimizer.study.confirmation import Confirmation
from optimizer.study.dashboard import StudyBoard
from optimizer.study.events import TrialFinished
from optimizer.study.opening import OpenStudy
from optimizer.study.record import StudyRecord
from optimizer.study.trial_record import TrialRecord

REFRESH_EVERY = 10
"""Trials between two refreshes of front.json and of what the dashboard shows."""


class FrontWriter:
    """Keeps front.json and the dashboard's picture of the study up to date."""

    def __init__(
        self,
        study: OpenStudy,
        record: StudyRecord,
        board: StudyBoard,
        meta: FrontMeta,
        instances: Sequence[str],
        axes: Axes,
    ) -> None:
        self._study, self._record, self._board = study, record, board
        self._meta, self._instances, self._axes = meta, instances, axes

    def note(self, event: TrialFinished) -> None:
        """One more trial is told."""
        self._board.after_trial(event.trial)
        if event.n_done % REFRESH_EVERY == 0:
            self.write(())

    def write(self, confirmations: Sequence[Confirmation]) -> Front:
        """The front as it stands now, as front.json."""
        front = self._assembled(confirmations)
        self._study.write_front({**self._study.exported(), "front.json": self._json(front)})
        return front

    def export(self, front: Front, lines: Sequence[str]) -> Path:
        """The final front: data, tables, one deployable file a member; and the dashboard's last refresh."""
        files = {"front.json": self._json(front), "answer.txt": front_text(front) + "\n" + "\n".join(lines) + "\n"}
        if front.members:
            files |= export_files(front, front.members, "csv")
            files |= {f"vllm/{name}": text for name, text in export_files(front, front.members, "vllm-yaml").items()}
        path = self._study.write_front(files)
        self._board.attach_front(attachments(files, front.members))
        picked = {m.trial: pick_titles(m, front, is_doubted=False) for m in front.named}
        confirmed = {m.trial: _confirmed(m, front) for m in front.members}
        told = diagnoses(self._study.folder, front)
        members = tuple(m.trial for m in front.members)
        self._board.say(front=members, picked=picked, confirmed=confirmed)
        self._board.say(diagnoses=told, diagnosis=study_diagnosis(told, front))
        self._board.finish()
        return path

    def _assembled(self, confirmations: Sequence[Confirmation]) -> Front:
        trials = self._record.trials()
        meta = replace(self._meta, reference=reference_of(trials))
        return assemble(trials, meta, self._instances, self._axes, confirmations)

    @staticmethod
    def _json(front: Front) -> str:
        return json.dumps(front_json(front.trials, front.meta), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def attachments(files: Mapping[str, str], members: Sequence[FrontMember]) -> list[Attachment]:
    """The exported files for the dashboard: those to deploy stand with their trials, the picks' with the study too."""
    picked = {m.trial for m in members if m.picks}
    found = []
    for name, text in files.items():
        owners = _owners(name, members)
        is_of_study = not owners or not picked.isdisjoint(owners)
        found.append(Attachment(_shown(name), text.encode(), owners, is_of_study))
    return found


def _confirmed(member: FrontMember, front: Front) -> str:
    """`in part: the gain in P99 TTFT (steady) was not seen again`, or the mark alone."""
    doubt = unseen_text(member, front) if member.is_confirmed else ""
    return confirmation_mark(member, front) + (f": {doubt}" if doubt else "")


def _shown(name: str) -> str:
    """Folders as a part of the name: a browser saves a file under its last part only."""
    return name.removeprefix("vllm/").replace("/", "-")


def _owners(name: str, members: Sequence[FrontMember]) -> tuple[int, ...]:
    if not name.startswith("vllm/"):
        return ()
    number = re.match(r"vllm/trial-(\d+)", name)
    return (int(number[1]),) if number else tuple(m.trial for m in members)


def reference_of(trials: Sequence[TrialRecord]) -> int | None:
    """The first baseline that has figures; while none has, the first."""
    baselines = [t for t in trials if BASELINE_ATTRIBUTE in t.attributes]
    measured = [t for t in baselines if t.values is not None]
    return next((t.number for t in (*measured, *baselines)), None)
