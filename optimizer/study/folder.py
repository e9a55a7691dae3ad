"""StudyFolder: the one owner of a study's files.

    studies/<slug>/
      study.db               the Optuna study (unless --storage names another)
      manifest.json          what the study is; a resume is held against it
      trials/0007/run-0/     outcome.json and samples.npz of one run; run-1 … are retries and confirmations
      runs/<purpose>-000/    runs that belong to no trial (calibration)
      front/                 the exported configurations
      report.html            the report, once it is asked for
      artifacts/             files that optuna-dashboard shows, by their ids
      events.jsonl           what happened, one JSON object a line
      driver.lock            which process writes

Every file appears whole or not at all. One process writes; readers need no lock.
"""

from __future__ import annotations

import json
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self
from zipfile import BadZipFile

from optimizer.errors import UserError
from optimizer.study.files import disk_errors, json_safe, new_folder, write_atomic
from optimizer.study.lock import DriverLock
from optimizer.study.names import display_name, is_study, locate
from optimizer.study.outcomes import masked_arguments, read_outcome, write_outcome
from optimizer.trial import Outcome, TrialPlan


class StudyFolder:
    """A study's folder, for reading; `claim` makes this process the one that writes.

    Refuses a path that holds files but no study, so that nobody's data is mixed with ours."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self.name = name if name is not None else display_name(path)
        self._lock: DriverLock | None = None
        if path.exists() and not path.is_dir():
            raise UserError(
                f"{path}: a file is where the study's folder should be; choose another --study or --studies"
            )
        if path.is_dir() and not is_study(path) and any(p for p in path.iterdir() if not _is_ours(p)):
            raise UserError(f"{path}: the folder holds other files and no study; choose another --study or --studies")

    @classmethod
    def locate(cls, name_or_path: str, studies_dir: Path) -> Self:
        """The folder of a study by name or path; it may not exist yet."""
        name, path = locate(name_or_path, studies_dir)
        return cls(path, name)

    @property
    def exists(self) -> bool:
        return is_study(self.path)

    def claim(self) -> Self:
        """Make the folder and become its writer. Raises UserError when another live process is."""
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = DriverLock(self.path)
            self._sweep()
        return self

    def release(self) -> None:
        """Give the folder up; a second call does nothing."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def database(self) -> Path:
        return self.path / "study.db"

    @property
    def storage_url(self) -> str:
        return f"sqlite:///{self.database.resolve()}"

    @property
    def manifest_path(self) -> Path:
        return self.path / "manifest.json"

    @property
    def front_path(self) -> Path:
        return self.path / "front"

    @property
    def report_path(self) -> Path:
        return self.path / "report.html"

    @property
    def artifacts_path(self) -> Path:
        return self.path / "artifacts"

    def run_path(self, trial: int, run: int, purpose: str = "search") -> Path:
        """Runs of a trial lie under it; a run without one (`trial` < 0) lies under its purpose."""
        if trial >= 0:
            return self.path / "trials" / f"{trial:04d}" / f"run-{run}"
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", purpose):
            raise ValueError(f"not a purpose that can name a folder: {purpose!r}")
        return self.path / "runs" / f"{purpose}-{run:03d}"

    def save_outcome(self, plan: TrialPlan, outcome: Outcome) -> Path:
        """Write one run, before the study is told of it: a crash in between loses nothing."""
        path = self.run_path(plan.trial, plan.run, plan.purpose)
        about = {
            "purpose": plan.purpose,
            "seed": plan.seed,
            "parameters": masked_arguments(plan.placement.parameters()),
        }
        with new_folder(path) as tmp:
            write_outcome(tmp, outcome, about)
        return path

    def load_outcome(self, trial: int, run: int = 0, purpose: str = "search") -> Outcome | None:
        """The stored run; None if there is none. Raises UserError if its files are damaged."""
        path = self.run_path(trial, run, purpose)
        if not (path / "outcome.json").is_file():
            return None
        try:
            return read_outcome(path)
        except (ValueError, KeyError, TypeError, OSError, EOFError, BadZipFile, zlib.error) as error:
            raise UserError(f"{path}: the stored run is damaged ({error}); delete this folder and --resume") from error

    def runs_of(self, trial: int) -> dict[int, str]:
        """run -> purpose of every stored run of a trial, in order."""
        found: dict[int, str] = {}
        for path in (self.path / "trials" / f"{trial:04d}").glob("run-*/outcome.json"):
            number = path.parent.name.removeprefix("run-")
            if number.isdigit():
                found[int(number)] = json.loads(path.read_text("utf-8"))["about"].get("purpose", "search")
        return dict(sorted(found.items()))

    def parameters_of(self, trial: int) -> dict[str, Any]:
        """The arguments of a trial's servers as its first run recorded them, secrets masked; empty if there is none."""
        path = self.path / "trials" / f"{trial:04d}" / "run-0" / "outcome.json"
        if not path.is_file():
            return {}
        return dict(json.loads(path.read_text("utf-8"))["about"].get("parameters", {}))

    def write_front(self, files: Mapping[str, str]) -> Path:
        """Replace the exported front by these files, all of them or none."""
        with new_folder(self.front_path) as tmp:
            for name, text in files.items():
                (tmp / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp / name).write_text(text, "utf-8")
        return self.front_path

    def write_text(self, name: str, text: str) -> Path:
        write_atomic(self.path / name, text.encode())
        return self.path / name

    def append_event(self, event: Mapping[str, Any]) -> None:
        """One line. A line that a full disk or a kill cut off is left out by `events`."""
        line = json.dumps(json_safe(event), ensure_ascii=False, allow_nan=False) + "\n"
        with disk_errors(self.path / "events.jsonl"), (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)

    def events(self) -> Iterator[dict[str, Any]]:
        """Every whole line; a torn last line (killed while writing) is left out."""
        path = self.path / "events.jsonl"
        if not path.is_file():
            return
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    yield json.loads(line)
                except ValueError:
                    continue

    def _sweep(self) -> None:
        """Remove what a killed writer left half-written."""
        for tmp in (*self.path.glob(".*.tmp"), *self.path.glob("runs/.*.tmp"), *self.path.glob("trials/*/.*.tmp")):
            if tmp.is_dir():
                shutil.rmtree(tmp, ignore_errors=True)
            else:
                tmp.unlink(missing_ok=True)


def _is_ours(path: Path) -> bool:
    """What a driver that was killed before its manifest leaves behind."""
    return path.name in ("driver.lock", "events.jsonl", "runs", "trials") or path.name.startswith(".")
