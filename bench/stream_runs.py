"""One client against one streaming server: what it read, what the server had sent, and what it cost."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from bench.stream_clients import ARRIVE_WITHIN_S, PROMPT_TOKENS, TOKENS
from bench.streaming_server import PORT
from optimizer.processes import end_all, session_of


@dataclass(frozen=True)
class Run:
    """One client against one server."""

    n_events: int
    cpu_us: float
    """CPU microseconds an event, of every process of the client."""
    fixed_cpu_s: float
    """CPU seconds before the first stream and after the last."""
    server_gap_p99_ms: float
    client_gap_p99_ms: float
    read_lag_p99_ms: float | None = None
    backlog_ms: float | None = None
    """Median read lag over the last quarter."""
    send_lag_p99_ms: float | None = None
    sent_per_s: float = 0.0
    read_per_s: float = 0.0
    """Events per second over the middle half of all events."""


class Meter:
    """CPU seconds of a process and all below it, read four times a second."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._seen: dict[int, float] = {}
        self._times_s: list[float] = []
        self._cpu_s: list[float] = []
        self.total_s = 0.0

    def follow(self) -> None:
        """Until the process has ended, which its parent has yet to notice."""
        while self._root.status() != psutil.STATUS_ZOMBIE:
            for process in (self._root, *self._root.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    self._seen[process.pid] = times.user + times.system
            self._times_s.append(time.monotonic())
            self._cpu_s.append(sum(self._seen.values()))
            time.sleep(0.25)

    def between_s(self, begin_s: float, end_s: float) -> float:
        begin, end = np.interp([begin_s, end_s], self._times_s, self._cpu_s)
        return float(end - begin)


def run_own(name: str, n_streams: int, step_ms: float, n_processes: int = 1) -> Run:
    command = [sys.executable, "-m", "bench.stream_clients", name, str(n_streams), str(n_processes)]
    cores = (last_core(),) if n_processes == 1 else tuple(sorted(os.sched_getaffinity(0)))
    with server(step_ms):
        output, meter = run_pinned(command, cores)
        log = take_log()
    data = json.loads(output.splitlines()[-1])
    sent_s = np.concatenate([np.array(s["sent_s"]) for s in log])
    read_s = np.concatenate([np.array(data["times"][s["request"]]) for s in log])
    lags_s = read_s - sent_s
    return Run(
        **costs(log, meter),
        client_gap_p99_ms=gap_p99_ms([np.array(t) for t in data["times"].values()]),
        read_lag_p99_ms=1e3 * float(np.percentile(lags_s, 99)),
        backlog_ms=1e3 * float(np.median(lags_s[sent_s > np.percentile(sent_s, 75)])),
        send_lag_p99_ms=data["send_lag_p99_ms"],
        sent_per_s=middle_rate(sent_s),
        read_per_s=middle_rate(read_s),
    )


def run_vllm(python: str, model: str, n_streams: int, step_ms: float) -> Run:
    with TemporaryDirectory() as folder, server(step_ms):
        words = f"""bench serve --backend openai --base-url http://127.0.0.1:{PORT} --endpoint /v1/completions
            --dataset-name random --random-input-len {PROMPT_TOKENS} --random-output-len {TOKENS} --ignore-eos
            --num-prompts {n_streams} --request-rate {n_streams / ARRIVE_WITHIN_S:g} --disable-tqdm
            --ready-check-timeout-sec 0 --save-result --save-detailed --result-filename r.json --result-dir"""
        main = "from vllm.entrypoints.cli.main import main; main()"
        command = [python, "-c", main, *words.split(), folder, "--model", model]
        _, meter = run_pinned(command, (last_core(),))
        log, result = take_log(), json.loads((Path(folder) / "r.json").read_text())
    gaps_s = np.concatenate([np.array(gaps) for gaps in result["itls"]])
    return Run(**costs(log, meter), client_gap_p99_ms=1e3 * float(np.percentile(gaps_s, 99)))


def costs(log: list[dict[str, Any]], meter: Meter) -> dict[str, Any]:
    """What the server's log and the client's meter say of a run."""
    sent_s = [np.array(s["sent_s"]) for s in log]
    n_events = sum(s.size for s in sent_s)
    cpu_s = meter.between_s(min(s["came_s"] for s in log), max(float(s[-1]) for s in sent_s))
    return {
        "n_events": n_events,
        "cpu_us": 1e6 * cpu_s / n_events,
        "fixed_cpu_s": meter.total_s - cpu_s,
        "server_gap_p99_ms": gap_p99_ms(sent_s),
    }


@contextlib.contextmanager
def server(step_ms: float) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.streaming_server", str(PORT), str(step_ms)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        os.sched_setaffinity(process.pid, (min(os.sched_getaffinity(0)),))
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise SystemExit("the streaming server did not start")
        yield
    finally:
        process.kill()
        process.wait()
        end_all(lambda: session_of(process.pid), 5.0)


def run_pinned(command: Sequence[str], cores: tuple[int, ...]) -> tuple[str, Meter]:
    """Output and CPU of a command and everything below it, on these cores."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    with (
        TemporaryDirectory() as folder,
        (Path(folder) / "out").open("w") as out,
        (Path(folder) / "err").open("w") as err,
    ):
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
        os.sched_setaffinity(process.pid, cores)
        meter = Meter(process.pid)
        meter.follow()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        meter.total_s = usage.ru_utime + usage.ru_stime
        if process.returncode:
            errors = (Path(folder) / "err").read_text()[-2000:]
            raise SystemExit(f"{' '.join(command[:4])} ended with {process.returncode}: {errors}")
        return (Path(folder) / "out").read_text(), meter


def take_log() -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/log") as reply:
        log: list[dict[str, Any]] = json.load(reply)
    return log


def gap_p99_ms(times_s: list[NDArray[np.float64]]) -> float:
    return 1e3 * float(np.percentile(np.concatenate([np.diff(t) for t in times_s]), 99))


def middle_rate(times_s: NDArray[np.float64]) -> float:
    """Events per second over the middle half of all events."""
    ordered = np.sort(times_s)
    low, high = ordered.size // 4, 3 * ordered.size // 4
    return float((high - low) / max(ordered[high] - ordered[low], 1e-9))


def last_core() -> int:
    return max(os.sched_getaffinity(0))
