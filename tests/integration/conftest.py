"""Runs of `optimizer.run` in an empty folder, in this process (fast) or as a child (signals, its own exit code)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from optimizer.cli import run_main
from optimizer.run import main
from optimizer.study.record import StudyRecord
from optimizer.study.trial_record import TrialRecord
from tests.small_study import environment, write_profile

SMALL = ("--profile", "small.yaml", "--workers", "0")
MODULE = (sys.executable, "-m", "optimizer.run")


@dataclass(frozen=True)
class Ran:
    """What a run left behind."""

    folder: Path
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """Its one line on stderr."""
        lines = self.err.strip().splitlines()
        assert len(lines) == 1, self.err
        return lines[0]

    def path(self, study: str = "small-1") -> Path:
        return self.folder / "studies" / study

    def front(self, study: str = "small-1") -> dict[str, Any]:
        body: dict[str, Any] = json.loads((self.path(study) / "front" / "front.json").read_text())
        return body

    def members(self, study: str = "small-1") -> list[dict[str, Any]]:
        """Every finished trial, by number."""
        body = self.front(study)
        return sorted(body["members"] + body["others"], key=lambda m: int(m["trial"]))

    def trials(self, study: str = "small-1") -> tuple[TrialRecord, ...]:
        record = StudyRecord.load(f"sqlite:///{self.path(study) / 'study.db'}", study)
        try:
            return record.trials()
        finally:
            record.close_storage()

    def events(self, study: str = "small-1") -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path(study) / "events.jsonl").read_text().splitlines()]


Run = Callable[..., Ran]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with small.yaml in it, and this process in it."""
    write_profile(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    yield tmp_path


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """optimizer.run with these arguments, in this process."""

    def call(*argv: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["optimizer.run", *argv])
        capsys.readouterr()
        code = run_main(main, list(argv))
        out, err = capsys.readouterr()
        return Ran(folder, code, out, err)

    return call


@pytest.fixture
def small(run: Run) -> Run:
    """The same on the small profile, inline."""
    return lambda *argv: run(*SMALL, *argv)


def child(folder: Path, *argv: str, timeout_s: float = 120) -> Ran:
    """optimizer.run as a user starts it."""
    done = subprocess.run(
        [*MODULE, *argv], cwd=folder, env=environment(), capture_output=True, text=True, timeout=timeout_s
    )
    return Ran(folder, done.returncode, done.stdout, done.stderr)
