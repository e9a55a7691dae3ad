"""The file's own ids: kept as labels, never used to join. Compared code point by code point (no normalisation)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

MAX_LABEL_CHARS = 200
MAX_LABELLED_ROWS = 1_000_000
"""Request labels of longer files are dropped: they would take more memory than the trace."""


def label_of(cell: Any) -> str:
    """ "" for a missing id. A long id keeps its beginning and a digest, so that different ids stay different."""
    if cell is None or (isinstance(cell, float) and cell != cell):
        return ""
    text = cell if isinstance(cell, str) else str(cell)
    if len(text) <= MAX_LABEL_CHARS:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{text[:MAX_LABEL_CHARS]}…{digest}"


class LabelColumn:
    """Request ids, one a row."""

    def __init__(self) -> None:
        self._labels: list[str] = []
        self._has_any = False
        self._n_rows = 0

    def add(self, cells: Sequence[Any] | None, kept: NDArray[np.intp]) -> None:
        self._n_rows += kept.size
        if cells is None:
            return
        labels = [label_of(cells[i]) for i in kept.tolist()]
        self._has_any = self._has_any or any(labels)
        if self._n_rows > MAX_LABELLED_ROWS:
            self._labels.clear()
            return
        self._labels += [""] * (self._n_rows - kept.size - len(self._labels))
        self._labels += labels

    def finish(self, order: NDArray[np.intp] | None) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
        """(labels in trace order or None, notices)."""
        if not self._has_any:
            return None, ()
        if self._n_rows > MAX_LABELLED_ROWS:
            return None, (f"request ids were not kept: more than {MAX_LABELLED_ROWS:,} rows",)
        labels = self._labels + [""] * (self._n_rows - len(self._labels))
        named = [x for x in labels if x]
        n_twice = len(named) - len(set(named))
        told = (f"{n_twice} request ids occur again: rows are told apart by internal ids",) if n_twice else ()
        return tuple(labels if order is None else [labels[i] for i in order]), told


class SessionColumn:
    """Names that group rows (sessions, tenants): name -> number in order of first appearance.

    Rows keep an 8-byte digest of their name, so that millions of sessions fit in memory."""

    def __init__(self) -> None:
        self._digests: list[NDArray[np.int64]] = []
        self._names: dict[int, str] = {}
        self._are_too_many = False

    @property
    def has_named(self) -> bool:
        return self._are_too_many or bool(self._names)

    @property
    def names(self) -> tuple[str, ...] | None:
        """None when there are too many to keep."""
        return None if self._are_too_many else tuple(self._names.values())

    @property
    def has_unnamed(self) -> bool:
        return any((part == _NO_NAME).any() for part in self._digests)

    def add(self, cells: Sequence[Any] | None, kept: NDArray[np.intp]) -> None:
        digests = np.full(kept.size, _NO_NAME, np.int64)
        for k, i in enumerate(kept.tolist() if cells is not None else ()):
            label = label_of(cells[i]) if cells is not None else ""
            if label.strip():
                digests[k] = digest = _digest(label)
                if not self._are_too_many:
                    self._names.setdefault(digest, label)
        if len(self._names) > MAX_LABELLED_ROWS:
            self._names.clear()
            self._are_too_many = True
        self._digests.append(digests)

    def codes(self, n_rows: int, *, unnamed: Literal["one", "each"]) -> NDArray[np.int64]:
        """Numbers of all rows. Rows without a name share the next free number, or get one each."""
        digests = np.concatenate(self._digests) if self._digests else np.full(n_rows, _NO_NAME, np.int64)
        named = np.flatnonzero(digests != _NO_NAME)
        _, first, inverse = np.unique(digests[named], return_index=True, return_inverse=True)
        rank = np.empty(first.size, np.int64)
        rank[np.argsort(first, kind="stable")] = np.arange(first.size)
        codes = first.size + (np.cumsum(digests == _NO_NAME) - 1 if unnamed == "each" else np.zeros(n_rows, np.int64))
        codes[named] = rank[inverse]
        return codes


_NO_NAME = 0


def _digest(label: str) -> int:
    text = label.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True) or 1
