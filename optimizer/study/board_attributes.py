"""System attributes of a study and its trials as optuna-dashboard reads them: what its notes and files are kept in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import optuna


class StudyAttributes:
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


@dataclass(frozen=True)
class TrialTarget:
    """What optuna-dashboard needs of a trial; a live `optuna.Trial` would sample when built."""

    storage: Any
    study: optuna.Study
    _trial_id: int
