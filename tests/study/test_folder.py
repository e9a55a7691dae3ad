"""The study's folder: whole files or none, one writer, samples that come back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from objectives.measurement import EngineCounters, EngineSample, Measurement, PhaseMeasurement, RequestRecord
from optimizer.engines.engine import BootReport, Instance, Placement
from optimizer.errors import Unavailable, UserError
from optimizer.study.files import json_safe, new_folder, write_atomic, write_json
from optimizer.study.folder import StudyFolder
from optimizer.study.lock import LOCK_FILE, read_owner
from optimizer.trial import Broken, Infeasible, Measured, Stopped, TrialPlan
from search_spaces.config import Config

FULL_DISK_BYTES = 4096


def request(i: int, n: int, **changes: object) -> RequestRecord:
    rng = np.random.default_rng(i)
    times = i * 0.25 + 0.2 + np.cumsum(rng.exponential(0.02, n))
    plain: dict[str, object] = {
        "request_id": i,
        "tenant": "chat" if i % 3 else "batch",
        "scheduled_s": i * 0.25 - 1.0,
        "sent_s": i * 0.25 - 0.999,
        "prompt_tokens": 100 + i,
        "asked_output_tokens": n,
        "token_times_s": times,
    }
    return RequestRecord(**{**plain, **changes})  # type: ignore[arg-type]


def phase(n_requests: int = 20, n_tokens: int = 30) -> PhaseMeasurement:
    records = [request(i, n_tokens) for i in range(n_requests)]
    records[1] = request(1, 0, failure="timed out")
    records[2] = request(2, 4, tokens_per_message=np.array([1, 2, 1, 3], np.int32), cached_prompt_tokens=0)
    records[3] = request(3, 1, n_preemptions=2, recomputed_tokens=55, failure="connection reset")
    samples = (EngineSample(0.5, "chat", 3, 1, 0.25, 0), EngineSample(1.0, "batch", None, None, None))
    counters = {"chat": EngineCounters(1.0, 2.0, None, 400), "batch": EngineCounters()}
    return PhaseMeasurement("steady", tuple(records), 1, 4.0, 0.0, 5.0, 9.25, samples, counters, 10**9, None, None)


def measured(n_requests: int = 20, n_tokens: int = 30) -> Measured:
    steady = phase(n_requests, n_tokens)
    boot = BootReport({"load": 12.5}, {"chat": 1000}, {"chat": 62}, None, {"version": "0.32", "gpu": np.int64(1)})
    measurement = Measurement({"steady": steady}, True, "simulator 0.1.0", {"chat": 1000})
    return Measured(
        measurement=measurement, findings=("fine",), boot=boot, engine_seconds={"boot": 12.5}, wall_s=1.5, worker="w0"
    )


def plan(trial: int = 7, run: int = 0, **arguments: object) -> TrialPlan:
    config = Config({"max_num_seqs": 64, **arguments})  # type: ignore[dict-item]
    return TrialPlan(
        trial=trial, run=run, purpose="search", placement=Placement((Instance("server", config, ("chat",)),)),
        loads=(), seed=1,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder.locate("demo", tmp_path).claim()


def same_times(a: RequestRecord, b: RequestRecord) -> bool:
    return bool(np.abs(a.token_times_s - b.token_times_s).max(initial=0.0) <= 0.5e-7 + 1e-12)


def test_a_measurement_comes_back(folder: StudyFolder) -> None:
    outcome = measured()
    folder.save_outcome(plan(), outcome)
    back = folder.load_outcome(7)
    assert isinstance(back, Measured)
    before, after = outcome.measurement.phases["steady"], back.measurement.phases["steady"]
    assert all(same_times(a, b) for a, b in zip(before.records, after.records, strict=True))
    for name in RequestRecord.__slots__:
        if name not in ("token_times_s", "tokens_per_message"):
            assert [getattr(r, name) for r in before.records] == [getattr(r, name) for r in after.records]
    counts = after.records[2].tokens_per_message
    assert counts is not None and counts.tolist() == [1, 2, 1, 3] and after.records[0].tokens_per_message is None
    assert (after.samples, dict(after.counters)) == (before.samples, dict(before.counters))
    assert (after.offered_per_s, after.end_s, after.min_free_memory_bytes) == (4.0, 9.25, 10**9)
    assert back.measurement.kv_tokens == {"chat": 1000} and back.findings == ("fine",) and back.worker == "w0"
    assert back.boot is not None and back.boot.seconds == {"load": 12.5} and back.boot.facts["gpu"] == 1


@pytest.mark.parametrize(
    "outcome",
    [
        Infeasible(kind="oom", phase="load", cause="no room", violation=0.3),
        Broken(cause="port taken"),
        Stopped(measurement=measured().measurement, bound="unsustained", violation=0.6, reason="too slow"),
    ],
)
def test_every_outcome_comes_back(folder: StudyFolder, outcome: Infeasible | Broken | Stopped) -> None:
    folder.save_outcome(plan(run=2), outcome)
    back = folder.load_outcome(7, 2)
    assert type(back) is type(outcome)
    for name in ("kind", "phase", "cause", "violation", "bound", "reason"):
        assert getattr(back, name, None) == getattr(outcome, name, None)
    assert folder.load_outcome(7, 3) is None
    assert folder.runs_of(7) == {2: "search"}


def test_an_empty_phase_and_a_long_silence_come_back(folder: StudyFolder) -> None:
    silent = request(0, 2, token_times_s=np.array([0.5, 4000.0]))
    late = PhaseMeasurement("stress", (silent,), 1, None, 0.0, 1.0, 1.0)
    none = PhaseMeasurement("saturation", (), 1, None, 0.0, 1.0, 1.0)
    measurement = Measurement({"stress": late, "saturation": none}, False, "e")
    folder.save_outcome(plan(), Measured(measurement=measurement))
    back = folder.load_outcome(7)
    assert isinstance(back, Measured)
    assert back.measurement.phases["stress"].records[0].token_times_s.tolist() == [0.5, 4000.0]
    assert back.measurement.phases["saturation"].records == ()


def test_a_run_of_usual_size_is_quick_and_small(folder: StudyFolder) -> None:
    outcome = measured(1000, 200)
    started = time.process_time()
    path = folder.save_outcome(plan(), outcome)
    assert time.process_time() - started < 0.5
    assert (path / "samples.npz").stat().st_size < 800_000, "1.6 MB as raw floats"


def test_damaged_run_is_named(folder: StudyFolder) -> None:
    path = folder.save_outcome(plan(), measured())
    (path / "samples.npz").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(UserError, match="run-0: the stored run is damaged"):
        folder.load_outcome(7)


def test_calibration_runs_lie_apart(folder: StudyFolder) -> None:
    calibration = TrialPlan(-1, 3, "calibration", plan().placement, (), 0)
    path = folder.save_outcome(calibration, Broken(cause="x"))
    assert path == folder.path / "runs" / "calibration-003"
    assert isinstance(folder.load_outcome(-1, 3, "calibration"), Broken)
    with pytest.raises(ValueError, match="purpose"):
        folder.run_path(-1, 0, "../../x")


def test_secrets_are_not_stored(folder: StudyFolder) -> None:
    # case EDGE-16
    key = "sk-" + "PLACEHOLDER0123456789"
    path = folder.save_outcome(plan(api_key=key, hf_token="hf_" + "PLACEHOLDER1"), Broken(cause="x"))
    text = (path / "outcome.json").read_text()
    assert "PLACEHOLDER" not in text and '"max_num_seqs": 64' in text


def test_half_a_folder_never_shows(tmp_path: Path) -> None:
    target = tmp_path / "run-0"
    with pytest.raises(RuntimeError), new_folder(target) as tmp:
        (tmp / "outcome.json").write_text("{}")
        raise RuntimeError("killed")
    assert list(tmp_path.iterdir()) == []
    for text in ("one", "two"):
        with new_folder(target) as tmp:
            (tmp / "a").write_text(text)
    assert (target / "a").read_text() == "two"


def test_leftovers_of_a_killed_writer_are_swept(folder: StudyFolder) -> None:
    path = folder.save_outcome(plan(), Broken(cause="x"))
    (path.parent / ".run-1.99.tmp").mkdir()
    (folder.path / ".manifest.json.99.tmp").touch()
    folder.release()
    StudyFolder(folder.path).claim().release()
    assert [p.name for p in path.parent.iterdir()] == ["run-0"]
    assert not list(folder.path.glob(".*"))


def test_events_survive_a_torn_line(folder: StudyFolder) -> None:
    folder.append_event({"event": "TrialFinished", "value": float("nan"), "n": np.int64(3)})
    with (folder.path / "events.jsonl").open("a") as file:
        file.write('{"event": "TrialFin')
    assert list(folder.events()) == [{"event": "TrialFinished", "value": None, "n": 3}]


def test_front_is_replaced_as_a_whole(folder: StudyFolder) -> None:
    folder.write_front({"a.yaml": "1", "b.yaml": "2"})
    folder.write_front({"c.yaml": "3", "vllm/d.yaml": "4"})
    assert sorted(p.name for p in folder.front_path.rglob("*")) == ["c.yaml", "d.yaml", "vllm"]
    assert not list(folder.path.glob(".front*"))


def test_second_driver_is_refused_and_a_dead_one_replaced(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from optimizer.study.folder import StudyFolder\n"
        "StudyFolder.locate('demo', Path(sys.argv[1])).claim(); print('ready', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "ready\n"
        with pytest.raises(UserError, match=f"is being run by process {other.pid}"):
            StudyFolder.locate("demo", tmp_path).claim()
    finally:
        other.kill()
        other.wait()
        if other.stdout is not None:
            other.stdout.close()
    folder = StudyFolder.locate("demo", tmp_path).claim()
    owner = read_owner(folder.path / LOCK_FILE)
    assert owner is not None and owner.pid == os.getpid()
    folder.release()
    folder.release()
    assert not (folder.path / LOCK_FILE).exists()


def test_a_reused_pid_or_a_broken_lock_is_no_owner(tmp_path: Path) -> None:
    path = tmp_path / "demo"
    path.mkdir()
    lock = path / LOCK_FILE
    lock.write_text(json.dumps({"pid": os.getppid(), "create_time": 1.0, "host": os.uname().nodename}))
    StudyFolder(path).claim().release()
    lock.write_text("{torn")
    StudyFolder(path).claim().release()
    lock.write_text(json.dumps({"pid": 1, "create_time": 1.0, "host": "another-host"}))
    with pytest.raises(UserError, match=r"on another-host; if that machine is gone, delete .*driver.lock"):
        StudyFolder(path).claim()


def test_a_folder_of_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "thesis.tex").touch()
    with pytest.raises(UserError, match="holds other files and no study"):
        StudyFolder.locate("demo", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="a file is where the study's folder should be"):
        StudyFolder.locate("file", tmp_path)


def test_full_disk_is_one_line_and_leaves_the_old_file(tmp_path: Path) -> None:
    code = f"""
