"""A vLLM log as people hand it in (a file, plain or packed, or standard input): judged, and in words."""

from __future__ import annotations

import codecs
import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optimizer.diagnosis.circumstances import Circumstances
from optimizer.diagnosis.failure import Verdict, judge_servers
from optimizer.diagnosis.log_line import read_lines
from optimizer.diagnosis.servers import scan_servers
from optimizer.errors import UserError

PEEK_BYTES = 65_536
GZIP = b"\x1f\x8b"
MARKED = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Byte order mark -> encoding, the longer first. PowerShell redirects a log as UTF-16."""
CONTROLS = frozenset(range(32)) - frozenset(b"\a\b\t\n\v\f\r\x1b")
MAX_CONTROL_SHARE = 0.02
"""A crash may leave a few zero bytes in a log."""


def judge_log(name: str, given: Circumstances) -> tuple[Verdict | None, tuple[str, ...]]:
    """The verdict (None: nothing failed), and what else the log tells. `name`: a file, plain or gzip, or `-`: standard
    input. Raises UserError for what is no vLLM server's log."""
    if name == "-":
        return _judge_lines(_lines(sys.stdin.buffer, "standard input"), name, given)
    path = Path(name)
    if path.is_dir():
        raise UserError(f"--log {name}: is a folder; give the log file in it")
    if not path.exists():
        raise UserError(f"--log {name}: no such file; give a server's log, or - for standard input")
    with path.open("rb") as file:
        return _judge_lines(_lines(file, name), name, given)


def _judge_lines(lines: Iterator[str], name: str, given: Circumstances) -> tuple[Verdict | None, tuple[str, ...]]:
    """Refuses a text that is no server's, rather than call it healthy."""
    servers = scan_servers(read_lines(lines))
    if servers.other_engine:
        raise UserError(f"--log {name}: is a log of {servers.other_engine}; only vLLM's are understood")
    verdict = judge_servers(servers, given)
    if verdict is None and not servers.is_of_server:
        raise UserError(f"--log {name}: no line of a vLLM server in it; give what the server itself printed")
    return verdict, servers.remarks.lines


def _lines(file: Any, name: str) -> Iterator[str]:
    """The lines of an open binary file as text, one in memory at a time. Refuses what is empty or no text."""
    buffered = file if hasattr(file, "peek") else io.BufferedReader(file)
    try:
        head = buffered.peek(PEEK_BYTES)[:PEEK_BYTES]
        _refuse(head, name)
        if head.startswith(GZIP):
            with gzip.GzipFile(fileobj=buffered) as packed:
                yield from _lines(packed, name)
        elif encoding := _marked(head):
            text = io.TextIOWrapper(buffered, encoding=encoding, errors="replace")
            yield from text
            text.detach()
        else:
            yield from (line.decode("utf-8", errors="replace").removeprefix("\ufeff") for line in buffered)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"--log {name}: is a damaged gzip file ({error}); unpack what is left of it first") from error


def _marked(head: bytes) -> str:
    return next((encoding for mark, encoding in MARKED.items() if head.startswith(mark)), "")


def _refuse(head: bytes, name: str) -> None:
    if not head:
        raise UserError(f"--log {name}: is empty; a server's log was expected")
    is_text = head.startswith(GZIP) or _marked(head)
    if not is_text and sum(byte in CONTROLS for byte in head) > len(head) * MAX_CONTROL_SHARE:
        raise UserError(f"--log {name}: is no text; a server's log was expected")


def log_text(verdict: Verdict | None, name: str) -> str:
    """For people."""
    if verdict is None:
        return f"{'standard input' if name == '-' else name}: nothing failed in this log"
    whose = "the configuration's" if verdict.config_fault else "not the configuration's"
    lines = [f"{verdict.kind} ({verdict.phase or 'phase unknown'}): {verdict.cause}", f"fault: {whose}"]
    lines += ["evidence:", *(f"  {text}" for text in verdict.evidence)] if verdict.evidence else []
    lines += ["bounds:", *(f"  {k} = {_number(k, v)}" for k, v in verdict.bounds.items())] if verdict.bounds else []
    lines += ["advice:", *(f"  {n}. {text}" for n, text in enumerate(verdict.advice, 1))] if verdict.advice else []
    return "\n".join(lines)


def _number(name: str, value: float) -> str:
    if "_bytes" not in name:
        return f"{value:g}"
    return f"{value / 2**30:.2f} GiB" if abs(value) >= 2**30 else f"{value / 2**20:.2f} MiB"
