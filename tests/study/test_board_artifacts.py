"""Files of a study in optuna-dashboard: there once, linked, replaced, never a reason to stop."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from optuna.artifacts import FileSystemArtifactStore, get_all_artifact_meta

from optimizer.diagnosis.circumstances import Circumstances
from optimizer.diagnosis.failure import judge_servers
from optimizer.diagnosis.log_line import read_lines
from optimizer.diagnosis.servers import scan_servers
from optimizer.engines.engine import Instance, Placement
from optimizer.study.board_artifacts import Attachment, Link, StudyArtifacts
from optimizer.study.board_attributes import StudyAttributes
from optimizer.study.board_failures import LOG_TAIL_BYTES, MAX_EVIDENCE, advice_of
from optimizer.study.board_files import with_file
from optimizer.study.board_text import About
from optimizer.study.dashboard import FRONT, StudyBoard
from optimizer.study.folder import StudyFolder
from optimizer.study.lock import DriverLock
from optimizer.study.record import StudyRecord
from optimizer.study.report_link import link_report
from optimizer.trial import Broken, Infeasible, Outcome, TrialPlan
from search_spaces.config import Config
from tests.study.recording import MEASURED, PARAMETERS, card
from tests.study.served import get, get_file

ABOUT = About("demo", {})
YAML = Attachment("trial-0000.yaml", b"max-num-seqs: 8\n", (0,))


@pytest.fixture
def folder(record: StudyRecord, tmp_path: Path) -> StudyFolder:
    (tmp_path / "demo").mkdir()
    return StudyFolder(tmp_path / "demo")


@pytest.fixture
def artifacts(record: StudyRecord, folder: StudyFolder) -> StudyArtifacts:
    record.close(record.open_trial(PARAMETERS), MEASURED, card())
    return fresh(record, folder)


def fresh(record: StudyRecord, folder: StudyFolder) -> StudyArtifacts:
    return StudyArtifacts(record.study, StudyAttributes(record.study), folder.artifacts_path)


def fail(record: StudyRecord, folder: StudyFolder, outcome: Outcome) -> int:
    number = record.open_trial(PARAMETERS)
    placement = Placement((Instance("server", Config({}), ("default",)),))
    folder.save_outcome(TrialPlan(number, 0, "search", placement, (), 0), outcome)
    scorecard = None if isinstance(outcome, Broken) else card(None, boot=0.4)
    record.close(number, outcome, scorecard, reason="it failed")
    return number


def note_of(record: StudyRecord, number: int | None = None) -> str:
    study = get(record, f"/api/studies/{record.study._study_id}")
    found = study["note"] if number is None else study["trials"][number]["note"]
    return str(found["body"])


def test_a_file_is_there_once_and_served_by_its_link(
    artifacts: StudyArtifacts, record: StudyRecord, folder: StudyFolder
) -> None:
    for _ in range(2):
        artifacts.put(YAML, FRONT)
        fresh(record, folder).put(YAML, FRONT)
    (stored,) = folder.artifacts_path.iterdir()
    (of_study,), (of_trial,) = artifacts.links(), artifacts.links(0)
    assert of_study.name == of_trial.name == YAML.name
    store = FileSystemArtifactStore(folder.artifacts_path)
    assert get_file(record, of_study.url_path, store) == get_file(record, of_trial.url_path, store) == YAML.content
    (meta,) = get_all_artifact_meta(record.study)
    assert meta.artifact_id == stored.name and meta.filename == YAML.name
    served = get(record, f"/api/studies/{record.study._study_id}", store)
    assert [a["filename"] for a in served["artifacts"]] == [YAML.name] == [
        a["filename"] for a in served["trials"][0]["artifacts"]
    ]  # fmt: skip


def test_new_content_keeps_the_link(artifacts: StudyArtifacts, folder: StudyFolder) -> None:
    artifacts.put(YAML, FRONT)
    before = artifacts.links()
    artifacts.put(Attachment(YAML.name, b"max-num-seqs: 16\n", (0,)), FRONT)
    assert artifacts.links() == before
    assert [p.read_bytes() for p in folder.artifacts_path.iterdir()] == [b"max-num-seqs: 16\n"]


def test_a_front_takes_the_place_of_the_one_before(
    artifacts: StudyArtifacts, record: StudyRecord, folder: StudyFolder
) -> None:
    report = Attachment("report.html", b"<p>")
    artifacts.put(report, "report")
    artifacts.replace([YAML, Attachment("front.json", b"{}")], FRONT)
    later = fresh(record, folder)
    later.replace([Attachment("front.json", b"{1}")], FRONT)
    assert {link.name for link in later.links()} == {"front.json", "report.html"} and later.links(0) == ()
    assert sorted(p.read_bytes() for p in folder.artifacts_path.iterdir()) == [b"<p>", b"{1}"]
    later.replace([YAML], FRONT)
    assert [link.name for link in later.links(0)] == [YAML.name], "a file that comes back is there again"


def test_a_failed_trial_says_kind_cause_and_advice_and_links_its_log(record: StudyRecord, folder: StudyFolder) -> None:
    lines = [f"ERROR line {i}" for i in range(2 * MAX_EVIDENCE)]
    log = "INFO a line of the log\n" * (LOG_TAIL_BYTES // 20) + "the last line, api_key=sk-abcdef123456\n"
    outcome = Infeasible(
        kind="kv_capacity", phase="profile", cause="no room", violation=0.4, evidence=tuple(lines),
        bounds={"max_model_len_at_most": 4096.0}, logs={"server": log},
    )  # fmt: skip
    number = fail(record, folder, outcome)
    board = StudyBoard(record, ABOUT, folder)
    board.after_trial(number)
    note = note_of(record, number)
    assert (
        "**kv_capacity** at profile, the configuration's fault" in note and "set max_model_len to at most 4096" in note
    )
    assert lines[MAX_EVIDENCE - 1] in note and lines[MAX_EVIDENCE] not in note
    (link,) = fresh(record, folder).links(number)
    assert link.markdown in note and link.name == "trial-0000-failure.txt"
    text = get_file(record, link.url_path, FileSystemArtifactStore(folder.artifacts_path)).decode()
    assert all(line in text for line in lines) and "the last line, api_key=***" in text and "sk-abc" not in text
    assert len(text) < LOG_TAIL_BYTES + 2000
    board.finish()
    assert len(list(folder.artifacts_path.iterdir())) == 1


def test_advice_follows_from_what_the_servers_log_says_was_given(record: StudyRecord, folder: StudyFolder) -> None:
    log = (Path(__file__).parents[1] / "diagnosis" / "logs" / "kv_too_small.log").read_text()
    outcome = Infeasible(kind="kv_capacity", phase="kv_alloc", cause="no room", logs={"server": log})
    number = fail(record, folder, outcome)
    assert advice_of(folder, number, outcome) != advice_of(folder, number, replace(outcome, kind="weights"))
    verdict = judge_servers(scan_servers(read_lines(log.splitlines())), Circumstances())
    assert verdict is not None and advice_of(folder, number, outcome) == verdict.advice
    StudyBoard(record, ABOUT, folder).after_trial(number)
    assert all(text in note_of(record, number) for text in verdict.advice)


def test_failures_from_before_are_linked_at_the_end(record: StudyRecord, folder: StudyFolder) -> None:
    number = fail(record, folder, Broken(cause="port 8000 is taken", kind="port"))
    StudyBoard(record, ABOUT, folder).finish()
    note = note_of(record, number)
    assert "**port**, not the configuration's fault" in note and "repeat on another port" in note
    assert "trial-0000-failure.txt" in note


@pytest.mark.parametrize("is_there", [True, False])
def test_what_cannot_be_written_stops_nothing(
    artifacts: StudyArtifacts,
    record: StudyRecord,
    folder: StudyFolder,
    caplog: pytest.LogCaptureFixture,
    is_there: bool,
) -> None:
    if is_there:
        folder.artifacts_path.write_text("a file is where the folder should be")
    number = fail(record, folder, Infeasible(kind="weights", phase="load", cause="too large"))
    board = StudyBoard(record, ABOUT, folder)
    with caplog.at_level(logging.WARNING):
        board.after_trial(number)
        board.attach_front([YAML])
        board.finish()
    assert "Failed as **weights**" in note_of(record, number) and "demo" in note_of(record)
    assert bool(caplog.records) == is_there == ("trial-0000.yaml" not in note_of(record))


def test_a_dashboard_that_lacks_what_we_call_stops_nothing(
    artifacts: StudyArtifacts, record: StudyRecord, folder: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("optuna_dashboard.artifact.get_artifact_path")
    board = StudyBoard(record, ABOUT, folder)
    board.after_trial(0)
    board.attach_front([YAML])
    board.finish()
    assert "demo" in note_of(record) and "keeps every limit" in note_of(record, 0)


def test_a_report_is_linked_once_it_is_written(
    artifacts: StudyArtifacts, record: StudyRecord, folder: StudyFolder
) -> None:
    StudyBoard(record, ABOUT, folder).finish()
    folder.report_path.write_text("<p>first</p>")
    for text in ("<p>first</p>", "<p>second</p>"):
        folder.report_path.write_text(text)
        assert link_report(folder, record.url) is None
    note = note_of(record)
    assert note.count("report.html") == 1 and "## Files" in note
    (link,) = fresh(record, folder).links()
    store = FileSystemArtifactStore(folder.artifacts_path)
    assert get_file(record, link.url_path, store) == b"<p>second</p>"
    StudyBoard(record, ABOUT, folder).refresh()
    assert note_of(record).count(link.markdown) == 1, "the driver links it, too"


def test_why_a_report_is_not_linked_is_one_line(record: StudyRecord, folder: StudyFolder, tmp_path: Path) -> None:
    folder.report_path.write_text("<p>")
    assert "not a study" in (link_report(folder) or "") or "not there" in (link_report(folder) or "")
    assert "no study" in (link_report(folder, f"sqlite:///{tmp_path / 'other.db'}") or "")
    lock = DriverLock(folder.path)
    assert "its driver links the report" in (link_report(folder, record.url) or "")
    lock.release()
    folder.report_path.unlink()
    assert "not linked" in (link_report(folder, record.url) or "")


def test_a_file_is_put_into_any_note() -> None:
    file = Link("report.html", "/artifacts/1/ab")
    line = "* [report.html](/artifacts/1/ab)\n"
    assert with_file("", file) == f"\n\n## Files\n\n{line}"
    listed = with_file("# s\n\n## Files\n\n* [a](b)\n\n## Next\n", file)
    assert listed == f"# s\n\n## Files\n\n{line}* [a](b)\n\n## Next\n"
    assert with_file(listed, file) == listed
