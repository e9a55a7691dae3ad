"""FrontWriter: the front of a running study, kept up to date as front.json, exports and the dashboard's picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from objectives.hypervolume import Axes
from optimizer.reporting.answer import BASELINE_ATTRIBUTE, assemble
from optimizer.reporting.front import front_json
from optimizer.reporting.front_export import export_files
from optimizer.reporting.front_table import front_text, pick_titles
from optimizer.reporting.member import Front, FrontMeta
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
        self._board.say(picked={m.trial: pick_titles(m, front) for m in front.members if m.picks})
        self._board.finish()
        return self._study.write_front(files)

    def _assembled(self, confirmations: Sequence[Confirmation]) -> Front:
        trials = self._record.trials()
        meta = replace(self._meta, reference=_reference_of(trials))
        return assemble(trials, meta, self._instances, self._axes, confirmations)

    @staticmethod
    def _json(front: Front) -> str:
        return json.dumps(front_json(front.trials, front.meta), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _reference_of(trials: Sequence[TrialRecord]) -> int | None:
    """The first baseline that has figures; while none has, the first."""
    baselines = [t for t in trials if BASELINE_ATTRIBUTE in t.attributes]
    measured = [t for t in baselines if t.values is not None]
    return next((t.number for t in (*measured, *baselines)), None)
