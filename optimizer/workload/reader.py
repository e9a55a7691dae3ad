"""open_trace: a file -> its Reading, by the reader that recognises it. A new format is one class in READERS."""

from __future__ import annotations

from pathlib import Path

from optimizer.errors import UserError
from optimizer.workload.azure import AzureReader
from optimizer.workload.delimited import DelimitedReader
from optimizer.workload.lines import read_head, unusable
from optimizer.workload.mooncake import MooncakeReader
from optimizer.workload.reading import (
    UNIT_SECONDS,
    Head,
    Reader,
    Reading,
    ReadOptions,
    RejectedRow,
    TimeUnit,
    ZeroOutput,
)
from optimizer.workload.rows import excerpt

__all__ = ["READERS", "Head", "ReadOptions", "Reader", "Reading", "RejectedRow", "find_reader", "open_trace"]

READERS: tuple[Reader, ...] = (AzureReader(), MooncakeReader(), DelimitedReader())


def open_trace(
    path: str | Path,
    *,
    time_unit: TimeUnit | None = None,
    strict: bool = False,
    max_bad_rows: int | None = None,
    reader: str | None = None,
    zero_output: ZeroOutput = "reject",
) -> Reading:
    """Read a trace file. Raises UserError, one line, for a file or an option that cannot be used."""
    if time_unit is not None and time_unit not in UNIT_SECONDS:
        raise UserError(f"--time-unit {time_unit}: expected one of {', '.join(UNIT_SECONDS)}")
    if max_bad_rows is not None and max_bad_rows < 0:
        raise UserError(f"--max-bad-rows {max_bad_rows}: expected 0 or more")
    options = ReadOptions(time_unit=time_unit, is_strict=strict, max_bad_rows=max_bad_rows, zero_output=zero_output)
    found = Path(path)
    head = read_head(found)
    return (named_reader(reader) if reader else find_reader(head, found)).read(found, options)


def named_reader(name: str) -> Reader:
    for reader in READERS:
        if reader.name == name:
            return reader
    raise UserError(f"--reader {name}: no such trace format; expected one of {', '.join(r.name for r in READERS)}")


def find_reader(head: Head, path: Path) -> Reader:
    """The most confident reader; the earlier one in READERS on a tie."""
    best = max(READERS, key=lambda r: r.sniff(head, path))
    if best.sniff(head, path) > 0:
        return best
    known = "; ".join(f"{r.name}: {r.looks_like}" for r in READERS)
    raise unusable(path, f"its format is not known (first line: {excerpt(head.lines[0])}); formats read: {known}")
