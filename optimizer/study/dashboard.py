"""The study as optuna-dashboard shows it: notes, plots, attributes, files; up to date at a small share of the time.

A dashboard that cannot be written (a lock, a full disk, another program's version) never stops a study: what failed is
logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from optuna.exceptions import StorageInternalError

from optimizer.errors import OptimizerError
from optimizer.study.board_artifacts import Attachment, Link, StudyArtifacts
from optimizer.study.board_attributes import StudyAttributes, TrialTarget
from optimizer.study.board_failures import advice_of, failed_outcome, failure_parts, log_excerpt
from optimizer.study.board_files import files_part
from optimizer.study.board_text import (
    About,
    Standing,
    many_objectives,
    standing_of,
    study_note,
    trial_note,
)
from optimizer.study.folder import StudyFolder
from optimizer.study.record import StudyRecord
from optimizer.study.storage import dashboard_command
from optimizer.trial import Measured

__all__ = ["About", "StudyBoard", "dashboard_command", "many_objectives"]

PLOT_3D, PLOT_2D, PLOT_KNOBS, PLOT_LOAD, PLOT_TIME = "front-3d", "front-2d", "knobs", "knee-stress", "engine-time"
"""Ids of the stored figures; a refresh replaces them."""
FRONT, FAILURE, REPORT = "front", "failure", "report"
"""Origins of files."""
MAX_SHARE = 0.04
"""A refresh waits until its cost is at most this share of the time since the last one."""
_MARKED = "optimizer:marked_front"
"""System attribute of the study: trials whose notes say what may change, e.g. that they are on the front."""
_TROUBLE = (StorageInternalError, OptimizerError, OSError, ImportError)
"""A storage that is locked or away, a damaged run, a disk that is full or read-only, another optuna-dashboard."""
_log = logging.getLogger(__name__)


class StudyBoard:
    """Writes notes, plots and files beside a study's record. Only the driver has one."""

    def __init__(self, record: StudyRecord, about: About, folder: StudyFolder | None = None) -> None:
        """Without a folder there are no files, and failures are told by what the record has of them."""
        self._record = record
        self._about = about
        self._folder = folder
        self._attributes = StudyAttributes(record.study)
        self._artifacts = (
            None if folder is None else StudyArtifacts(record.study, self._attributes, folder.artifacts_path)
        )
        self._last_end = -float("inf")
        self._last_cost_s = 0.0
        self.spent_s = 0.0
        """Seconds spent on the dashboard so far."""

    def after_trial(self, number: int) -> None:
        """The trial's note; and the study's note and plots when they are due."""
        started = time.perf_counter()
        self._guarded(lambda: self._note_trials([number], None))
        self.spent_s += time.perf_counter() - started
        if self._last_cost_s <= MAX_SHARE * (time.perf_counter() - self._last_end):
            self.refresh()

    def refresh(self) -> None:
        """The study's note and plots as of now. Call it at the start, at the end, and after confirmations."""
        started = time.perf_counter()
        self._guarded(self._attach_report)
        self._guarded(self._write)
        self._last_end = time.perf_counter()
        self._last_cost_s = self._last_end - started
        self.spent_s += self._last_cost_s

    def attach_front(self, files: Sequence[Attachment]) -> None:
        """The exported front, in place of the one that was attached before."""
        if (artifacts := self._artifacts) is not None:
            started = time.perf_counter()
            self._guarded(lambda: artifacts.replace(files, FRONT))
            self.spent_s += time.perf_counter() - started

    def finish(self) -> None:
        """The last refresh: front members say so in their own notes, and earlier ones no longer do."""
        started = time.perf_counter()
        self._guarded(self._mark_front)
        self._guarded(self._draw_end)
        self.spent_s += time.perf_counter() - started
        self.refresh()

    def say(self, **changes: Any) -> None:
        """Change what the study's note says about the study, from the next refresh on."""
        self._about = replace(self._about, **changes)

    def _standing(self) -> Standing:
        front = self._record.front(self._about.floors)
        return standing_of(self._record.trials(), front, self._record.terms, self._about)

    def _note_trials(self, numbers: Iterable[int], standing: Standing | None) -> None:
        from optuna_dashboard import save_note

        study = self._record.study
        for number in numbers:
            trial_id = study.get_trials(deepcopy=False)[number]._trial_id
            text = trial_note(
                self._record.trial(number),
                self._record.terms,
                standing,
                is_simulated=self._about.is_simulated,
                more=self._more(number),
            )
            save_note(TrialTarget(self._attributes, study, trial_id), text)

    def _more(self, number: int) -> list[str]:
        """What of a trial stands in files: why it failed, its diagnosis, links."""
        told = self._about.diagnoses.get(number)
        return [*self._failure(number), *([told] if told else []), *files_part(self._links(number))]

    def _failure(self, number: int) -> list[str]:
        folder, artifacts = self._folder, self._artifacts
        if folder is None or artifacts is None or self._record.trial(number).state not in ("infeasible", "broken"):
            return []
        outcome = failed_outcome(folder, number)
        if outcome is None:
            return []
        advice = advice_of(folder, number, outcome)
        self._guarded(lambda: artifacts.put(log_excerpt(folder, number, outcome, advice), FAILURE))
        return failure_parts(outcome, advice)

    def _links(self, number: int | None) -> tuple[Link, ...]:
        return () if self._artifacts is None else self._artifacts.links(number)

    def _attach_report(self) -> None:
        if self._folder is not None and self._artifacts is not None and self._folder.report_path.is_file():
            content = self._folder.report_path.read_bytes()
            self._artifacts.put(Attachment(self._folder.report_path.name, content), REPORT)

    def _mark_front(self) -> None:
        standing = self._standing()
        study_id = self._record.study._study_id
        marked = self._attributes.get_study_system_attrs(study_id).get(_MARKED, [])
        members = [t.number for t in standing.front]
        told = sorted({*members, *self._about.diagnoses})
        self._note_trials(sorted({*told, *marked, *self._untold_failures(standing)}), standing)
        self._attributes.set_study_system_attr(study_id, _MARKED, told)

    def _untold_failures(self, standing: Standing) -> list[int]:
        """Failed trials of an earlier version's run, or from when the folder could not be written."""
        if self._folder is None:
            return []
        failed = [t.number for t in standing.trials if t.state in ("infeasible", "broken")]
        return [n for n in failed if not self._links(n) and self._folder.run_path(n, 0).is_dir()]

    def _write(self) -> None:
        from optuna_dashboard import save_note

        standing, terms, study = self._standing(), self._record.terms, self._record.study
        for name, value in self._about.facts.items():
            if study.user_attrs.get(name) != value:
                self._record.set_attribute(name, value)
        save_note(study, study_note(standing, terms, self._about, self._links(None)))
        if any(t.values is not None for t in standing.trials):
            self._draw(standing)

    def _draw(self, standing: Standing) -> None:
        from optimizer.study.board_knobs import knob_figure, movers
        from optimizer.study.board_plots import front_2d, front_3d, short

        terms = self._record.terms
        if len(terms.labels) >= 3:
            self._save(front_3d(standing, terms, f"Feasible front in three objectives{self._label}"), PLOT_3D)
        for other in range(1, len(terms.labels)):
            title = f"Feasible front: {short(terms.labels[other])}{self._label}"
            self._save(front_2d(standing, terms, title, other), f"{PLOT_2D}-{other}")
        for i in range(len(terms.labels)):
            for mover in movers(standing, i)[:1]:
                self._save(knob_figure(standing, terms, i, mover, self._label), f"{PLOT_KNOBS}-{i}")

    def _draw_end(self) -> None:
        """What is known at the end only: the knee under stress, and where the engine's time went."""
        from optimizer.study.board_timeline import engine_time, load_figure, time_figure

        if self._folder is None:
            return
        knee = next((n for n, name in self._standing().names.items() if "knee" in name), None)
        outcome = None if knee is None else self._folder.load_outcome(knee)
        phase = outcome.measurement.phases.get("stress") if isinstance(outcome, Measured) else None
        if phase is not None:
            self._save(load_figure(phase, f"The knee, trial {knee}, under stress{self._label}"), PLOT_LOAD)
        spent = engine_time(self._folder, self._record.trials())
        self._save(time_figure(spent, f"Engine time by stage{self._label}"), PLOT_TIME)

    def _save(self, figure: Any, graph_object_id: str) -> None:
        from optuna_dashboard import save_plotly_graph_object

        if figure is not None:
            save_plotly_graph_object(self._record.study, figure, graph_object_id=graph_object_id)

    @property
    def _label(self) -> str:
        return " (simulated)" if self._about.is_simulated else ""

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except _TROUBLE as error:
            _log.warning("optuna-dashboard's view of the study could not be written now: %s", _first_line(error))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
