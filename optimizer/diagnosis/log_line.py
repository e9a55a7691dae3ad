"""One line of an engine's log: who wrote it, when, how grave, and what it says, whatever the log went through.

Read are vLLM's own lines of every version (`(EngineCore pid=7) ERROR 11-29 10:00:02 [core.py:1108] text`, 0.8's
without a process, V0's with `file.py:161]`), uvicorn's, glog's and Python warnings; around them the marks of docker,
compose, kubectl, CRI, journald, Ray and JSON log drivers; ANSI colours; progress bars that end in a carriage return.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

_DAYS_BEFORE = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)


@dataclass(frozen=True, slots=True)
class LogLine:
    """`time_s` counts from the start of the log's year: only differences mean anything."""

    number: int
    """From 1; every step of a progress bar is a line of its own."""
    text: str
    """The line as it stands in the log, without colours."""
    process: str
    """`APIServer`, `EngineCore`, `Worker_TP1`, `rank0`, ...; empty where the line does not say."""
    pid: int | None
    level: str
    """DEBUG, INFO, WARNING, ERROR, CRITICAL; empty for tracebacks and whatever is printed past the logger."""
    time_s: float | None
    source: str
    """`core.py:1108`, or empty."""
    message: str
    origin: str = ""
    """Who is named around the line, where a log driver names it: compose's service, the pod, the unit."""


_BREAK = re.compile(r"\r\n|\n|\r")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_PROCESS = re.compile(r"\(([A-Za-z][\w:.-]*)(?: rank=(\d+))? pid=(\d+)(?:, ip=[\w.:]+)?\) ?")
_RAYLET = re.compile(r"\((raylet|autoscaler)\b[^)]*\) ?")
_RANK = re.compile(r"\[(rank\d+)\]: ?")
_OUTER = re.compile(
    r"(?:\[(?P<pod>pod/\S+)\] ?"
    r"|(?P<service>[\w./@-]{1,80}) +\| ?"
    r"|│ ?|> (?:- )?|- (?=\d{4}-)"
    r"|(?:DEFAULT|DEBUG|INFO|NOTICE|WARNING|ERROR|CRITICAL) \d{4}-\d\d-\d\dT[\d:.]+Z (?:\[(?P<labels>[^\]]*)\] )?"
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+ (?!ERROR|WARN|INFO|DEBUG|CRIT|- )"
    r"|\[\d{4}-\d\d-\d\dT[\d:.]+Z?\] ?"
    r"|\d{4}-\d\d-\d\dT[\d:.,]+(?:Z|[+-]\d\d:?\d\d)? (?:(?:stdout|stderr) [FP] )?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<unit>\S+ [\w./-]+)(?:\[\d+\])?: )"
)
_EXITED = re.compile(r"([\w.@-]+) exited with code \d+$")
"""Compose's own word on a service, with no mark before it."""
_LEVEL = re.compile(
    r"(?:\[[A-Za-z][\w-]*\] )?"
    r"(?:\d{4}-\d\d-\d\d[ T][\d:.,]+\s+(?:- )?(?:[\w.]+ - )?)?"
    r"(DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)(?::[\w.]+:|:| -)?\s+(?:\d+ )?"
    r"(?:((?:\d{4}-)?\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?)?)\s+)?"
    r"(?:\[?([\w./-]+\.(?:py|pyx|rs|cc|cpp):\d+)\] ?)?(?:\.\.\. )?"
)
_GLOG = re.compile(r"\[?([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+\s+(?:\d+ )?([\w./-]+:\d+)\] ")
_GLOG_LEVELS = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "CRITICAL"}
_PYTHON_WARNING = re.compile(r"\S+:\d+: \w*Warning: ")
_SPELLINGS = {"WARN": "WARNING", "FATAL": "CRITICAL"}
MAX_CHARS = 16_384
"""Of a longer line only this much is looked at: vLLM dumps whole batches on one line."""
_PREFIX_ENDS = 200
"""A process mark further in belongs to the text, not to the line's head."""


def read_lines(chunks: Iterable[str]) -> Iterator[LogLine]:
    """The lines of a log given in pieces, such as an open file: nothing is held but the line at hand."""
    number = 0
    for chunk in chunks:
        for raw in _BREAK.split(chunk[:-1] if chunk.endswith("\n") else chunk):
            for text, level, origin in _unwrapped(raw) if raw[:1] == "{" else ((raw, "", ""),):
                number += 1
                yield parse_line(number, text, level, origin)