import resource, sys
from pathlib import Path
from optimizer.errors import Unavailable
from optimizer.study.files import write_atomic
resource.setrlimit(resource.RLIMIT_FSIZE, ({FULL_DISK_BYTES}, {FULL_DISK_BYTES}))
path = Path(sys.argv[1]) / "manifest.json"
write_atomic(path, b"old")
try:
    write_atomic(path, b"x" * {10 * FULL_DISK_BYTES})
except Unavailable as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("no space left for") and "--resume" in done.stdout and done.stdout.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["manifest.json"]
    assert (tmp_path / "manifest.json").read_bytes() == b"old"


def test_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    for place in (Path("/proc/nothing"), tmp_path / "plain"):
        with pytest.raises(Unavailable, match=r"cannot write .*; choose another place with --studies"):
            write_atomic(place / "manifest.json", b"x")


def test_json_is_plain(tmp_path: Path) -> None:
    value = {"a": np.float64(1.5), "b": np.arange(2), "c": float("inf"), "d": (1, {2}), "e": Path("x"), 3: np.bool_(1)}
    assert json_safe(value) == {"a": 1.5, "b": [0, 1], "c": None, "d": [1, [2]], "e": "x", "3": True}
    write_json(tmp_path / "x.json", value)
    assert json.loads((tmp_path / "x.json").read_text())["d"] == [1, [2]]
