"""Writing files so that a reader, a crash or a full disk never meets half of one."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from optimizer.errors import Unavailable

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """What the file system refuses becomes one line that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise full_disk(path) from error
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise Unavailable(f"cannot write {path}: {reason}; choose another place with --studies") from error


def full_disk(path: Path) -> Unavailable:
    """The one line for a full disk."""
    return Unavailable(
        f"no space left for {path}; nothing recorded is lost: free some space and run the same command with --resume"
    )


def write_atomic(path: Path, data: bytes) -> None:
    """The whole of `data` or nothing, even through a crash of the machine."""
    _write_atomic(path, lambda tmp: tmp.write_bytes(data))


def write_json(path: Path, value: object) -> None:
    """Indented, sorted as given. Refuses NaN and infinity: no JSON reader would take them."""
    text = json.dumps(json_safe(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    write_atomic(path, text.encode())


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that appears under its name only when everything in it is written. Replaces an older one."""
    tmp, old = (path.with_name(f".{path.name}.{os.getpid()}{end}") for end in (".tmp", ".old.tmp"))
    try:
        with disk_errors(path):
            shutil.rmtree(tmp, ignore_errors=True)
            tmp.mkdir(parents=True)
            yield tmp
            for file in (tmp, *tmp.rglob("*")):
                _sync(file)
            if path.exists():
                path.rename(old)
            tmp.rename(path)
            _sync(path.parent)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def json_safe(value: Any) -> Any:
    """The same value in JSON's own types: numpy scalars and arrays unpacked, NaN and infinity as None, rest as text."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, np.generic):
        return json_safe(value.item())
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, np.ndarray):
        return json_safe(value.tolist())
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(k): json_safe(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_safe(v) for v in value]
    return str(value)


def _write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    tmp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write(tmp)
            _sync(tmp)
            os.replace(tmp, path)
            _sync(path.parent)
    finally:
        with suppress(OSError):
            tmp.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Flush to the device. Folders are flushed where the file system can."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        os.close(handle)