def read_log(text: str) -> tuple[LogLine, ...]:
    return tuple(read_lines([text])) if text else ()


def parse_line(number: int, raw: str, level: str = "", origin: str = "") -> LogLine:
    """`level` and `origin`: what a JSON log driver said around the line."""
    text = _ANSI.sub("", raw) if "\x1b" in raw else raw
    named, at = _split_origin(text[:MAX_CHARS])
    body, process, pid = _split_process(text[:MAX_CHARS], at)
    level, time_s, source, message = _split_level(body, level)
    return LogLine(number, text, process, pid, level, time_s, source, message.rstrip(" \t│"), origin or named)


_MESSAGES = ("log", "message", "msg", "textPayload", "body", "exc_info", "exception", "stack_trace")
_LEVELS = ("levelname", "level", "severity")
_ORIGINS = ("pod_name", "container_name", "pod", "container", "service")
_KNOWN_LEVELS = {"DEBUG", "INFO", "WARNING", "WARN", "ERROR", "CRITICAL", "FATAL"}


def _unwrapped(text: str) -> list[tuple[str, str, str]]:
    """The lines inside a JSON log driver's line (docker's `log`, python-json-logger's `message`, a cloud's
    `textPayload`), a traceback's among them, each with the level and the origin it was given."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return [(text, "", "")]
    found = [row[k] for k in _MESSAGES if isinstance(row.get(k), str)] if isinstance(row, dict) else []
    if not found:
        return [(text, "", "")]
    said = next((str(row[k]).upper() for k in _LEVELS if k in row), "")
    level = _SPELLINGS.get(said, said) if said in _KNOWN_LEVELS else ""
    origin = _origin_in(row) or _origin_in(row.get("kubernetes"))
    return [(line, level, origin) for part in found for line in _BREAK.split(part.rstrip("\n"))]


def _origin_in(row: object) -> str:
    found = [row[k] for k in _ORIGINS if isinstance(row.get(k), str)] if isinstance(row, dict) else []
    return found[0] if found else ""


def _split_origin(text: str) -> tuple[str, int]:
    """The outermost name among the marks of log drivers, and where the text begins past them."""
    origin, at = "", 0
    while mark := _OUTER.match(text, at):
        at = mark.end()
        origin = origin or next((name for name in mark.groups() if name), "")
    if not origin and (exited := _EXITED.match(text, at)):
        origin = exited[1]
    return origin, at


def _split_process(text: str, at: int) -> tuple[str, str, int | None]:
    """The text past every process named; the innermost is the one that wrote it."""
    process, pid = "", None
    while found := _process_at(text, at, at_start=bool(process)):
        process, pid, at = found
    return text[at:], process, pid


def _process_at(text: str, at: int, *, at_start: bool) -> tuple[str, int | None, int] | None:
    if rank := _RANK.match(text, at):
        return rank[1], None, rank.end()
    if raylet := _RAYLET.match(text, at):
        return raylet[1], None, raylet.end()
    mark = _PROCESS.match(text, at)
    if mark is None and not at_start and " pid=" in text[:_PREFIX_ENDS] and not _LEVEL.match(text, at):
        mark = _PROCESS.search(text, at, _PREFIX_ENDS)
    return (mark[1] + (f"_{mark[2]}" if mark[2] else ""), int(mark[3]), mark.end()) if mark else None


def _split_level(body: str, level: str) -> tuple[str, float | None, str, str]:
    if head := _LEVEL.match(body):
        found = _SPELLINGS.get(head[1], head[1])
        return found, _seconds(head[2]), head[3] or "", body[head.end() :]
    if glog := _GLOG.match(body):
        return _GLOG_LEVELS[glog[1]], None, glog[2], body[glog.end() :]
    if _PYTHON_WARNING.match(body):
        return "WARNING", None, "", body
    return level, None, "", body


def _seconds(date: str | None) -> float | None:
    """Seconds since the start of the year, a leap year assumed: vLLM 0.32 logs `%m-%d %H:%M:%S` without a year."""
    if not date or ":" not in date:
        return None
    digits = date.replace("T", " ").replace(",", ".")
    try:
        when = datetime.fromisoformat(digits if digits[4:5] == "-" else f"2000-{digits}")
    except ValueError:
        return None
    days = _DAYS_BEFORE[when.month - 1] + when.day - 1
    return days * 86400.0 + when.hour * 3600 + when.minute * 60 + when.second + when.microsecond / 1e6
