"""Trace: the requests of a workload as columns. Immutable; every operation returns a new one.

Columns, not objects: a trace of five million rows must fit in memory and be cut in milliseconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Trace:
    """n requests in arrival order.

    Raises ValueError when the columns' lengths differ, arrivals descend, or a length is below 1."""

    arrival_s: NDArray[np.float64]
    """(n,) seconds, ascending; 0 is wherever the maker put it (a reader: the first row)."""
    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    tenant: NDArray[np.int16]
    """(n,) index into `tenants`."""
    tenants: tuple[str, ...] = ("default",)
    prefix_ids: NDArray[np.int64] | None = None
    """(total blocks,) prefix block ids of all rows, concatenated; None if the format has none."""
    prefix_start: NDArray[np.int64] | None = None
    """(n + 1,) row i owns prefix_ids[prefix_start[i]:prefix_start[i + 1]]."""
    prefix_block_tokens: int = 0
    """Tokens a prefix block stands for (Mooncake 512); 0 without prefix ids. The last block of a row may be partial."""
    session: NDArray[np.int64] | None = None
    """(n,) conversation id; None if unknown. Thinning keeps sessions whole."""

    def __post_init__(self) -> None:
        n = self.arrival_s.size
        for name in ("prompt_tokens", "output_tokens", "tenant"):
            if getattr(self, name).size != n:
                raise ValueError(f"{name} has {getattr(self, name).size} rows, arrival_s has {n}")
        if n and np.any(np.diff(self.arrival_s) < 0):
            raise ValueError("arrivals must not descend")
        if n and (self.prompt_tokens.min() < 1 or self.output_tokens.min() < 1):
            raise ValueError("prompt and output lengths must be at least 1")
        if (self.prefix_ids is None) != (self.prefix_start is None):
            raise ValueError("prefix_ids and prefix_start come together")

    def __len__(self) -> int:
        return int(self.arrival_s.size)

    @property
    def span_s(self) -> float:
        return float(self.arrival_s[-1] - self.arrival_s[0]) if len(self) > 1 else 0.0

    @property
    def rate_per_s(self) -> float | None:
        """(n - 1) / span; None when the span is 0."""
        return (len(self) - 1) / self.span_s if self.span_s > 0 else None

    def blocks_of(self, row: int) -> NDArray[np.int64]:
        """Prefix block ids of one row; empty if it has none."""
        if self.prefix_ids is None or self.prefix_start is None:
            return np.empty(0, np.int64)
        return self.prefix_ids[self.prefix_start[row] : self.prefix_start[row + 1]]

    def take(self, rows: NDArray[np.intp] | Sequence[int] | slice) -> Trace:
        """These rows, in the order given (which must keep arrivals ascending)."""
        index = np.arange(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows, np.intp)
        ids, start = self.prefix_ids, self.prefix_start
        if ids is not None and start is not None:
            parts = [ids[start[i] : start[i + 1]] for i in index]
            start = np.concatenate([[0], np.cumsum([p.size for p in parts], dtype=np.int64)])
            ids = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return replace(
            self,
            arrival_s=self.arrival_s[index],
            prompt_tokens=self.prompt_tokens[index],
            output_tokens=self.output_tokens[index],
            tenant=self.tenant[index],
            prefix_ids=ids,
            prefix_start=start,
            session=None if self.session is None else self.session[index],
        )

    def at(self, arrival_s: NDArray[np.float64]) -> Trace:
        """The same requests at other times. `arrival_s` must ascend."""
        return replace(self, arrival_s=np.asarray(arrival_s, np.float64))

    def shifted(self, by_s: float) -> Trace:
        return self.at(self.arrival_s + by_s)

    @property
    def content_hash(self) -> str:
        """16 hex digits over every column (times to the microsecond): the identity of a frozen window."""
        h = hashlib.sha256()
        h.update(np.round(self.arrival_s * 1e6).astype(np.int64).tobytes())
        for column in (self.prompt_tokens, self.output_tokens, self.tenant):
            h.update(column.astype(np.int64).tobytes())
        h.update("\0".join(self.tenants).encode())
        if self.prefix_ids is not None and self.prefix_start is not None:
            h.update(
                self.prefix_ids.tobytes() + self.prefix_start.tobytes() + bytes(str(self.prefix_block_tokens), "ascii")
            )
        return h.hexdigest()[:16]
