"""The process between us and the local Ray: it starts Ray, and ends all of it when we are gone, however we went.

Started by `supervision.LocalRay` in a session of its own, so that Ctrl-C in the terminal does not reach it or Ray.
Its standard input is a pipe that nobody writes to: end of file means that its owner closed it or died. It keeps to
the standard library and psutil, so that it is small and cannot die of Ray.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from optimizer.processes import adopt_orphans, collect_zombies, end_all, session_of

END_WITHIN_S = 20.0
OWNER_FILE = "owner.pid"
LOG_FILE = "start.log"
LEAN_FLAGS = ("--no-monitor", "--include-log-monitor=false", "--dashboard-agent-listen-port=0")
"""Three daemons less to start. Not in `ray start --help`; a Ray that does not know them is started without."""


class Owner:
    """Whether the process that started us still wants us."""

    def __init__(self) -> None:
        self._pid = os.getppid()
        self._is_told_to_stop = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)

    def _stop(self, *_: object) -> None:
        self._is_told_to_stop = True

    def is_gone_after(self, wait_s: float) -> bool:
        """Wait up to `wait_s` for the owner to go. A forked copy of the owner may hold the pipe open: our parent
        changing tells its death as well."""
        readable, _, _ = select.select([sys.stdin], [], [], wait_s)
        is_closed = bool(readable) and not os.read(sys.stdin.fileno(), 1)
        return is_closed or self._is_told_to_stop or os.getppid() != self._pid


def start_command(directory: Path, n_cpus: int, n_gpus: int, object_store_bytes: int) -> list[str]:
    """`ray start` for a head that only this machine can reach, every port chosen by the kernel."""
    return [
        *(
            sys.executable,
            "-P",
            "-m",
            "ray.scripts.scripts",
            "start",
            "--head",
            "--node-ip-address=127.0.0.1",
            "--port=0",
        ),
        *("--min-worker-port=0", "--max-worker-port=0", "--include-dashboard=false", "--disable-usage-stats"),
        *(f"--num-cpus={n_cpus}", f"--num-gpus={n_gpus}", f"--object-store-memory={object_store_bytes}"),
        f"--temp-dir={directory}",
    ]


def start_ray(command: list[str], directory: Path, owner: Owner) -> str | None:
    """Run `ray start` to its end: None when Ray is up, else what went wrong in one line."""
    with (directory / LOG_FILE).open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    while process.poll() is None:
        if owner.is_gone_after(0.05):
            process.kill()
            process.wait()
            return "its owner has gone"
    if process.returncode == 0:
        return None
    return last_line(directory / LOG_FILE) or f"ray start ended with status {process.returncode}"


def last_line(path: Path) -> str:
    lines = [line.strip() for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def supervise(options: dict[str, Any]) -> int:
    """Start Ray, say its address, wait for the owner to go, end everything, remove the directory."""
    adopt_orphans()
    owner, me = Owner(), os.getpid()
    directory = Path(options["directory"])
    (directory / OWNER_FILE).write_text(str(me))
    try:
        failure = boot(options, directory, owner)
        say(failure=failure) if failure else say(address=(directory / "ray_current_cluster").read_text().strip())
        while failure is None and not owner.is_gone_after(1.0):
            collect_zombies()
        return 0 if failure is None else 1
    finally:
        end_all(lambda: session_of(me), END_WITHIN_S)
        shutil.rmtree(directory, ignore_errors=True)


def boot(options: dict[str, Any], directory: Path, owner: Owner) -> str | None:
    command = start_command(directory, options["n_cpus"], options["n_gpus"], options["object_store_bytes"])
    failure = start_ray([*command, *LEAN_FLAGS], directory, owner)
    if failure and "no such option" in failure.lower():
        failure = start_ray(command, directory, owner)
    return failure


def say(**message: str) -> None:
    try:
        print(json.dumps(message), flush=True)
    except BrokenPipeError:  # the owner went meanwhile; the next look at the pipe ends us
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    sys.exit(supervise(json.loads(sys.argv[1])))
