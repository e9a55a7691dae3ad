"""A run that is killed, interrupted or out of disk loses nothing recorded, and the same command with --resume goes on."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.integration.conftest import MODULE, SMALL, Ran, Run, child
from tests.small_study import environment, write_profile

N_TRIALS = 10
STUDY = (*SMALL, "--study", "s", "--n-trials", str(N_TRIALS))


def start(folder: Path, *argv: str) -> subprocess.Popen[str]:
    """In a session of its own, so that a signal to it reaches nothing else."""
    return subprocess.Popen(
        [*MODULE, *argv], cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def wait_for(process: subprocess.Popen[str], text: str, timeout_s: float = 60) -> list[str]:
    """Lines read until one holds `text`."""
    lines: list[str] = []
    deadline = time.monotonic() + timeout_s
    assert process.stdout is not None
    while time.monotonic() < deadline:
        line = process.stdout.readline()
        assert line, f"ended before {text!r}: {lines} {process.stderr.read() if process.stderr else ''}"
        lines.append(line.rstrip("\n"))
        if text in line:
            return lines
    raise AssertionError(f"{text!r} not seen within {timeout_s} s: {lines}")


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=30)


def stored(folder: Path) -> dict[str, str]:
    """Every finished run and what it came to."""
    root = folder / "studies" / "s"
    return {str(p.relative_to(root)): p.read_text() for p in root.glob("*/**/outcome.json")}


def finish(folder: Path, *argv: str) -> Ran:
    ran = child(folder, *argv, "--resume")
    assert (ran.code, ran.err) == (0, ""), ran.out + ran.err
    return ran


def check_whole(ran: Ran, n_trials: int = N_TRIALS) -> None:
    """The total it would have had, each number once, nothing still running."""
    trials = ran.trials("s")
    assert [t.number for t in trials] == list(range(n_trials))
    assert all(t.is_finished for t in trials)
    configs = [repr(sorted(t.parameters.items())) for t in trials]
    assert len(configs) == len(set(configs))
    assert [m["trial"] for m in ran.members("s")] == list(range(n_trials))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("undisturbed")
    write_profile(folder)
    ran = child(folder, *STUDY)
    assert ran.code == 0
    return ran


def test_killed_in_every_stage_and_gone_on_with_it_ends_as_if_nothing_had_been(folder: Path, undisturbed: Ran) -> None:
    moments = ("calibration 1/1: vLLM defaults at", "[2/10]", "[5/10]", "confirmation 2/")
    before: dict[str, str] = {}
    for k, moment in enumerate(moments):
        process = start(folder, *STUDY, *(["--resume"] if k else []))
        wait_for(process, moment)
        kill(process)
        now = stored(folder)
        assert before.items() <= now.items(), "what was recorded stays as it was"
        before = now
    ran = finish(folder, *STUDY)
    assert before.items() <= stored(folder).items()
    check_whole(ran)
    told, plain = ran.members("s"), undisturbed.members("s")
    assert [m["configs"] for m in told] == [m["configs"] for m in plain]
    for mine, theirs in zip(told, plain, strict=True):
        assert (mine["objectives"] is None) == (theirs["objectives"] is None)
        if mine["objectives"] is not None:
            assert mine["objectives"] == pytest.approx(theirs["objectives"])
    assert [m["picks"] for m in told] == [m["picks"] for m in plain]


def test_killed_at_random_moments_it_still_ends_at_the_same_total(folder: Path) -> None:
    rng = random.Random(11)
    for k in range(4):
        process = start(folder, *STUDY, *(["--resume"] if k else []))
        time.sleep(rng.uniform(1.2, 3.5))
        kill(process)
    check_whole(finish(folder, *STUDY))


def test_a_finished_study_is_answered_again_without_running_anything(folder: Path) -> None:
    first = child(folder, *STUDY)
    again = finish(folder, *STUDY)
    assert "[10/10]" not in again.out and "calibration 1" not in again.out and "rates 1/" not in again.out
    assert again.front("s")["members"] == first.front("s")["members"]
    more = finish(folder, *STUDY[:-1], str(N_TRIALS + 2))
    assert "[11/12]" in more.out and "[10/12]" not in more.out
    check_whole(more, N_TRIALS + 2)


def test_ctrl_c_is_one_line_with_the_command_that_goes_on(folder: Path) -> None:
    process = start(folder, *STUDY)
    wait_for(process, "[3/10]")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.strip() == (
        "interrupted; nothing recorded is lost, go on with: python -m optimizer.run " + " ".join(STUDY) + " --resume"
    )
    assert not (folder / "studies" / "s" / "driver.lock").exists()
    check_whole(finish(folder, *STUDY))


def test_ctrl_c_during_calibration_can_be_gone_on_with_by_the_command_it_prints(folder: Path) -> None:
    process = start(folder, *SMALL, "--n-trials", "3")
    wait_for(process, "calibration 1/1")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in err
    command = err.strip().split("python -m optimizer.run ")[1].split()
    assert command[-3:] == ["--study", "small-1", "--resume"]
    ran = child(folder, *command)
    assert ran.code == 0 and len(ran.members()) == 3


def test_resume_without_a_name_goes_on_with_the_last_study_of_the_profile(folder: Path) -> None:
    process = start(folder, *SMALL, "--n-trials", "4")
    wait_for(process, "[1/4]")
    kill(process)
    ran = finish(folder, *SMALL, "--n-trials", "4")
    assert [p.name for p in (folder / "studies").iterdir()] == ["small-1"]
    assert len(ran.members()) == 4


def test_the_front_is_there_for_the_dashboard_and_the_export_while_it_runs(folder: Path) -> None:
    process = start(folder, *SMALL, "--study", "s", "--n-trials", "30")
    try:
        wait_for(process, "[12/30]")
        body = json.loads((folder / "studies" / "s" / "front" / "front.json").read_text())
        assert len(body["members"]) + len(body["others"]) >= 10
        told = subprocess.run(
            [sys.executable, "-m", "optimizer.export", "s", "--output", "-"],
            cwd=folder, env=environment(), capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert told.returncode == 0, told.stderr
        second = child(folder, *SMALL, "--study", "s", "--n-trials", "30", "--resume")
        assert second.code == 2 and f"is being run by process {process.pid}" in second.error
    finally:
        kill(process)


def test_an_existing_study_is_refused_and_a_missing_one_is_started_and_said(small: Run) -> None:
    first = small("--study", "s", "--n-trials", "1", "--resume")
    assert first.code == 0 and "there is no study 's' to resume: it is started" in first.out
    again = small("--study", "s", "--n-trials", "1")
    assert again.code == 2
    assert again.error == "error: --study s: studies/s exists; add --resume to go on with it, or choose another name"


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        (["--gpu", "L4-24"], "gpu: A10G-24 in the study, L4-24 now"),
        (["--model", "Qwen3-8B"], "model: meta-llama/Llama-3.1-8B in the study, Qwen/Qwen3-8B now"),
        (["--slo", "ttft_p99_ms<=500"], "limits: "),
        (["--rate", "0.5"], "settings rate: nothing in the study, 0.5 now"),
        (["--noise", "0"], "settings noise: 1.0 in the study, 0.0 now"),
        (["--seed", "3"], "seed: 0 in the study, 3 now"),
        (["--sampler", "random"], "sampler: tpe in the study, random now"),
        (["--max-model-len", "8192"], "settings max_model_len: 14336 in the study, 8192 now"),
        (["--set", "watermark=0.1"], "space "),
        (["--trace", "azure-code"], "workload "),
        (["--storage", "sqlite:///other.db"], "storage: study.db in its folder in the study, sqlite:///other.db now"),
    ],
)
def test_resuming_with_other_terms_is_refused_with_the_difference(
    changes: list[str], difference: str, calibrated: Path, small: Run
) -> None:  # case OPT-07
    before = sorted(str(p) for p in calibrated.rglob("*"))
    ran = small("--study", str(calibrated), "--n-trials", "1", "--resume", *changes)
    assert ran.code == 2
    assert ran.error.startswith("error: study 's' cannot be resumed: ") and difference in ran.error, ran.error
    assert sorted(str(p) for p in calibrated.rglob("*")) == before


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrated")
    write_profile(folder)
    assert child(folder, *SMALL, "--study", "s", "--n-trials", "1").code == 0
    return folder / "studies" / "s"


def test_other_objectives_are_refused(calibrated: Path, small: Run, folder: Path) -> None:
    write_profile(folder, ("  - {metric: steady_itl_p99_ms, direction: minimize}\n", ""))
    ran = small("--study", str(calibrated), "--n-trials", "1", "--resume")
    assert ran.code == 2 and "objectives: minimize steady_itl_p99_ms in the study, nothing now" in ran.error


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the size of files as Linux does")
def test_a_full_disk_is_one_line_and_the_study_goes_on_once_there_is_room(folder: Path) -> None:
    """Files may not grow beyond 150 kB: SQLite's tables alone are larger, raw samples are smaller."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))

    done = subprocess.run(
        [*MODULE, *STUDY], cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, preexec_fn=limit
    )
    assert done.returncode not in (0, 1) and "Traceback" not in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "no space left" in done.stderr, done.stderr
    check_whole(finish(folder, *STUDY))


def test_no_process_is_left_behind(folder: Path) -> None:
    process = start(folder, *STUDY)
    wait_for(process, "[1/10]")
    children = psutil.Process(process.pid).children(recursive=True)
    kill(process)
    assert not [c for c in children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE]
    assert not any(os.path.exists(f"/proc/{c.pid}") for c in children)
