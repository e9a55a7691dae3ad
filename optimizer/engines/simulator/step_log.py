"""Writing down every step of a simulated load: one file an instance and load, whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

from optimizer.engines.simulator.steps import StepRecord, lines_of
from optimizer.errors import UserError

UNFINISHED = ".part"
"""Behind the name of a log that is still being written, or whose process was killed."""


def log_path(pattern: str, load: str, instance: str) -> Path:
    """`{load}` and `{instance}` in the pattern filled in; a name that is a path becomes one word."""
    named = pattern.replace("{load}", load).replace("{instance}", instance.replace(os.sep, "_"))
    return Path(named)


class StepLog:
    """JSON lines, as `steps.read_steps` reads them. The file appears under its name when the load has ended.

    Raises UserError where it cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unfinished = path.with_name(path.name + UNFINISHED)
        with _writable(path):
            self._file: IO[str] = self._unfinished.open("w", encoding="utf-8")

    def write(self, step: StepRecord) -> None:
        with _writable(self.path):
            self._file.writelines(lines_of((step,)))

    def __enter__(self) -> StepLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._file.close()
            self._unfinished.unlink(missing_ok=True)
            return
        with _writable(self.path):
            self._file.close()
            self._unfinished.replace(self.path)


@contextlib.contextmanager
def _writable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UserError(f"step log {path}: {reason}; name a file in a folder that can be written") from None
