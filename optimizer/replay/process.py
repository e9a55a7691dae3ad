"""The parent's side of one client process."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from typing import Any

from optimizer.errors import EngineFailed
from optimizer.identity import ROOT
from optimizer.replay.share import LENGTH, Count, Share, ShareResult

_LAUNCH = "import sys; sys.path.insert(0, {root!r}); from optimizer.replay.child import main; main({parent})"
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""A client needs no thread pool; each would take a core's time at the start."""


class ClientProcess:
    """One process, started when built. A thread hears it out, so that it never waits for us."""

    def __init__(self, share: Share) -> None:
        self.is_ready, self.is_over = threading.Event(), threading.Event()
        self.count = Count()
        self.result: ShareResult | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _LAUNCH.format(root=str(ROOT), parent=os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **dict.fromkeys(THREADS, "1")},
            start_new_session=True,
        )
        self._listener = threading.Thread(target=self._talk, args=(share,), daemon=True, name="replay client")
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, **message: Any) -> None:
        """Nothing happens if it is over."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """End it now and wait for it. A second call does nothing."""
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._errors.close()

    def failed(self) -> EngineFailed:
        """Why it ended without a result: ours, never the configuration's."""
        status = self._process.poll()
        how = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
        words = f": {line}" if (line := self._last_line()) else ""
        cause = f"a client process (pid {self.pid}) ended with {how} before its requests were answered{words}"
        return EngineFailed("client", None, cause, is_config_fault=False)

    def _last_line(self) -> str:
        self._errors.seek(max(os.fstat(self._errors.fileno()).st_size - 4096, 0))
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _talk(self, share: Share) -> None:
        try:
            self._give(share)
            self._listen()
        except (OSError, ValueError, EOFError):  # its pipes broke: `failed` says how it ended
            pass
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0 if self.result is None else 0.0)
            self.is_over.set()
            self.is_ready.set()

    def _give(self, share: Share) -> None:
        assert self._process.stdin is not None
        data = pickle.dumps(share, protocol=5)
        self._process.stdin.write(LENGTH.pack(len(data)) + data)
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "count" in message:
                self.count = Count(**message["count"])
            elif "ready" in message:
                self.is_ready.set()
            elif "result" in message:
                result = pickle.loads(self._process.stdout.read(message["result"]))
                assert isinstance(result, ShareResult)
                self.result = result
                return
