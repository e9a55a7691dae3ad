"""Cells as they stand in a file (text or JSON values) -> numbers and instants, a block of rows at a time.

Whole blocks are converted by numpy; only a block that holds something odd is looked at cell by cell. Both ways give
the same answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

OK, MISSING, NOT_A_NUMBER, NOT_FINITE = 0, 1, 2, 3
"""Verdicts on a cell."""
PROBLEM = {MISSING: "is missing", NOT_A_NUMBER: "is not a number", NOT_FINITE: "is not finite (NaN or infinite)"}

NUMBER, INSTANT = 1, 2
"""Kinds of time."""

_BARE = r"(?:19[7-9]\d|2[01]\d\d)-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?"
_BARE_LINES = re.compile(rf"(?:{_BARE}\n)+")
_INSTANT = re.compile(
    r"((?:19[7-9]\d|2[01]\d\d)-\d\d-\d\d)[ Tt](\d\d:\d\d(?::\d\d)?)(?:[.,](\d+))?"
    r"\s*(?:([Zz]|UTC)|([+-])(\d\d):?(\d\d)?)?"
)


def numbers(cells: Sequence[Any]) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """(value, verdict) of each cell. Numeric text counts as its number; a truth value does not."""
    kinds = set(map(type, cells))
    if kinds <= {int, float} or kinds == {str}:
        try:
            values = np.array(cells, np.float64)
        except (ValueError, OverflowError):
            pass
        else:
            return values, np.where(np.isfinite(values), OK, NOT_FINITE).astype(np.int8)
    pairs = [_number(c) for c in cells]
    return np.array([p[0] for p in pairs], np.float64), np.array([p[1] for p in pairs], np.int8)


def _number(cell: Any) -> tuple[float, int]:
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return np.nan, MISSING
    if isinstance(cell, bool) or not isinstance(cell, int | float | str):
        return np.nan, NOT_A_NUMBER
    try:
        value = float(cell)
    except OverflowError:
        return np.nan, NOT_FINITE
    except ValueError:
        return np.nan, NOT_A_NUMBER
    return value, OK if np.isfinite(value) else NOT_FINITE


def times(cells: Sequence[Any]) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int8], NDArray[np.int8]]:
    """(number, nanoseconds since 1970 UTC, kind, verdict) of each cell: a number, or an ISO 8601 instant.

    An instant without a zone counts as UTC. More than nine decimals of a second are cut."""
    n = len(cells)
    if set(map(type, cells)) == {str}:
        instants = _bare_instants(cells)
        if instants is not None:
            return np.full(n, np.nan), instants, np.full(n, INSTANT, np.int8), np.zeros(n, np.int8)
    values, verdicts = numbers(cells)
    instants = np.zeros(n, np.int64)
    kinds = np.where(verdicts == OK, NUMBER, 0).astype(np.int8)
    for i in np.flatnonzero(verdicts == NOT_A_NUMBER).tolist():
        instant = _instant(cells[i]) if isinstance(cells[i], str) else None
        if instant is not None:
            instants[i], kinds[i], verdicts[i] = instant, INSTANT, OK
    return values, instants, kinds, verdicts


def _bare_instants(cells: Sequence[str]) -> NDArray[np.int64] | None:
    """All cells are instants without a zone, or with one and the same `Z`/`+00:00`: the fast way. Else None."""
    for suffix in ("+00:00", "Z"):
        if cells[0].endswith(suffix) and all(c.endswith(suffix) for c in cells):
            cells = [c[: -len(suffix)] for c in cells]
    if not _BARE_LINES.fullmatch("\n".join(cells) + "\n"):
        return None
    try:
        return np.array(cells, "datetime64[ns]").astype(np.int64)
    except ValueError:
        return None


def _instant(cell: str) -> int | None:
    match = _INSTANT.fullmatch(cell.strip())
    if not match:
        return None
    day, clock, fraction, _, sign, hours, minutes = match.groups()
    try:
        whole = np.datetime64(f"{day}T{clock}", "s").astype(np.int64)
    except ValueError:
        return None
    offset_s = (int(hours) * 3600 + int(minutes or 0) * 60) * (-1 if sign == "-" else 1) if sign else 0
    return (int(whole) - offset_s) * 1_000_000_000 + int((fraction or "0")[:9].ljust(9, "0"))
