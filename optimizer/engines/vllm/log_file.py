"""The log of a server that may write gigabytes: its beginning and its end are kept, the middle is not.

`server.log` takes the first `HEAD_BYTES`; then pieces `server.log.1`, `.2`, … follow, of which the last two stay. All
of them are only ever appended to, so that a follower reads on by position. When the server has ended, the pieces kept
are joined to `server.log` behind a line that says how much is left out.
"""

from __future__ import annotations

import contextlib
import glob
from pathlib import Path

HEAD_BYTES = 8 * 2**20
"""A boot at INFO writes tens of kilobytes, a traceback with its dump a megabyte at most."""
PIECE_BYTES = 4 * 2**20
N_PIECES_KEPT = 2
LEFT_OUT = "[... {} pieces of this log are left out here: the server wrote too much ...]"


class LogWriter:
    """Where a server's output goes. A full disk loses output; it does not stop the server."""

    def __init__(self, path: Path, head_bytes: int = HEAD_BYTES, piece_bytes: int = PIECE_BYTES) -> None:
        self._path = path
        self._head_bytes, self._piece_bytes = head_bytes, piece_bytes
        self._piece = 0
        self._file = path.open("wb", buffering=0)
        self._room = head_bytes

    def write(self, data: bytes) -> None:
        while data:
            if self._room == 0:
                self._open_next_piece()
            part, data = data[: self._room], data[self._room :]
            self._room -= len(part)
            with contextlib.suppress(OSError):
                self._file.write(part)

    def _open_next_piece(self) -> None:
        self._file.close()
        self._piece += 1
        if self._piece > N_PIECES_KEPT:
            _piece(self._path, self._piece - N_PIECES_KEPT).unlink(missing_ok=True)
        self._file = _piece(self._path, self._piece).open("wb", buffering=0)
        self._room = self._piece_bytes

    def close(self) -> None:
        """Join what was kept. The reader of a server that has ended needs `server.log` only."""
        self._file.close()
        if self._piece == 0:
            return
        text = read_log(self._path)
        with contextlib.suppress(OSError):
            self._path.write_text(text)
            for piece in _pieces(self._path):
                piece.unlink()


def read_log(path: Path) -> str:
    """Everything kept of a log, live or ended; empty if there is none."""
    pieces = _pieces(path)
    n_left_out = _number(pieces[0]) - 1 if pieces else 0
    gap = f"\n{LEFT_OUT.format(n_left_out)}\n" if n_left_out else ""
    return _read(path) + gap + "".join(map(_read, pieces))


def remove_log(path: Path) -> None:
    """What an earlier server left under that name, so that a follower cannot read it for the new one's."""
    for old in (path, *_pieces(path)):
        old.unlink(missing_ok=True)


def _piece(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _pieces(path: Path) -> list[Path]:
    found = (p for p in path.parent.glob(f"{glob.escape(path.name)}.*") if p.suffix[1:].isdigit())
    return sorted(found, key=_number)


def _number(piece: Path) -> int:
    return int(piece.suffix[1:])


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""


class LogFollower:
    """The lines of a log as they come. Skips pieces that were dropped before it got there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path
        self._offset = 0
        self._rest = b""

    def new_lines(self) -> list[str]:
        """Whole lines that came since the last call."""
        data = self._rest + self._read_on()
        *lines, self._rest = data.split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def _read_on(self) -> bytes:
        data = self._rest_of_file()
        while (later := self._next_piece()) is not None:
            self._file, self._offset = later, 0
            data += self._rest_of_file()
        return data

    def _rest_of_file(self) -> bytes:
        try:
            with self._file.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return b""
        self._offset += len(data)
        return data

    def _next_piece(self) -> Path | None:
        now = 0 if self._file == self._path else _number(self._file)
        return next((p for p in _pieces(self._path) if _number(p) > now), None)
