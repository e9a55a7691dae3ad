"""A server's processes as their owner sees them: started under a guard, looked at, ended."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from optimizer.engines.vllm.registry import END_WITHIN_S, STAMP, ServerRecord
from optimizer.errors import Unavailable
from optimizer.identity import ROOT
from optimizer.processes import Started, existing

DIRECTORY_PREFIX = "vco-"
LONGEST_TEMP = 50
"""Ours adds 13 characters and vLLM's sockets 37; the kernel allows 107."""
_LAUNCH = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from optimizer.engines.vllm.guard import main; main()"


class Guarded:
    """One command under a guard. Whatever thread waits for nothing else listens to the guard: if it is killed, the
    server's processes are ended from here."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        cores: tuple[int, ...] = (),
        lock: int | None = None,
    ) -> None:
        """`lock`: a descriptor that stays open until every process has ended."""
        self.directory = tempfile.mkdtemp(prefix=DIRECTORY_PREFIX, dir=_short_temp_dir())
        self._stamp = secrets.token_hex(8)
        self.exit_code: int | None = None
        """The API server's, negative for a signal; None while it runs."""
        self.failure = ""
        """Why it could not even be started, or was ended by what happened to its guard."""
        self._server: Started | None = None
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._guard = subprocess.Popen(
            [sys.executable, "-P", "-c", _LAUNCH],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=() if lock is None else (lock,),
        )
        guard = Started.of(self._guard.pid)
        assert guard is not None
        self._record = ServerRecord(self._stamp, guard, None, self.directory)
        self._listener = threading.Thread(target=self._listen, daemon=True, name="server-guard")
        self._listener.start()
        self._order(
            {
                "owner": os.getpid(),
                "command": list(command),
                "environment": {**environment, "TMPDIR": self.directory, STAMP: self._stamp},
                "log": str(log),
                "cores": sorted(cores),
                "directory": self.directory,
                "stamp": self._stamp,
            }
        )

    def _order(self, order: object) -> None:
        """To the guard; one that has died is noticed by the listener."""
        assert self._guard.stdin is not None
        with contextlib.suppress(OSError, ValueError), self._lock:
            text = order if isinstance(order, str) else json.dumps(order)
            self._guard.stdin.write(text.encode() + b"\n")
            self._guard.stdin.flush()

    def _listen(self) -> None:
        """Until the guard's output ends; then whatever it could not end is ended from here."""
        assert self._guard.stdout is not None
        has_ended = False
        for line in self._guard.stdout:
            message = json.loads(line)
            self._take(message)
            has_ended = has_ended or "ended" in message
        if not has_ended:
            self.failure = self.failure or "the process that guards the server was killed, and the server with it"
        with contextlib.suppress(Unavailable):
            if not self._record.end(END_WITHIN_S):
                self._record.remove()
        self._is_over.set()

    def _take(self, message: dict[str, Any]) -> None:
        self.failure = message.get("failure", self.failure)
        if message.get("started"):
            self._server = Started(*message["started"])
            self._record = ServerRecord(self._stamp, self._record.guard, self._server, self.directory)
        if message.get("exited") is not None and self.exit_code is None:
            self.exit_code = message["exited"]

    @property
    def is_alive(self) -> bool:
        """Whether the API server runs, asked of the kernel: a stopped guard would not tell."""
        if self.exit_code is not None or self.failure or self._is_over.is_set():
            return False
        return self._server is None or self._server.is_alive

    @property
    def is_over(self) -> bool:
        """Nothing of it is left."""
        return self._is_over.is_set()

    @property
    def pid(self) -> int | None:
        """The API server's."""
        return None if self._server is None else self._server.pid

    @property
    def guard_pid(self) -> int:
        return self._guard.pid

    def processes(self) -> set[psutil.Process]:
        """Those that exist now, without the guard."""
        return set() if self.is_over else self._record.family()

    def wait(self, within_s: float) -> bool:
        return self._is_over.wait(within_s)

    def stop(self, within_s: float, grace_s: float) -> None:
        """In order if it ends within `grace_s`, else by force. A second call does nothing."""
        if not self.is_over:
            self._guard.send_signal(signal.SIGCONT)
            self._order(f"stop {grace_s:g}")
            if not self._is_over.wait(within_s):
                self._end_by_force()
        self._close()

    def _end_by_force(self) -> None:
        """The guard does not answer: it goes first, so that its own end cannot leave anything unfinished."""
        for guard in existing([self._guard.pid]):
            guard.kill()
        self._is_over.wait(2 * END_WITHIN_S)

    def _close(self) -> None:
        for pipe in (self._guard.stdin, self._guard.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._guard.wait()
        self._listener.join()


def _short_temp_dir() -> str:
    wanted = tempfile.gettempdir()
    return wanted if len(wanted) <= LONGEST_TEMP or not os.access("/tmp", os.W_OK) else "/tmp"
