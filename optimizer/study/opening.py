"""Opening a study: new, or resumed after its manifest was held against the command; closed whatever happens."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import optuna

from objectives.titles import title_of
from optimizer.errors import OptimizerError, StudyMismatch, UserError
from optimizer.study.calibration import Calibration
from optimizer.study.distributions import standing_distributions
from optimizer.study.events import Event
from optimizer.study.folder import StudyFolder
from optimizer.study.judge import Judge
from optimizer.study.manifest import Manifest, check_resumable, load_manifest, notices
from optimizer.study.names import next_free
from optimizer.study.record import StudyRecord
from optimizer.study.searched import argument_samples
from optimizer.study.setup import Setup
from optimizer.study.storage import (
    check_storage_url,
    close_connections,
    dashboard_command,
    mask,
    open_storage,
    retrying,
)
from optimizer.study.terms import Terms


@dataclass(frozen=True)
class StudyPlace:
    """Where a study lives."""

    study: str | None
    """Name or path; None takes the next free `<profile>-<n>`."""
    profile: str
    studies: Path
    storage: str | None
    is_resume: bool


@dataclass
class OpenStudy:
    """A claimed study folder, its manifest, and how to refer to it."""

    folder: StudyFolder
    manifest: Manifest
    storage: str | None
    notices: tuple[str, ...]
    _records: list[StudyRecord] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def url(self) -> str:
        return self.storage or self.folder.storage_url

    @property
    def dashboard_command(self) -> str:
        url = self.storage if self.storage is not None else "sqlite:///" + _short(self.folder.database)
        return dashboard_command(url, _short(self.folder.artifacts_path))

    @property
    def export_command(self) -> str:
        return f"python -m optimizer.export {shlex.quote(_short(self.folder.path))} --pick knee"

    @property
    def report_command(self) -> str:
        return f"python -m optimizer.report {shlex.quote(_short(self.folder.path))}"

    @property
    def resume_command(self) -> str:
        """The command that was typed, with --resume and the study's name in it."""
        words = [w for w in sys.argv[1:] if w != "--resume"]
        if "--study" not in words and not any(w.startswith("--study=") for w in words):
            words += ["--study", self.name]
        return mask(shlex.join(["python", "-m", "optimizer.run", *words, "--resume"]))

    def log(self, event: Event) -> None:
        self.folder.append_event({"event": type(event).__name__, "at": _now(), **asdict(event)})

    def stored_calibration(self) -> Calibration | None:
        return Calibration.from_json(self.manifest.calibration) if self.manifest.calibration else None

    def save_calibration(self, calibration: Calibration) -> None:
        self._save(self.manifest.with_(calibration=calibration.to_json(), rate_per_s=calibration.rate_per_s))

    def open_record(self, setup: Setup, judge: Judge) -> StudyRecord:
        """The Optuna study, made or gone on with. Raises StudyMismatch if its terms are others."""
        samples = [*argument_samples(setup.space), *(p.parameters() for _, p, _ in setup.baselines)]
        terms = Terms(
            judge.objectives,
            tuple(title_of(o.metric) for o in judge.objectives),
            judge.constraint_names,
            distributions=standing_distributions(samples),
        )
        record = StudyRecord.open(self.url, self.folder.path.name, terms)
        self._records.append(record)
        self._save(self.manifest.with_(constraints=judge.constraint_names))
        return record

    def write_front(self, texts: Mapping[str, str]) -> Path:
        """Replace the exported front by these files."""
        return self.folder.write_front(texts)

    def exported(self) -> dict[str, str]:
        """The files of the exported front as they are now: replaced together with whatever is written next."""
        root = self.folder.front_path
        return {str(p.relative_to(root)): p.read_text("utf-8") for p in sorted(root.rglob("*")) if p.is_file()}

    def is_empty(self, *, is_input_at_fault: bool) -> bool:
        """Nothing worth keeping: no run was recorded, or the input is at fault before the first trial."""
        is_started = bool(self.manifest.calibration) or self.folder.database.exists()
        return not is_started and (is_input_at_fault or not any(self.folder.path.glob("runs/*")))

    def forgive_running(self) -> None:
        """The user stopped the run on purpose (Ctrl-C)."""
        for record in self._records:
            record.forgive_running()

    def close(self) -> None:
        for record in self._records:
            record.close_storage()
        self.folder.release()

    def _save(self, manifest: Manifest) -> None:
        self.manifest = manifest
        manifest.save(self.folder.manifest_path)


