"""The storage: locks ridden out, crashes and full disks survived, passwords never shown."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import optuna
import pytest

from optimizer.errors import Unavailable, UserError
from optimizer.study.record import StudyRecord
from optimizer.study.storage import check_storage_url, mask, network_file_system, open_storage, retrying
from tests.study.recording import (
    MEASURED,
    add,
    card,
    terms,
    url_of,
)


def test_passwords_never_show() -> None:
    # case EDGE-16
    url = "postgresql+psycopg://user:se/c@ret@127.0.0.1:1/db?sslpassword=hid"
    assert mask(url) == "postgresql+psycopg://user:***@127.0.0.1:1/db?sslpassword=***"
    for bad in ("postgresql+nonsense://user:secret@h/db", "mysterysql://user:secret@h/db", "user:secret@h"):
        with pytest.raises((UserError, Unavailable)) as caught:
            open_storage(bad)
        assert "\n" not in str(caught.value)
        assert "secret" not in str(caught.value)


def test_a_dead_database_server_is_one_line() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(Unavailable) as caught:
        open_storage("postgresql+psycopg://user:secret@127.0.0.1:1/db")
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_sqlite_on_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # case OPT-08
    mounts = [("/", "ext4"), (str(tmp_path), "nfs4"), (str(tmp_path / "local"), "xfs")]
    assert network_file_system(tmp_path / "study.db", mounts) == "nfs4"
    assert network_file_system(tmp_path / "local" / "study.db", mounts) is None
    assert network_file_system(Path(f"{tmp_path}-other/study.db"), mounts) is None
    partition = type("Partition", (), {"mountpoint": str(tmp_path), "fstype": "nfs4"})
    monkeypatch.setattr("psutil.disk_partitions", lambda all: [partition])
    with pytest.raises(UserError, match=r"network file system \(nfs4\) loses data; put the study on a local disk"):
        check_storage_url(url_of(tmp_path))


def test_a_missing_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist; make it first"):
        open_storage(f"sqlite:///{tmp_path}/none/study.db")


def test_one_plain_file_is_left(tmp_path: Path) -> None:
    record = StudyRecord.open(url_of(tmp_path), "s", terms())
    add(record)
    record.close_storage()
    assert [p.name for p in tmp_path.iterdir()] == ["study.db"]
    connection = sqlite3.connect(tmp_path / "study.db")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    connection.close()


def test_a_locked_file_is_waited_for(record: StudyRecord, tmp_path: Path) -> None:
    # case OPT-08
    locked = threading.Event()

    def hold() -> None:
        connection = sqlite3.connect(tmp_path / "study.db", isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        locked.set()
        time.sleep(0.5)
        connection.execute("ROLLBACK")
        connection.close()

    thread = threading.Thread(target=hold)
    thread.start()
    locked.wait()
    number = add(record)
    thread.join()
    assert record.trial(number).is_feasible


def test_a_lock_that_stays_ends_in_one_line() -> None:
    calls = []

    def locked() -> None:
        calls.append(1)
        raise optuna.exceptions.StorageInternalError("x") from sqlite3.OperationalError("database is locked")

    with pytest.raises(Unavailable, match=r"cannot be used \(database is locked\); .* --resume"):
        retrying(locked, "sqlite:///x.db", retry_for_s=0.2)
    assert len(calls) > 1


def read_forever(url: str, stop: multiprocessing.synchronize.Event) -> None:
    reader = StudyRecord.load(url, "demo")
    while not stop.is_set():
        reader.study._storage.get_all_trials(reader.study._study_id, deepcopy=False)
        reader.study._storage.get_study_system_attrs(reader.study._study_id)


def test_a_busy_reader_costs_no_result(record: StudyRecord) -> None:
    # case OPT-08
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    reader = context.Process(target=read_forever, args=(record.url, stop))
    reader.start()
    try:
        for i in range(25):
            add(record, (1000.0 + i, 200.0, 20.0))
    finally:
        stop.set()
        reader.join(20)
    assert reader.exitcode == 0
    assert [t.values and t.values[0] for t in record.trials()] == [1000.0 + i for i in range(25)]


WRITER = """
import sys
from pathlib import Path
from optimizer.study.record import StudyRecord
from tests.study.recording import MEASURED, PARAMETERS, card, terms
record = StudyRecord.open(sys.argv[1], "demo", terms())
for trial in record.adopt_running():
    record.close(trial.number, MEASURED, card())
while record.n_trials < int(sys.argv[2]):
    number = record.open_trial(PARAMETERS)
    print(number, "open", flush=True)
    record.close(number, MEASURED, card((1000.0 + number, 200.0, 20.0)))
    print(number, "closed", flush=True)
record.close_storage()
print("done", flush=True)
"""


def test_sigkill_loses_nothing_and_the_total_stays(tmp_path: Path) -> None:
    # case OPT-09
    url, closed = url_of(tmp_path), set()
    for n_lines in (7, 12, None):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, url, "16"], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for seen, line in enumerate(writer.stdout, start=1):
            closed |= {int(line.split()[0])} if line.endswith("closed\n") else set()
            if seen == n_lines:
                os.kill(writer.pid, signal.SIGKILL)
                break
        writer.stdout.close()
        writer.wait()
    assert writer.returncode == 0
    record = StudyRecord.load(url, "demo")
    trials = record.trials()
    assert [t.number for t in trials] == list(range(16)) and all(t.is_feasible for t in trials)
    assert all(trials[n].values in ((1000.0 + n, 200.0, 20.0), (1000.0, 200.0, 20.0)) for n in closed)
    record.close_storage()


FULL = """
import resource, sys
from optimizer.errors import Unavailable
from optimizer.study.record import StudyRecord
from tests.study.recording import MEASURED, PARAMETERS, card, terms
record = StudyRecord.open(sys.argv[1], "demo", terms())
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
told = 0
try:
    while told < 500:
        record.close(record.open_trial(PARAMETERS, attributes={"filler": "x" * 5000}), MEASURED, card())
        told += 1
except Unavailable as error:
    print(told, error)
"""


def test_a_full_disk_is_one_line_and_the_study_resumes(tmp_path: Path) -> None:
    url = url_of(tmp_path)
    done = subprocess.run([sys.executable, "-c", FULL, url], capture_output=True, text=True, check=False)
    n_told, _, message = done.stdout.partition(" ")
    assert done.returncode == 0 and "no space left for" in message and "--resume" in message, done.stderr
    assert message.startswith(f"no space left for {tmp_path}/study.db;")
    assert message.count("\n") == 1 and int(n_told) > 3
    record = StudyRecord.open(url, "demo", terms())
    for trial in record.adopt_running():
        record.close(trial.number, MEASURED, card())
    assert int(n_told) <= record.n_trials <= int(n_told) + 1
    assert all(t.is_feasible for t in record.trials())
    add(record)
    record.close_storage()
