"""`optimizer.diagnose --study S`: all trials of a simulated study at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optimizer.cli import run_main
from optimizer.diagnose import main
from optimizer.reporting.study_diagnosis import MOST_READ, _chosen, diagnose_study, study_exit_code
from optimizer.reporting.trial_diagnosis import StudyReader
from optimizer.study.folder import StudyFolder
from tests.integration.conftest import SMALL, Run


@pytest.fixture
def study(run: Run) -> Path:
    return run(*SMALL, "--study", "s", "--n-trials", "8").path("s")


def call(*argv: str) -> int:
    return run_main(lambda _: main(list(argv)))


def test_the_whole_study(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    code = call("--study", "s", "--json")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == (0 if found["n_feasible"] else 1) and found["n_trials"] == found["n_read"] == 8
    assert [q["question"] for q in found["questions"]] == [1, 2, 3, 4, 5]
    assert found["is_simulated"] and all(q["would_change"] for q in found["questions"])
    assert sum(m["n_trials"] for m in found["missed_limits"]) >= 8 - found["n_feasible"] - sum(
        len(f["trials"]) for f in found["failures"]
    )
    assert call("--study", "s") == code
    text = capsys.readouterr().out
    assert text.startswith("study s (simulated): ") and " 8 trials" in text and "--trial N" in text


def test_many_trials_are_sampled_with_the_front_and_the_reference(study: Path) -> None:
    reader = StudyReader(StudyFolder(study), most_predicted=0)
    many = tuple(replace(reader.front.trials[i % 8], trial=i) for i in range(500))
    front = replace(reader.front, trials=many)
    chosen = _chosen(front)
    assert len(chosen) == MOST_READ == len({m.trial for m in chosen})
    assert front.reference is None or front.reference in chosen
    assert all(m in chosen for m in front.members[: MOST_READ // 2])


def test_nothing_feasible_is_not_called_healthy(study: Path) -> None:
    reader = StudyReader(StudyFolder(study), most_predicted=0)
    ill = tuple(replace(m, violations={"steady_ttft_p99_ms <= 1": 2.0}, is_on_front=False) for m in reader.front.trials)
    reader.front = replace(reader.front, trials=ill)
    found = diagnose_study(reader)
    assert found.n_feasible == 0 and study_exit_code(found) == 1 and found.answers[3].verdict == "workload"
    assert found.limits[0][0] == "steady_ttft_p99_ms <= 1"


def test_a_damaged_trial_is_named(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = StudyReader(StudyFolder(study), most_predicted=0)
    number = next(m.trial for m in reader.front.trials if m.values is not None)
    samples = next(StudyFolder(study).run_path(number, 0).glob("samples*"))
    samples.write_bytes(samples.read_bytes()[:200])
    capsys.readouterr()
    call("--study", "s")
    text = capsys.readouterr().out
    assert f"trial {number} cannot be read: " in text and "7 of them read here" in text


def test_every_failed_trial_is_counted_though_few_are_read(study: Path) -> None:
    reader = StudyReader(StudyFolder(study), most_predicted=0)
    failed = [m.trial for m in reader.front.trials if m.values is None]
    found = diagnose_study(reader, most=2)
    assert sorted(t for kind in found.failures for t in kind.trials) == failed
