"""Values as columns: distinct texts as numbers, and what is unknown as -1 or not-a-number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = dict[str, NDArray[Any]]


def coded(texts: Iterable[str | None]) -> tuple[list[str | None], NDArray[np.int32]]:
    """Distinct texts in order of appearance, and each one's place among them."""
    places: dict[str | None, int] = {}
    codes = [places.setdefault(text, len(places)) for text in texts]
    return list(places), np.array(codes, np.int32)


def whole(values: Iterable[int | None]) -> NDArray[np.int64]:
    """For numbers that are never negative: None as -1."""
    return np.array([-1 if v is None else v for v in values], np.int64)


def real(values: Iterable[float | None]) -> NDArray[np.float64]:
    """None as not-a-number."""
    return np.array([float("nan") if v is None else v for v in values], np.float64)


def int_or_none(value: Any) -> int | None:
    return None if value < 0 else int(value)


def float_or_none(value: Any) -> float | None:
    return None if np.isnan(value) else float(value)
