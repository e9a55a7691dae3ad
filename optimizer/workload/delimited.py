"""Separated values with a header line (comma, semicolon, tab or bar): any log with a time and two lengths.

Cells may be quoted; a quoted line break is not understood (such a row is rejected, with its line).
"""

from __future__ import annotations

import csv
from pathlib import Path

from optimizer.workload.fields import Fields, Role, find_fields
from optimizer.workload.lines import OVERLONG, is_content, line_blocks, open_text, unusable
from optimizer.workload.reading import Head, Reading, ReadOptions
from optimizer.workload.rows import RowBuilder

_DELIMITERS = ",;\t|"


def split_header(line: str) -> tuple[str, list[str]]:
    """(delimiter, column names)."""
    delimiter = max(_DELIMITERS, key=line.count)
    return delimiter, [name.strip() for name in split_row(line, delimiter)]


def split_row(line: str, delimiter: str) -> list[str]:
    if '"' not in line:
        return line.split(delimiter)
    try:
        return next(csv.reader([line], delimiter=delimiter, strict=True))
    except (csv.Error, StopIteration):
        return []


class DelimitedReader:
    """CSV whose header names a time, a prompt length and an output length."""

    name = "csv"
    looks_like = "CSV with a header such as timestamp,input_length,output_length"

    def sniff(self, head: Head, path: Path) -> float:
        line = head.lines[0]
        if line.lstrip().startswith(("{", "[")):
            return 0.0
        return 0.0 if find_fields(split_header(line)[1]).missing else 0.6

    def read(self, path: Path, options: ReadOptions) -> Reading:
        return read_delimited(path, options, self.name)


def read_delimited(path: Path, options: ReadOptions, reader: str) -> Reading:
    builder = RowBuilder(path, reader, options)
    table: Table | None = None
    with open_text(path) as text:
        for number, lines in line_blocks(text):
            rows = [(number + i, line) for i, line in enumerate(lines) if is_content(line)]
            if rows and table is None:
                table = Table(path, rows.pop(0)[1])
                builder.named_unit = table.fields.unit
            if table is not None:
                table.add(builder, rows)
    return builder.finish()


class Table:
    """Where the columns stand. Raises UserError when the header lacks one that is needed."""

    def __init__(self, path: Path, header: str) -> None:
        self.delimiter, names = split_header(header)
        self.fields: Fields = find_fields(names)
        if self.fields.missing:
            lacks = " and ".join(
                {"time": "time", "prompt": "prompt length", "output": "output length"}[r] for r in self.fields.missing
            )
            raise unusable(path, f"its header has no column for {lacks} (columns: {', '.join(names)[:200]})")
        self._column: dict[Role, int] = {role: names.index(name) for role, name in self.fields.of.items()}
        self._n_needed = 1 + max(self._column[r] for r in ("time", "prompt", "output"))
        self._width = 1 + max(self._column.values())

    def add(self, builder: RowBuilder, rows: list[tuple[int, str]]) -> None:
        numbers, lines, split = [], [], []
        for number, line in rows:
            cells = [] if line is OVERLONG else split_row(line, self.delimiter)
            if len(cells) < self._n_needed:
                builder.reject(number, _why_short(line), line)
                continue
            numbers.append(number)
            lines.append(line)
            split.append(cells if len(cells) >= self._width else cells + [""] * (self._width - len(cells)))
        columns: dict[Role, list[str]] = {
            role: [row[i] for row in split] for role, i in self._column.items() if role != "blocks"
        }
        builder.add(numbers, columns, lines.__getitem__)


def _why_short(line: str) -> str:
    if line is OVERLONG:
        return "line is too long"
    return "quotes are not closed" if line.count('"') % 2 else "too few columns"
