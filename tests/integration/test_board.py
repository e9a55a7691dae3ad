"""What a whole run leaves in optuna-dashboard: the diagnosis in its notes, figures, files; again after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optuna.artifacts import FileSystemArtifactStore

from optimizer.study.folder import StudyFolder
from optimizer.study.record import StudyRecord
from optimizer.study.report_link import link_report
from tests.integration.conftest import Run
from tests.study.served import get, get_file

QUESTIONS = ("Compute or memory bandwidth?", "GPU or CPU?", "Steady state or peak?", "Parameters or workload?",
             "Faster or steadier?", "Preemptions under the")  # fmt: skip


def served(path: Path) -> dict[str, Any]:
    record = StudyRecord.load(f"sqlite:///{path / 'study.db'}", path.name)
    try:
        study: dict[str, Any] = get(record, f"/api/studies/{record.study._study_id}")
        store = FileSystemArtifactStore(path / "artifacts")
        study["files"] = {
            a["filename"]: get_file(record, f"/artifacts/{record.study._study_id}/{a['artifact_id']}", store).decode()
            for a in study["artifacts"]
        }
        return study
    finally:
        record.close_storage()


def test_a_run_explains_itself_in_the_dashboard_and_a_resume_adds_no_second_copy(small: Run) -> None:
    ran = small("--n-trials", "6")
    path = ran.path()
    assert f"--artifact-dir {path.relative_to(ran.folder)}/artifacts" in ran.out
    study = served(path)
    picks = [m["trial"] for m in ran.front()["members"] if m["picks"]]
    assert all(question in study["note"]["body"] for question in QUESTIONS)
    for trial in {*picks, ran.front()["meta"]["reference"]}:
        note = study["trials"][trial]["note"]["body"]
        assert all(question in note for question in QUESTIONS), note
    front = path / "front"
    for trial in picks:
        name = f"trial-{trial:04d}.yaml"
        assert study["files"][name] == (front / "vllm" / name).read_text()
        assert name in study["trials"][trial]["note"]["body"] and name in study["note"]["body"]
    assert study["files"]["front.json"] == (front / "front.json").read_text()
    plots = {p["id"] for p in study["plotly_graph_objects"]}
    assert {"front-3d", "knee-stress", "engine-time"} <= plots

    n_stored = len(list((path / "artifacts").iterdir()))
    (path / "report.html").write_text("<p>a report</p>")
    assert link_report(StudyFolder(path)) is None
    small("--n-trials", "6", "--study", "small-1", "--resume")
    again = served(path)
    assert len(list((path / "artifacts").iterdir())) == n_stored + 1
    names = [a["filename"] for a in again["artifacts"]]
    assert len(set(names)) == len(names) and again["files"]["report.html"] == "<p>a report</p>"
    assert again["note"]["body"].count("report.html") == 1
