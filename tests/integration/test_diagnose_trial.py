"""`optimizer.diagnose --study S --trial N` over trials of a simulated study."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optimizer.cli import run_main
from optimizer.diagnose import main
from optimizer.questions.answer import Change
from optimizer.reporting.trial_diagnosis import StudyReader
from optimizer.study.folder import StudyFolder
from search_spaces.config import Config
from tests.integration.conftest import SMALL, Run


def call(*argv: str) -> int:
    return run_main(lambda _: main(list(argv)))


@pytest.fixture
def study(run: Run) -> Path:
    ran = run(*SMALL, "--study", "s", "--n-trials", "6")
    assert ran.code in (0, 1)
    return ran.path("s")


def test_every_trial_has_its_answers(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    for trial in range(6):
        code = call("--study", "s", "--trial", str(trial), "--json")
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert found["trial"] == trial
        if found["failure"] is not None:
            assert code == 4 and found["failure"]["kind"] and not found["servers"]
            continue
        (server,) = found["servers"].values()
        assert code == (1 if server["health"] == "degraded" or found["missed_limits"] else 0), found
        assert [q["question"] for q in server["questions"]] == [1, 2, 3, 4, 5]
        assert all(q["confidence"] in ("high", "medium", "low", "unknown") for q in server["questions"])
        assert len(server["preemption"]["lines"]) == 5
        for change in server["changes"][:2]:
            assert change["predicted"] == {} or change["is_predicted_by"] == "simulator"


def test_words_for_people(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert call("--study", "s", "--trial", "0") in (0, 1)
    text = capsys.readouterr().out
    assert "1. compute or memory bandwidth?" in text and "5. faster or steadier?" in text
    assert "would change it:" in text and "KV budget too small" in text


def test_what_is_no_trial_is_one_line(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    for argv, said in (
        (("--study", "s", "--trial", "99"), "no such trial"),
        (("--study", "none", "--trial", "0"), "none"),
    ):
        assert call(*argv) == 2
        error = capsys.readouterr().err
        assert said in error and len(error.strip().splitlines()) == 1


def test_a_change_that_a_trial_tried_is_held_against_it(study: Path) -> None:
    """The recommendation is looked up among the study's own trials, argument by argument."""
    reader = StudyReader(StudyFolder(study))
    first = next(m for m in reader.front.trials if m.values is not None)
    assert first.values is not None
    changed = Config({**first.configs["server"], "max_num_seqs": 7})
    tried = replace(first, trial=77, configs={"server": changed}, values=tuple(2 * v for v in first.values))
    reader.front = replace(reader.front, trials=(*reader.front.trials, tried))
    found = reader._tried(first, "server", Change("max_num_seqs", 7, "why"))
    assert found is not None and found.trial == 77 and "max_num_seqs = 7 was tried as trial 77" in found.text
    assert all(then == 2 * now for now, then in found.measured.values())
    assert reader._tried(first, "server", Change("max_num_seqs", 6, "why")) is None
