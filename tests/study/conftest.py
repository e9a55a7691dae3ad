"""A record in a fresh folder. The empty study is made once and copied: making its tables takes half a second."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from optimizer.study.record import StudyRecord
from tests.study.recording import terms, url_of


@pytest.fixture(scope="session")
def empty_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("empty")
    StudyRecord.open(url_of(folder), "demo", terms()).close_storage()
    return folder / "study.db"


@pytest.fixture
def record(empty_study: Path, tmp_path: Path) -> Iterator[StudyRecord]:
    shutil.copy(empty_study, tmp_path)
    opened = StudyRecord.open(url_of(tmp_path), "demo", terms())
    yield opened
    opened.close_storage()
