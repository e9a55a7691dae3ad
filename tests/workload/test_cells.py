"""The fast way over whole blocks and the slow way cell by cell give the same answers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.workload.cells import INSTANT, MISSING, NOT_A_NUMBER, NOT_FINITE, NUMBER, OK, numbers, times

odd = object()
cells = st.one_of(
    st.integers(-(10**18), 10**18),
    st.floats(),
    st.integers(-999, 9999).map(str),
    st.floats().map(repr),
    st.sampled_from(["", " 7 ", "x", "1e3", "nan", "Infinity", "2026-01-01 10:00:00", "2026-01-01T10:00:00.5Z"]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(cells, min_size=1, max_size=8))
def test_a_block_is_read_like_its_cells(block: list[Any]) -> None:
    values, verdicts = numbers(block)
    slow = [numbers([cell, odd]) for cell in block]  # the object makes the fast way impossible
    np.testing.assert_array_equal(verdicts, [v[0] for _, v in slow])
    is_ok = verdicts == OK
    np.testing.assert_array_equal(values[is_ok], np.array([v[0] for v, _ in slow])[is_ok])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.datetimes(datetime(1971, 1, 1), datetime(2199, 1, 1)), min_size=1, max_size=4))
def test_dates_are_read_the_same_both_ways(dates: list[Any]) -> None:
    block = [d.strftime("%Y-%m-%d %H:%M:%S.%f") for d in dates]
    _, fast, kinds, verdicts = times(block)
    _, slow, _, _ = times([*block, odd])
    assert fast.tolist() == slow[:-1].tolist()
    assert set(kinds) == {INSTANT} and set(verdicts) == {OK}
    assert fast.tolist() == [
        round((np.datetime64(d, "us") - np.datetime64(0, "us")) / np.timedelta64(1, "us")) * 1000 for d in dates
    ]


@pytest.mark.parametrize(
    ("cell", "verdict"),
    [
        (None, MISSING),
        (" ", MISSING),
        (True, NOT_A_NUMBER),
        ([1], NOT_A_NUMBER),
        ("7,5", NOT_A_NUMBER),
        (10**400, NOT_FINITE),
    ],
)
def test_what_is_no_number(cell: Any, verdict: int) -> None:
    assert numbers([cell])[1].tolist() == [verdict]
    assert numbers([1, cell])[1].tolist() == [OK, verdict]


@pytest.mark.parametrize(
    "cell", ["now", "today", "2026", "2026-01", "2026-02-30 00:00:00", "11/16/2023 10:00", "2026-01-01 24:61:00"]
)
def test_what_is_no_instant(cell: str) -> None:
    _, _, kinds, verdicts = times(["2026-01-01 00:00:00", cell])
    assert kinds[0] == INSTANT
    assert kinds[1] != INSTANT and (verdicts[1] != OK or kinds[1] == NUMBER)
