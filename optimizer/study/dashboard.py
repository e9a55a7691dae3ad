"""The study as optuna-dashboard shows it: notes, plots, attributes. Kept up to date at a small share of the time.

A dashboard that cannot be written (a lock, another program's version) never stops a study: what failed is logged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError

from optimizer.study.board_text import About, Standing, many_objectives, standing_of, study_note, trial_note
from optimizer.study.record import StudyRecord
from optimizer.study.storage import dashboard_command

__all__ = ["About", "StudyBoard", "dashboard_command", "many_objectives"]

PLOT_3D, PLOT_2D = "front-3d", "front-2d"
"""Ids of the stored figures; a refresh replaces them."""
MAX_SHARE = 0.04
"""A refresh waits until its cost is at most this share of the time since the last one."""
_MARKED = "optimizer:marked_front"
"""System attribute of the study: trials whose notes say that they are on the front."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Target:
    """What `optuna_dashboard.save_note` needs of a trial; a live `optuna.Trial` would sample when built."""

    storage: Any
    study: optuna.Study
    _trial_id: int


class _Attributes:
    """The study's system attributes, read once: `save_note` reads all of them for every note, plots included."""

    def __init__(self, study: optuna.Study) -> None:
        self._storage = study._storage
        self._known: dict[str, Any] | None = None

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        if self._known is None:
            self._known = dict(self._storage.get_study_system_attrs(study_id))
        return self._known

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        self._storage.set_study_system_attr(study_id, key, value)
        self.get_study_system_attrs(study_id)[key] = value


class StudyBoard:
    """Writes notes and plots beside a study's record. Only the driver has one."""

    def __init__(self, record: StudyRecord, about: About) -> None:
        self._record = record
        self._about = about
        self._attributes = _Attributes(record.study)
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
        self._guarded(self._write)
        self._last_end = time.perf_counter()
        self._last_cost_s = self._last_end - started
        self.spent_s += self._last_cost_s

    def finish(self) -> None:
        """The last refresh: front members say so in their own notes, and earlier ones no longer do."""
        started = time.perf_counter()
        self._guarded(self._mark_front)
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
                self._record.trial(number), self._record.terms, standing, is_simulated=self._about.is_simulated
            )
            save_note(_Target(self._attributes, study, trial_id), text)

    def _mark_front(self) -> None:
        standing = self._standing()
        study_id = self._record.study._study_id
        marked = self._attributes.get_study_system_attrs(study_id).get(_MARKED, [])
        members = [t.number for t in standing.front]
        self._note_trials(sorted({*members, *marked}), standing)
        self._attributes.set_study_system_attr(study_id, _MARKED, members)

    def _write(self) -> None:
        from optuna_dashboard import save_note, save_plotly_graph_object

        from optimizer.study.board_plots import front_2d, front_3d, short

        standing, terms, study = self._standing(), self._record.terms, self._record.study
        for name, value in self._about.facts.items():
            if study.user_attrs.get(name) != value:
                self._record.set_attribute(name, value)
        save_note(study, study_note(standing, terms, self._about))
        if not any(t.values is not None for t in standing.trials):
            return
        label = " (simulated)" if self._about.is_simulated else ""
        if len(terms.labels) >= 3:
            figure = front_3d(standing, terms, f"Feasible front in three objectives{label}")
            save_plotly_graph_object(study, figure, graph_object_id=PLOT_3D)
        for other in range(1, len(terms.labels)):
            title = f"Feasible front: {short(terms.labels[other])}{label}"
            figure = front_2d(standing, terms, title, other)
            save_plotly_graph_object(study, figure, graph_object_id=f"{PLOT_2D}-{other}")

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except StorageInternalError as error:
            _log.warning("the dashboard's notes could not be written now: %s", str(error).splitlines()[0])
