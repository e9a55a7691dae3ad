"""A local Ray of our own that ends with us: on close, on Ctrl-C, on SIGKILL.

Ray's daemons outlive a driver that is killed by a minute or more, and hold its memory and GPUs. So a supervisor
(`supervisor.py`) in a session of its own owns them, and ends them when the pipe from this process closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from optimizer.cluster.supervisor import END_WITHIN_S, OWNER_FILE
from optimizer.errors import Unavailable
from optimizer.identity import ROOT
from optimizer.processes import THREAD_LIMITS, end_all, existing, is_alive, session_of, stamped, wait_until_ended

DIRECTORY_PREFIX = "vco-ray-"
STAMP = "VCO_RAY_DIRECTORY"
"""Environment variable that everything below a local Ray inherits: whose it is."""
OBJECT_STORE_BYTES = 100 * 2**20
"""Plans and outcomes are a few megabytes; Ray's minimum is 75 MiB."""
LONGEST_DIRECTORY = 22
"""Ours adds 17 characters and Ray's sockets up to 65 more; the kernel allows 107, macOS 103."""
_TOKEN = secrets.token_hex(32)
"""One secret for every local Ray of this process: Ray reads it once and keeps it."""

SHARED_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": _TOKEN,
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
"""What Ray's daemons and the driver must agree on. The last one, on Linux too, makes Ray keep 127.0.0.1 instead of
replacing it by the machine's public address (Ray 2.60 _private/services.py, resolve_ip_for_localhost)."""


def daemon_environment(directory: str, gpu_uuids: tuple[str, ...] = ()) -> dict[str, str]:
    """The environment of Ray's daemons and workers: one thread a worker, and only the GPUs that were chosen."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    ours = {**dict.fromkeys(THREAD_LIMITS, "1"), STAMP: directory, "PYTHONPATH": os.pathsep.join(import_path())}
    gpus = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpu_uuids)} if gpu_uuids else {}
    return {**kept, **ours, **SHARED_ENVIRONMENT, **gpus}


def import_path() -> list[str]:
    """What stands before Python's own folders in this process, so that workers import the same code.

    Ray hands on its driver's script folder only, which for `python -m` is not where the packages lie. What stands
    behind them (site-packages) every worker has by itself; handed on, it would come before the standard library."""
    stdlib = sysconfig.get_path("stdlib")
    n_before = next((i for i, p in enumerate(sys.path) if p == stdlib or p.endswith(".zip")), 0)
    ours = [] if str(ROOT) in sys.path[n_before:] else [str(ROOT)]
    return list(dict.fromkeys([str(Path(p or ".").resolve()) for p in sys.path[:n_before]] + ours))


class LocalRay:
    """A Ray head on 127.0.0.1 with `n_cpus` CPUs and the given GPUs, started in the background when built.

    `n_cpus` is what Ray may book, not what the machine has: more workers than cores run slower, and never wait
    for each other."""

    def __init__(self, n_cpus: int, gpu_uuids: tuple[str, ...] = ()) -> None:
        sweep_leftovers()
        self._directory = Path(tempfile.mkdtemp(prefix=DIRECTORY_PREFIX, dir=short_temp_dir()))
        options = {
            "directory": str(self._directory),
            "n_cpus": n_cpus,
            "n_gpus": len(gpu_uuids),
            "object_store_bytes": OBJECT_STORE_BYTES,
        }
        self._supervisor = subprocess.Popen(
            [sys.executable, "-P", "-c", _LAUNCH.format(root=str(ROOT)), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=daemon_environment(str(self._directory), gpu_uuids),
            start_new_session=True,
            text=True,
        )

    def address(self, timeout_s: float) -> str:
        """`host:port` once Ray is up. Raises Unavailable with Ray's own last line if it does not come up."""
        assert self._supervisor.stdout is not None
        readable, _, _ = select.select([self._supervisor.stdout], [], [], timeout_s)
        if not readable:
            raise Unavailable(f"the local Ray did not start within {timeout_s:g} s; try again or use --workers 1")
        line = self._supervisor.stdout.readline()
        message: dict[str, str] = json.loads(line) if line else {"failure": "its supervisor ended"}
        if "address" not in message:
            raise Unavailable(f"the local Ray did not start: {message['failure']}")
        return message["address"]

    def processes(self) -> set[psutil.Process]:
        """The supervisor and all of Ray, now; empty once closed."""
        if self._supervisor.returncode is not None:
            return set()
        supervisor = self._supervisor.pid
        return session_of(supervisor) | existing([supervisor]) | stamped(STAMP, str(self._directory))

    def give_up(self) -> None:
        """Stop starting: `address`, waiting in another thread, raises. `close` is still due."""
        self._supervisor.terminate()

    def close(self) -> None:
        """End all of it; returns when no process is left. A second call does nothing.

        The supervisor is waited for last: until then its number, and so its session's, stays ours."""
        for pipe in (self._supervisor.stdin, self._supervisor.stdout):
            if pipe is not None:
                pipe.close()
        wait_until_ended(lambda: existing([self._supervisor.pid]), END_WITHIN_S)
        end_all(self.processes, END_WITHIN_S)
        self._supervisor.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


_LAUNCH = "import sys; sys.path.insert(0, {root!r}); from optimizer.cluster.supervisor import main; main()"


def short_temp_dir() -> str:
    """Where Ray's directory goes: the user's temporary folder, or /tmp if that path is too long for its sockets."""
    wanted = tempfile.gettempdir()
    return wanted if len(wanted) <= LONGEST_DIRECTORY or not os.access("/tmp", os.W_OK) else "/tmp"


def sweep_leftovers() -> None:
    """End a local Ray whose supervisor was killed too, and remove its directory. Only where no process,
    or a zombie, has the supervisor's number: a directory that may be in use is left alone."""
    for directory in Path(short_temp_dir()).glob(f"{DIRECTORY_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):  # no owner's number: it is only just being made
            supervisor = int((directory / OWNER_FILE).read_text())
            if directory.stat().st_uid == os.getuid() and not any(map(is_alive, existing([supervisor]))):
                end_all(lambda: session_of(supervisor) | stamped(STAMP, str(directory)), END_WITHIN_S)  # noqa: B023
                shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def local_environment() -> Iterator[None]:
    """What this process needs in order to join a local Ray of its own; what stood there before, afterwards."""
    before = {name: os.environ.get(name) for name in SHARED_ENVIRONMENT}
    os.environ.update(SHARED_ENVIRONMENT)
    _keep_loopback(True)
    try:
        yield
    finally:
        _keep_loopback(False)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _keep_loopback(is_kept: bool) -> None:
    """Where Ray was imported before, it has read its environment already: tell it directly."""
    constants = sys.modules.get("ray._private.ray_constants")
    if constants is not None and sys.platform == "linux":
        vars(constants)["ENABLE_RAY_CLUSTER"] = not is_kept
