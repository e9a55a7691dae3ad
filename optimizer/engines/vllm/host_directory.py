"""What all our processes on this host agree on: one private folder a user, for locks and the records of servers.

Locks are flocks on files in it: the kernel drops them when their last holder ends, however it ends, so none is ever
stale. The files themselves stay; they are empty.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from optimizer.errors import Unavailable


def host_directory() -> Path:
    """The folder, made when it is missing. Raises Unavailable if another user made one in its place."""
    path = Path(tempfile.gettempdir()) / f"vco-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Unavailable(f"{path} is not a folder of this user alone; remove it, or set TMPDIR to another folder")
    return path


def subdirectory(name: str) -> Path:
    path = host_directory() / name
    path.mkdir(exist_ok=True)
    return path


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock until it, and every copy another process was given, is closed; None if taken."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock, waiting for it as long as another holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
