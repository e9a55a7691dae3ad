"""Published measurements, read from a measured_points.csv: one Row a line, or one sentence why a line is none.

Cells are what people wrote (`~100 (128 cap)`, `10 req/s (exact arrivals ...)`): a number is taken from a cell that
starts with one, at most `~` or a name before it; a cell without one is unknown, never zero.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from optimizer.errors import UserError

FILE = "measured_points.csv"
NEEDED = ("id", "model", "gpu")
_NUMBER = re.compile(r"^[^\d,;]{0,24}?(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")
_MOST_GPUS = 64

Kind = Literal["closed", "open", "burst"]


class Unscorable(Exception):
    """One sentence: why a row (or one figure of it) cannot be scored."""


@dataclass(frozen=True)
class Row:
    """One published point. None: not published, or no number in its cell."""

    id: str
    tier: str
    cells: Mapping[str, str]
    """Every cell as written, stripped."""

    def number(self, column: str) -> float | None:
        """A finite number that is above 0; others are not measurements."""
        found = _NUMBER.match(self.cells.get(column, ""))
        value = float(found.group(1)) if found else None
        return value if value is not None and math.isfinite(value) and value > 0 else None

    def count(self, column: str) -> int | None:
        value = self.number(column)
        return None if value is None else round(value)

    @property
    def tp(self) -> int:
        value = self.cells.get("tp", "")
        if not value:
            return 1
        if not re.fullmatch(r"\d+(\.0*)?", value) or not 1 <= float(value) <= _MOST_GPUS:
            raise Unscorable(f"tp {value!r} is no number of GPUs")
        return int(float(value))

    @property
    def version(self) -> tuple[int, int] | None:
        """vLLM's (major, minor); the last of a range (`0.7/0.8`)."""
        found = re.findall(r"(?<![\d.-])(\d{1,2})\.(\d{1,2})", self.cells.get("vllm_version", ""))
        return (int(found[-1][0]), int(found[-1][1])) if found else None

    @property
    def text(self) -> str:
        """What may hold flags: id, workload and notes."""
        return " ".join(self.cells.get(c, "") for c in ("id", "workload", "notes"))

    @property
    def is_dense_16_bit(self) -> bool:
        dtype, arch = self.cells.get("dtype", "").lower(), self.cells.get("arch", "").lower()
        return dtype in ("bf16", "bfloat16", "fp16", "float16") and arch in ("dense", "")

    @property
    def tpot_ms(self) -> float | None:
        """Published, unless it contradicts (E2E - TTFT) / (output - 1): some clients count chunks twice."""
        published = self.number("tpot_mean_ms")
        e2e_s, ttft_ms, output = self.number("e2e_mean_s"), self.number("ttft_mean_ms"), self.number("output_len")
        if e2e_s is None or ttft_ms is None or output is None or output < 2 or 1e3 * e2e_s <= ttft_ms:
            return published
        from_e2e = (1e3 * e2e_s - ttft_ms) / (output - 1)
        return from_e2e if published is None or published < 0.75 * from_e2e else published


def read_rows(folder: Path) -> tuple[list[Row], list[str]]:
    """(rows, one line for each line that is no row). A folder without the file has neither."""
    path = folder / FILE
    if not path.is_file():
        return [], [f"{path}: no such file; only full runs are scored"]
    rows: list[Row] = []
    problems: list[str] = []
    seen: dict[str, int] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            _check_header(path, reader.fieldnames)
            for cells in reader:
                _take(cells, reader.line_num, rows, problems, seen)
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: not a CSV file in UTF-8 ({error}); save it as one") from error
    return rows, problems


def _check_header(path: Path, names: object) -> None:
    missing = [n for n in NEEDED if not isinstance(names, list) or n not in names]
    if missing:
        raise UserError(f"{path}: the first line names no column {', '.join(missing)}; see bench/data/{FILE}")


def _take(
    cells: Mapping[str | None, object], line: int, rows: list[Row], problems: list[str], seen: dict[str, int]
) -> None:
    known = {k: v.strip() for k, v in cells.items() if k is not None and isinstance(v, str)}
    name = known.get("id") or f"line {line}"
    if None in cells:
        problems.append(f"{name}: malformed, more fields than the header has columns (line {line})")
    elif any(v is None for v in cells.values()):
        problems.append(f"{name}: malformed, fewer fields than the header has columns (line {line})")
    elif name in seen:
        problems.append(f"{name}: the id of line {seen[name]} again (line {line})")
    else:
        seen[name] = line
        rows.append(Row(name, known.get("tier", "").upper() or "?", known))
