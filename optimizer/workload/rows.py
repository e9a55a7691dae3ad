"""RowBuilder: rows as a reader finds them -> a Trace and an account of what was left out.

The checks of a request (EDGE cases of times and lengths) stand here once, for every format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimizer.errors import UserError
from optimizer.workload.cells import INSTANT, OK, PROBLEM, numbers, times
from optimizer.workload.fields import Role
from optimizer.workload.labels import LabelColumn, SessionColumn
from optimizer.workload.lines import unusable
from optimizer.workload.prefix_ids import BlockColumn, Blocks
from optimizer.workload.reading import MAX_KEPT_REJECTIONS, UNIT_SECONDS, Reading, ReadOptions, RejectedRow, TimeUnit
from optimizer.workload.trace import Trace
from optimizer.workload.units import DetectedUnit, detect_unit, duration_text

MAX_TOKENS = 2**31 - 1
MAX_TENANTS = 32_766
_WORDS: dict[Role, str] = {"time": "timestamp", "prompt": "prompt length", "output": "output length"}


class RowBuilder:
    """Collects one file's rows block by block. Raises UserError as soon as --strict or --max-bad-rows is broken."""

    def __init__(self, path: Path, reader: str, options: ReadOptions, *, named_unit: TimeUnit | None = None) -> None:
        self._path, self._reader, self._options = path, reader, options
        self.named_unit = named_unit
        self.n_rows = 0
        self._kind = 0
        self._times: list[NDArray[Any]] = []
        self._lengths: dict[Role, list[NDArray[np.int32]]] = {"prompt": [], "output": []}
        self.blocks = BlockColumn()
        self._requests, self._sessions, self._tenants = LabelColumn(), SessionColumn(), SessionColumn()
        self._rejected: list[RejectedRow] = []
        self._counts: Counter[str] = Counter()

    def reject(self, line: int, reason: str, text: str) -> None:
        """A row that could not even be split into cells."""
        self.n_rows += 1
        self._note(line, reason, text)

    def add(self, lines: Sequence[int], cells: Mapping[Role, Sequence[Any]], text_of: Callable[[int], str]) -> None:
        """A block of rows: their line numbers, cells by role (`time`, `prompt`, `output` at least), texts."""
        if not lines:
            return
        self.n_rows += len(lines)
        reasons = np.full(len(lines), "", object)
        stamp = self._check_times(cells["time"], reasons)
        checked = {role: self._check_lengths(role, cells[role], reasons) for role in self._lengths}
        kept = np.flatnonzero(reasons == "")
        for i in np.flatnonzero(reasons != "").tolist():
            self._note(lines[i], str(reasons[i]), text_of(i))
        self._times.append(stamp[kept])
        for role, values in checked.items():
            self._lengths[role].append(values[kept].astype(np.int32))
        self._add_optional(cells, kept)

    def _add_optional(self, cells: Mapping[Role, Sequence[Any]], kept: NDArray[np.intp]) -> None:
        self.blocks.add(cells.get("blocks"), kept)
        self._requests.add(cells.get("request"), kept)
        self._sessions.add(cells.get("session"), kept)
        self._tenants.add(cells.get("tenant"), kept)

    def _check_times(self, column: Sequence[Any], reasons: NDArray[np.object_]) -> NDArray[Any]:
        values, instants, kinds, verdicts = times(column)
        for verdict, problem in PROBLEM.items():
            reasons[verdicts == verdict] = f"timestamp {problem}"
        usable = kinds[verdicts == OK]
        if not self._kind and usable.size:
            self._kind = int(usable[0])
        mixed = (
            "a number where other rows have a date"
            if self._kind == INSTANT
            else "a date where other rows have a number"
        )
        reasons[(verdicts == OK) & (kinds != self._kind)] = f"timestamp is {mixed}"
        return instants if self._kind == INSTANT else values

    def _check_lengths(self, role: Role, column: Sequence[Any], reasons: NDArray[np.object_]) -> NDArray[np.float64]:
        values, verdicts = numbers(column)
        word, is_free = _WORDS[role], reasons == ""
        for verdict, problem in PROBLEM.items():
            reasons[is_free & (verdicts == verdict)] = f"{word} {problem}"
        if role == "output" and self._options.zero_output == "one":
            values = np.where(values == 0, 1.0, values)
        with np.errstate(invalid="ignore"):
            checks = {
                "is not a whole number": values != np.floor(values),
                "is 0": values == 0,
                "is negative": values < 0,
                f"is above {MAX_TOKENS:,}": values > MAX_TOKENS,
            }
        for problem, mask in checks.items():
            reasons[(reasons == "") & (verdicts == OK) & mask] = f"{word} {problem}"
        return values

    def _note(self, line: int, reason: str, text: str) -> None:
        row = RejectedRow(line, reason, excerpt(text))
        self._counts[reason] += 1
        if len(self._rejected) < MAX_KEPT_REJECTIONS:
            self._rejected.append(row)
        n_bad, bound = sum(self._counts.values()), self._options.max_bad_rows
        if self._options.is_strict:
            raise UserError(f"{self._path}: line {line}: {reason} ({row.excerpt}); --strict allows no rejected row")
        if bound is not None and n_bad > bound:
            raise UserError(
                f"{self._path}: more than {bound} rows cannot be used (line {line}: {reason}: {row.excerpt}); "
                "correct the file or raise --max-bad-rows"
            )

    def finish(
        self, unit_by_block: Mapping[int, tuple[TimeUnit, str]] | None = None, notices: Sequence[str] = ()
    ) -> Reading:
        """The Reading. `unit_by_block`: block tokens -> the unit the format's publisher says, with the words for it.

        Raises UserError when no row is usable or the time unit is in doubt."""
        stamps = np.concatenate(self._times) if self._times else np.empty(0)
        if not stamps.size:
            raise unusable(self._path, self._why_nothing())
        lengths = {role: np.concatenate(parts) for role, parts in self._lengths.items()}
        blocks = self.blocks.finish(lengths["prompt"])
        arrivals, order, unit, told = self._timeline(stamps, (unit_by_block or {}).get(blocks.block_tokens))
        trace = self._trace(arrivals, order, lengths, blocks)
        labels, label_notices = self._requests.finish(order)
        session_labels = self._sessions.names if self._sessions.has_named else None
        rejected = tuple(sorted(self._rejected, key=lambda r: r.line))
        return Reading(
            path=str(self._path),
            reader=self._reader,
            trace=trace,
            n_rows=self.n_rows,
            time_unit="datetime" if self._kind == INSTANT else unit.unit,
            time_unit_reason=unit.reason,
            rejected=rejected,
            rejected_counts=dict(self._counts),
            notices=(*told, *notices, *blocks.notices, *label_notices, *self._rejection_notices()),
            request_labels=labels,
            session_labels=session_labels,
        )

    def _timeline(
        self, stamps: NDArray[Any], by_format: tuple[TimeUnit, str] | None
    ) -> tuple[NDArray[np.float64], NDArray[np.intp] | None, DetectedUnit, list[str]]:
        """Arrivals in seconds from the first, ascending; the order that sorts the rows (None: already sorted)."""
        if self._kind == INSTANT:
            unit = DetectedUnit("ns", "the timestamps are dates")
        else:
            asked = self._options.time_unit
            unit = detect_unit(stamps, where=str(self._path), asked=asked, named=self.named_unit, by_format=by_format)
        arrivals = (stamps - stamps.min()) * UNIT_SECONDS[unit.unit]
        notices = [self._told_unit(unit, arrivals)]
        n_negative = int((stamps < 0).sum()) if self._kind != INSTANT else 0
        if n_negative:
            notices.append(f"{n_negative} negative timestamps: all times were shifted so that the first is 0")
        order = None
        n_back = int((np.diff(stamps) < 0).sum())
        if n_back:
            order = np.argsort(arrivals, kind="stable")
            arrivals = arrivals[order]
            notices.append(f"rows were out of order in {n_back} places: sorted by time, equal times kept in file order")
        if self._options.is_strict and len(notices) > 1:
            raise UserError(f"{self._path}: {notices[1]}; --strict allows neither")
        return arrivals, order, unit, notices

    def _told_unit(self, unit: DetectedUnit, arrivals: NDArray[np.float64]) -> str:
        span = float(arrivals.max())
        rate = f"mean {(arrivals.size - 1) / span:.3g} req/s" if span > 0 else "mean rate undefined (no span)"
        name = "dates" if self._kind == INSTANT else unit.unit
        extra = "; --time-unit was not needed" if self._kind == INSTANT and self._options.time_unit else ""
        return f"time unit: {name} ({unit.reason}{extra}): span {duration_text(span)}, {rate}"

    def _trace(
        self,
        arrivals: NDArray[np.float64],
        order: NDArray[np.intp] | None,
        lengths: Mapping[Role, NDArray[np.int32]],
        blocks: Blocks,
    ) -> Trace:
        n = arrivals.size
        tenants = self._tenants.names
        if tenants is None or len(tenants) > MAX_TENANTS:
            raise UserError(f"{self._path}: more than {MAX_TENANTS:,} tenants; rename the column if it holds sessions")
        trace = Trace(
            arrivals if order is None else np.zeros(n),
            lengths["prompt"],
            lengths["output"],
            self._tenants.codes(n, unnamed="one").astype(np.int16),
            (*tenants, "default") if self._tenants.has_unnamed or not tenants else tenants,
            blocks.ids,
            blocks.start,
            blocks.block_tokens,
            self._sessions.codes(n, unnamed="each") if self._sessions.has_named else None,
        )
        return trace if order is None else trace.take(order).at(arrivals)

    def _rejection_notices(self) -> tuple[str, ...]:
        if not self._counts:
            return ()
        listed = "; ".join(f"{n:,} x {reason}" for reason, n in self._counts.most_common())
        return (f"{sum(self._counts.values()):,} of {self.n_rows:,} rows were rejected: {listed}",)

    def _why_nothing(self) -> str:
        if not self.n_rows:
            return "it has no data row"
        first = min(self._rejected, key=lambda r: r.line)
        return f"all {self.n_rows:,} rows were rejected (line {first.line}: {first.reason}: {first.excerpt})"


def excerpt(text: str) -> str:
    """One printable line of at most 80 characters."""
    cut = text[:80]
    shown = "".join(c if c.isprintable() else "?" for c in cut).strip()
    return shown + ("…" if len(text) > len(cut) else "")
