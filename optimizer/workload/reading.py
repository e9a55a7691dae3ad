"""What a trace reader takes and gives: Head, ReadOptions -> Reading. One module a format implements `Reader`.

A reader never guesses silently: units, block sizes, sorting, shifting and every row it left out are told in the
Reading, and the file as it was found is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from optimizer.workload.trace import Trace

TimeUnit = Literal["s", "ms", "us", "ns"]
ZeroOutput = Literal["reject", "one"]

UNIT_SECONDS: Mapping[TimeUnit, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
MAX_KEPT_REJECTIONS = 1000
"""Rejected rows kept one by one; beyond it they are only counted by reason."""


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """One row that was not used."""

    line: int
    """1-based line of the file; in a JSON array, the 1-based element."""
    reason: str
    excerpt: str
    """The row's beginning, at most 80 characters."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What the user may say about a file."""

    time_unit: TimeUnit | None = None
    is_strict: bool = False
    """Any rejected, unsorted or negative row is an error."""
    max_bad_rows: int | None = None
    """More rejected rows than this is an error; None: no bound."""
    zero_output: ZeroOutput = "reject"
    """Rows that asked for 0 output tokens (failed requests in most logs): leave out, or count as 1 token."""


@dataclass(frozen=True)
class Head:
    """The first lines of a file, for recognising its format."""

    lines: tuple[str, ...]
    """Lines with content (no blank, no comment), at most 20, each cut at 4,096 characters."""


@dataclass(frozen=True)
class Reading:
    """A file's usable requests and an account of everything else that was in it."""

    path: str
    reader: str
    trace: Trace
    n_rows: int
    """Data rows in the file, used or not (without header, blank and comment lines)."""
    time_unit: str
    """`s`, `ms`, `us`, `ns`, or `datetime`."""
    time_unit_reason: str
    rejected: tuple[RejectedRow, ...] = ()
    """The first MAX_KEPT_REJECTIONS rejected rows in file order."""
    rejected_counts: Mapping[str, int] = field(default_factory=dict)
    """reason -> rows, complete"""
    notices: tuple[str, ...] = ()
    request_labels: tuple[str, ...] | None = None
    """The file's own request ids in trace order ("" where a row has none). Labels only: rows are joined by index."""
    session_labels: tuple[str, ...] | None = None
    """The file's own session names; `trace.session` indexes it; sessions beyond its end had no name."""

    @property
    def n_rejected(self) -> int:
        return sum(self.rejected_counts.values())

    @property
    def block_tokens(self) -> int:
        """Tokens a prefix block stands for; 0 without prefix ids."""
        return self.trace.prefix_block_tokens


class Reader(Protocol):
    """One trace format. Passes tests/contract/test_reader_contract.py."""

    @property
    def name(self) -> str:
        """What `--reader` takes."""
        ...

    @property
    def looks_like(self) -> str:
        """One phrase for the error that lists the formats, e.g. `CSV with header TIMESTAMP,ContextTokens,...`."""
        ...

    def sniff(self, head: Head, path: Path) -> float:
        """Confidence that this file is of this format: 0 (not) to 1 (certain). Reads nothing but the head."""
        ...

    def read(self, path: Path, options: ReadOptions) -> Reading:
        """Read the whole file, streaming. Raises UserError, one line naming the file, when no row is usable."""
        ...