@contextmanager
def open_study(place: StudyPlace, manifest: Manifest) -> Iterator[OpenStudy]:
    """Claim the study's folder. `manifest.study` is filled in here.

    Refuses an existing study without --resume; --resume of a missing one starts it and says so. An error before
    anything was recorded leaves no new folder behind."""
    if place.storage is not None:
        check_storage_url(place.storage)
    name = place.study if place.study is not None else _name_of(place)
    folder = StudyFolder.locate(name, place.studies)
    if folder.exists and not place.is_resume:
        raise UserError(f"--study {name}: {folder.path} exists; add --resume to go on with it, or choose another name")
    fresh = replace(manifest, study=folder.name, created=_now())
    said: tuple[str, ...] = ()
    if folder.exists:
        stored = load_manifest(folder.manifest_path)
        check_resumable(stored, replace(fresh, study=stored.study, constraints=stored.constraints))
        _check_storage(stored, place.storage)
        said = notices(stored, fresh)  # type: ignore[assignment]
        fresh = replace(stored, n_trials=fresh.n_trials, n_workers=fresh.n_workers)
    else:
        said = (f"there is no study {name!r} to resume: it is started",) if place.is_resume else ()
        if place.storage is not None:
            _check_is_free(place.storage, folder.path.name)
    was_there = folder.exists
    study = OpenStudy(folder.claim(), fresh, place.storage, tuple(said))
    try:
        study._save(fresh)
        yield study
    except OptimizerError as error:
        if not was_there and study.is_empty(is_input_at_fault=isinstance(error, UserError)):
            shutil.rmtree(folder.path, ignore_errors=True)
            with suppress(OSError):  # other studies are in it
                folder.path.parent.rmdir()
        raise
    finally:
        study.close()


def _name_of(place: StudyPlace) -> str:
    """Without a name: the next free one; with --resume the last one that is there, so that the same command goes on."""
    free = next_free(place.profile, place.studies)
    stem, _, number = free.rpartition("-")
    return f"{stem}-{int(number) - 1}" if place.is_resume and number != "1" else free


def _check_storage(stored: Manifest, storage: str | None) -> None:
    """Another storage holds other trials, or none."""
    if mask(storage or "") != stored.storage:
        here, now = stored.storage or "study.db in its folder", mask(storage or "") or "study.db in its folder"
        raise StudyMismatch(
            f"study {stored.study!r} cannot be resumed: storage: {here} in the study, {now} now;"
            " give the same --storage"
        )


def _check_is_free(storage: str, name: str) -> None:
    """Raises UserError or Unavailable, before anything is started, when the storage cannot take a new study."""
    opened = open_storage(storage)
    try:
        is_taken = name in retrying(lambda: optuna.get_all_study_names(opened), storage)
    finally:
        close_connections(opened)
    if is_taken:
        raise UserError(f"--storage {mask(storage)}: holds an Optuna study {name!r} already; choose another --study")


def settings_of(**settings: Any) -> dict[str, Any]:
    """The manifest's settings without those that were not given."""
    return {k: v for k, v in settings.items() if v not in (None, (), {}, "")}


def _short(path: Path) -> str:
    """Relative to here where it lies below, else absolute."""
    resolved, here = path.resolve(), Path.cwd()
    return str(resolved.relative_to(here)) if resolved.is_relative_to(here) else str(resolved)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
