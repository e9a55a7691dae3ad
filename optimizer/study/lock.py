"""One driver a study: a lock file that says which process writes, and that outlives no process."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from optimizer.errors import UserError
from optimizer.study.files import write_json

LOCK_FILE = "driver.lock"


@dataclass(frozen=True)
class Owner:
    """A process, named so that a reused pid is not taken for it."""

    pid: int
    create_time: float
    host: str

    @classmethod
    def current(cls) -> Owner:
        return cls(os.getpid(), psutil.Process().create_time(), socket.gethostname())

    @property
    def is_alive(self) -> bool:
        """True for a process on another host: it cannot be looked at from here."""
        if self.host != socket.gethostname():
            return True
        try:
            process = psutil.Process(self.pid)
            return abs(process.create_time() - self.create_time) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


class DriverLock:
    """Held from construction to `release`. A lock whose process is gone is taken over.

    Raises UserError when another live driver holds it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_FILE
        self._owner = Owner.current()
        with _only_one(folder):
            other = read_owner(self._path)
            if other is not None and other != self._owner and other.is_alive:
                where = (
                    ""
                    if other.host == self._owner.host
                    else f" on {other.host}; if that machine is gone, delete {self._path}"
                )
                raise UserError(
                    f"the study in {folder} is being run by process {other.pid}{where}; wait for it or stop it first"
                )
            write_json(self._path, asdict(self._owner))

    def release(self) -> None:
        """A second call does nothing, and a lock that somebody else took is left alone."""
        if read_owner(self._path) == self._owner:
            self._path.unlink(missing_ok=True)


def read_owner(path: Path) -> Owner | None:
    """None without a lock, or when it cannot be read (written by no version of this program)."""
    try:
        return Owner(**json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Two processes that find the same stale lock take it one after the other (flock on the folder, for an instant)."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks: the owner's pid still decides
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
