"""Where the Optuna study is stored: opening a URL, riding out locks, keeping passwords out of every message."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import psutil
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage

from optimizer.deployment.secrets import mask as mask_secrets
from optimizer.errors import OptimizerError, Unavailable, UserError
from optimizer.study.files import full_disk
from optimizer.study.interrupts import WholeStorage

LOCK_TIMEOUT_S = 60.0
"""How long SQLite waits for a reader (a dashboard loading thousands of trials) before it gives up once."""
RETRY_FOR_S = 180.0
"""How long a locked or lost storage is tried again before the study stops, resumable."""

_REFUSED_FILE_SYSTEMS = {
    "nfs",
    "nfs4",
    "cifs",
    "smb",
    "smb2",
    "smb3",
    "smbfs",
    "fuse.sshfs",
    "afs",
    "fuse.glusterfs",
    "davfs",
}
"""SQLite's locks do not hold there: "How To Corrupt An SQLite Database File", sqlite.org, section 2.1."""

T = TypeVar("T")


def open_storage(url: str) -> RDBStorage:
    """An Optuna storage for `url`. Raises UserError or Unavailable in one line, without the password."""
    check_storage_url(url)
    arguments: dict[str, Any] = {}
    if url.startswith("sqlite"):
        arguments = {"connect_args": {"timeout": LOCK_TIMEOUT_S}}
    elif url.startswith("postgres"):
        arguments = {"connect_args": {"connect_timeout": 10}, "pool_pre_ping": True}
    return _connect(url, lambda: WholeStorage(url, engine_kwargs=arguments))


def check_storage_url(url: str) -> None:
    """Refuse what cannot work before anything starts: no URL at all, or SQLite on a network file system."""
    if "://" not in url:
        raise UserError(
            f"--storage {mask(url)!r}: not a storage URL; e.g. sqlite:///study.db or postgresql+psycopg://user:password@host/db"
        )
    path = sqlite_path(url)
    if path is None:
        return
    if not path.parent.is_dir():
        raise UserError(f"--storage {url}: the folder {path.parent} does not exist; make it first")
    kind = network_file_system(path)
    if kind is not None:
        raise UserError(f"{path}: SQLite on a network file system ({kind}) loses data; put the study on a local disk"
                        " (--studies DIR) or use --storage postgresql+psycopg://…")  # fmt: skip


def sqlite_path(url: str) -> Path | None:
    """The file behind a sqlite URL; None for other URLs and for memory."""
    match = re.match(r"sqlite(?:\+\w+)?:///(.+?)(?:\?.*)?$", url)
    return None if match is None or match[1] == ":memory:" else Path(match[1]).absolute()


def network_file_system(path: Path, mounts: Iterable[tuple[str, str]] | None = None) -> str | None:
    """The kind of network file system that `path` lies on; None on a local disk. `mounts` are (mount point, kind)."""
    if mounts is None:
        mounts = [(p.mountpoint, p.fstype) for p in psutil.disk_partitions(all=True)]
    real = os.path.realpath(path)
    inside = [(m, kind) for m, kind in mounts if real == m or real.startswith(m.rstrip("/") + "/")]
    kind = max(inside, key=lambda entry: len(entry[0]), default=("", ""))[1].lower()
    return kind if kind in _REFUSED_FILE_SYSTEMS else None


def mask(text: str) -> str:
    """`text` with every secret replaced by `***`, a URL's password whatever characters it has."""
    return mask_secrets(re.sub(r"((?:\w[\w+.-]*://)?[^/\s:@'\"]*):(?!//)[^\s]*@", r"\1:***@", text))


def retrying(call: Callable[[], T], where: str, retry_for_s: float = RETRY_FOR_S) -> T:
    """`call`, tried again while the storage is locked or away. Every retried call must be harmless when it ran twice.

    Raises Unavailable in one line when the disk is full or the storage stays away; what was recorded stays."""
    deadline = time.monotonic() + retry_for_s
    pause_s = 0.05
    while True:
        try:
            return call()
        except StorageInternalError as error:
            reason = _reason(error)
            if "full" in reason or "disk i/o error" in reason:
                raise full_disk(sqlite_path(where) or Path(mask(where))) from error
            if "readonly" in reason or time.monotonic() + pause_s > deadline:
                raise _lost(where, reason) from error
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 5.0)


def _connect(url: str, connect: Callable[[], RDBStorage]) -> RDBStorage:
    """Whatever a database driver raises becomes one line; no driver's own message may show the password."""
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    try:
        return connect()
    except OptimizerError:
        raise
    except (ImportError, ModuleNotFoundError) as error:
        raise Unavailable(
            f"--storage {mask(url)}: {_first_line(error)}; for PostgreSQL install vllm-config-optimizer[postgres]"
        ) from error
    except (ArgumentError, ValueError) as error:
        raise UserError(f"--storage {mask(url)}: not a storage URL that Optuna knows ({_first_line(error)})") from None
    except (SQLAlchemyError, StorageInternalError, RuntimeError, OSError) as error:
        reason = _reason(error)
        if "full" in reason or "disk i/o error" in reason:
            raise full_disk(sqlite_path(url) or Path(mask(url))) from None
        raise _lost(url, reason) from None


def _lost(where: str, reason: str) -> Unavailable:
    return Unavailable(
        f"the storage {mask(where)} cannot be used ({reason}); when it can, run the same command with --resume"
    )


def _reason(error: BaseException) -> str:
    """The database's own words, in lower case, without the statement."""
    inner: BaseException = error
    while (deeper := getattr(inner, "orig", None) or inner.__cause__) is not None:
        inner = deeper
    return _first_line(inner).lower()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return mask(lines[0])[:200] if lines else type(error).__name__


def close_connections(storage: RDBStorage) -> None:
    """End every connection and leave one plain file behind."""
    storage.remove_session()
    storage.engine.dispose()
    use_wal(storage, is_on=False)
    storage.engine.dispose()


def use_wal(storage: RDBStorage, *, is_on: bool) -> None:
    """SQLite's write-ahead log: a dashboard can read while we write. Turned off at the end, one file is left.

    Left as it is where SQLite refuses (another process has the file open)."""
    if storage.engine.dialect.name != "sqlite":
        return
    from sqlalchemy import text
    from sqlalchemy.exc import OperationalError

    try:
        with storage.engine.connect() as connection:
            connection.execute(text("PRAGMA busy_timeout=2000"))
            connection.execute(text(f"PRAGMA journal_mode={'WAL' if is_on else 'DELETE'}"))
    except OperationalError:
        return


def dashboard_command(url: str, artifacts: str) -> str:
    """What to type to watch the study. A password is shown as `***`; `artifacts` is the folder of the linked files."""
    return f"optuna-dashboard {shlex.quote(mask(url))} --artifact-dir {shlex.quote(artifacts)}"
