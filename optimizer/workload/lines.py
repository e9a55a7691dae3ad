"""Text lines of a trace file, plain or gzip, in blocks: bounded memory whatever the file holds.

Raises UserError, one line naming the file and saying "0 usable requests", for what is no text file at all.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from optimizer.errors import UserError
from optimizer.workload.reading import Head

BLOCK_CHARS = 1 << 20
MAX_LINE_CHARS = 64 << 20
"""A longer line is not read: 64 Mi characters hold any prompt and keep memory bounded."""
OVERLONG = "\0line too long"
"""Stands for a line longer than MAX_LINE_CHARS."""

_FOREIGN = {
    b"PK\x03\x04": "a zip archive",
    b"PAR1": "a Parquet file",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ": "an xz file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"SQLite format 3": "an SQLite database",
}
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def unusable(path: Path, why: str) -> UserError:
    """The error for a file that gives no request."""
    return UserError(f"{path}: 0 usable requests: {why}")


@contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """The file as text: gzip by content (not by name), UTF-8 or UTF-16 by byte-order mark, any line ending."""
    try:
        if path.is_dir():
            raise unusable(path, "it is a directory; give the trace file itself")
        with path.open("rb") as raw:
            yield _decoded(path, raw)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise unusable(path, f"its gzip data is damaged or cut short ({error}); fetch it again") from None
    except FileNotFoundError:
        raise unusable(path, "no such file") from None
    except UnicodeError as error:
        raise unusable(path, f"its text cannot be decoded ({error}); save it as UTF-8") from None
    except OSError as error:
        raise unusable(path, f"cannot be read ({error.strerror or error})") from None


def _decoded(path: Path, raw: IO[bytes]) -> IO[str]:
    start = raw.read(16)
    raw.seek(0)
    is_gzip = start.startswith(b"\x1f\x8b")
    content = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if is_gzip else raw
    sample = content.read(65536)
    content.seek(0)
    _refuse_binary(path, sample)
    encoding = "utf-16" if sample.startswith(_UTF16) else "utf-8-sig"
    return io.TextIOWrapper(content, encoding=encoding, errors="replace", newline=None)


def _refuse_binary(path: Path, sample: bytes) -> None:
    for magic, what in _FOREIGN.items():
        if sample.startswith(magic):
            raise unusable(path, f"it is {what}; unpack or export it as CSV or JSON lines (gzip is read as it is)")
    if sample.startswith(_UTF16):
        return
    n_undecodable = sample.decode("utf-8", "replace").count("�")
    if b"\0" in sample or n_undecodable > len(sample) / 10:
        raise unusable(path, "it is binary, not text; export it as CSV or JSON lines")


def line_blocks(text: IO[str]) -> Iterator[tuple[int, list[str]]]:
    """(line number of the first line, lines without their ends), about a million characters at a time."""
    number, parts, n_held, is_skipping = 1, list[str](), 0, False
    while block := text.read(BLOCK_CHARS):
        lines = block.split("\n")
        if len(lines) > 1:
            first = OVERLONG if is_skipping else "".join((*parts, lines[0]))
            yield number, [first, *lines[1:-1]]
            number, parts, n_held, is_skipping = number + len(lines) - 1, [], 0, False
        parts.append(lines[-1])
        n_held += len(lines[-1])
        if n_held > MAX_LINE_CHARS:
            parts, n_held, is_skipping = [], 0, True
    last = OVERLONG if is_skipping else "".join(parts)
    if last:
        yield number, [last]


def is_content(line: str) -> bool:
    """Neither blank nor a comment (`#` or `//` first)."""
    start = line.lstrip()
    return bool(start) and not start.startswith(("#", "//"))


def read_head(path: Path, n_lines: int = 20) -> Head:
    """The first lines with content. Raises UserError when the file has none."""
    found: list[str] = []
    with open_text(path) as text:
        for _, lines in line_blocks(text):
            found += [line[:4096] for line in lines if is_content(line)]
            if len(found) >= n_lines:
                break
    if not found:
        raise unusable(path, "it is empty, or holds only blank lines and comments")
    return Head(tuple(found[:n_lines]))
