"""Studies on real vLLM through the command line, over a light trace that a tiny model on two cores answers in seconds."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil

from tests.small_study import environment

MODULE = (sys.executable, "-m")
FEW = ("--smoke", "--set", "enforce_eager=true", "--set", "block_size=32")


def write_trace(path: Path, n: int = 700) -> Path:
    """About five short requests a second, enough for two windows."""
    rng = np.random.default_rng(1)
    arrival_s = np.cumsum(rng.exponential(0.2, n))
    rows = [
        f"2026-01-01 00:{int(t // 60):02d}:{t % 60:09.6f},{rng.integers(20, 120)},{rng.integers(8, 40)}"
        for t in arrival_s
    ]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    return path


def study_arguments(model: Path, python: str, trace: Path, *more: str) -> list[str]:
    return [
        "--profile", "chat", "--trace", str(trace), "--engine", "vllm", "--model", str(model),
        "--vllm-python", python, "--study", "s", *FEW, *more,
    ]  # fmt: skip


def start(folder: Path, module: str, *argv: str) -> subprocess.Popen[str]:
    """In a session of its own, its output in files: a pipe that nobody reads would stop it."""
    with (folder / "out.txt").open("a") as out, (folder / "err.txt").open("a") as err:
        return subprocess.Popen(
            [*MODULE, module, *argv], cwd=folder, env=environment(), stdout=out, stderr=err, text=True,
            start_new_session=True,
        )  # fmt: skip


def run(folder: Path, module: str, *argv: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MODULE, module, *argv], cwd=folder, env=environment(), capture_output=True, text=True, timeout=timeout_s,
        check=False,
    )  # fmt: skip


def wait_for(what: str, path: Path, process: subprocess.Popen[str], timeout_s: float = 300) -> None:
    """Until the file holds the text. Fails when the process ends first."""
    until = time.monotonic() + timeout_s
    while time.monotonic() < until:
        if path.exists() and what in path.read_text():
            return
        assert process.poll() is None, path.parent
        time.sleep(0.2)
    raise AssertionError(f"{what!r} not seen in {path} within {timeout_s:g} s")


def descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def seconds_until_gone(processes: list[psutil.Process], within_s: float = 30.0) -> float:
    """Until none of them lives. Raises AssertionError, naming those that do, after `within_s`."""
    begin_s = time.monotonic()
    while True:
        alive = [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        if not alive:
            return time.monotonic() - begin_s
        assert time.monotonic() - begin_s < within_s, [(p.pid, p.name(), p.cmdline()[:6]) for p in alive]
        time.sleep(0.1)
