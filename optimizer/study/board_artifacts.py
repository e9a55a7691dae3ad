"""Files of a study that optuna-dashboard shows and its notes link: it has to be started with `--artifact-dir`.

They lie as Optuna's FileSystemArtifactStore reads them. A file's id follows from the study, from what put it there and
from its name: put again it replaces itself, it is never there twice, and links in older notes stay good. All are
registered with the study, those of trials too, for Optuna takes no attribute of a finished trial.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna

from optimizer.study.board_attributes import StudyAttributes, TrialTarget
from optimizer.study.files import write_atomic

OF_STUDY, OF_TRIAL = "artifacts:", "dashboard:artifacts:"
"""Prefixes of the attributes (optuna/artifacts/_upload.py; optuna_dashboard/artifact/_backend.py); a trial's goes on
with its id in the storage."""
_MIME_TYPES = {".html": "text/html", ".json": "application/json", ".csv": "text/csv"}
"""All else is plain text, so that a browser shows it instead of saving it."""
_ORIGIN = "origin"
"""Our own entry beside Optuna's: what put the file there."""


@dataclass(frozen=True, slots=True)
class Link:
    """A file that the dashboard serves."""

    name: str
    url_path: str

    @property
    def markdown(self) -> str:
        return f"[{self.name}]({self.url_path})"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file to be put: of the study, of some trials, or of both; stored once."""

    name: str
    content: bytes
    trials: tuple[int, ...] = ()
    is_of_study: bool = True


class StudyArtifacts:
    """Puts files beside a study. Raises what a storage and a file system raise: the board logs it and goes on."""

    def __init__(self, study: optuna.Study, attributes: StudyAttributes, folder: Path) -> None:
        """`folder`: where the files lie, what `--artifact-dir` has to name. Made when it is needed."""
        self._study, self._attributes, self._folder = study, attributes, folder

    def put(self, file: Attachment, origin: str) -> None:
        """A file that is there with this content is not written again."""
        artifact_id = self._id(origin, file.name)
        path = self._folder / artifact_id
        if not path.is_file() or path.read_bytes() != file.content:
            write_atomic(path, file.content)
        about = {
            "artifact_id": artifact_id,
            "filename": file.name,
            "mimetype": f"{_MIME_TYPES.get(Path(file.name).suffix, 'text/plain')}; charset=utf-8",
            "encoding": None,
            _ORIGIN: origin,
        }
        for key in self._keys(file, artifact_id):
            self._register(key, json.dumps(about))

    def replace(self, files: Iterable[Attachment], origin: str) -> None:
        """All files of this origin: those that it had before and has no longer are gone."""
        wanted = list(files)
        for file in wanted:
            self.put(file, origin)
        kept = {key for file in wanted for key in self._keys(file, self._id(origin, file.name))}
        ids = {key.rpartition(":")[2] for key in kept}
        for key, about in list(self._registered()):
            if about.get(_ORIGIN) == origin and key not in kept:
                self._register(key, "null")
                if about["artifact_id"] not in ids:
                    (self._folder / about["artifact_id"]).unlink(missing_ok=True)

    def links(self, trial: int | None = None) -> tuple[Link, ...]:
        """Of the study, or of one of its trials; none where optuna-dashboard is of a version without them."""
        try:
            from optuna_dashboard.artifact import get_artifact_path
        except ImportError:
            return ()
        prefix = OF_STUDY if trial is None else f"{OF_TRIAL}{self._trial_id(trial)}:"
        owner = self._study if trial is None else TrialTarget(None, self._study, self._trial_id(trial))
        found = [about for key, about in self._registered() if key.startswith(prefix)]
        return tuple(Link(about["filename"], get_artifact_path(owner, about["artifact_id"])) for about in found)

    def _registered(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """(key, what is known of it); "null" stands for what was removed."""
        for key, text in self._attributes.get_study_system_attrs(self._study._study_id).items():
            if key.startswith((OF_STUDY, OF_TRIAL)) and (about := json.loads(text)) is not None:
                yield key, about

    def _register(self, key: str, text: str) -> None:
        study_id = self._study._study_id
        if self._attributes.get_study_system_attrs(study_id).get(key) != text:
            self._attributes.set_study_system_attr(study_id, key, text)

    def _keys(self, file: Attachment, artifact_id: str) -> list[str]:
        of_study = [OF_STUDY + artifact_id] if file.is_of_study else []
        return of_study + [f"{OF_TRIAL}{self._trial_id(number)}:{artifact_id}" for number in file.trials]

    def _id(self, origin: str, name: str) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"vllm-config-optimizer:{self._study.study_name}/{origin}/{name}"))

    def _trial_id(self, number: int) -> int:
        return int(self._study.get_trials(deepcopy=False)[number]._trial_id)
