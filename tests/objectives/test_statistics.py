from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from objectives.statistics import (
    MIN_N_P95,
    MIN_N_P99,
    Interval,
    rank_interval,
    sample,
)

floats = st.floats(0, 1e6, allow_nan=False)


@given(st.lists(floats, min_size=1, max_size=200), st.floats(0, 100))
def test_percentile_is_numpys_linear(values: list[float], percent: float) -> None:
    assert sample(values).percentile(percent) == pytest.approx(np.percentile(values, percent), rel=1e-9, abs=1e-9)


def test_an_empty_sample_has_no_figure() -> None:
    empty = sample([])
    assert (empty.n, empty.mean, empty.percentile(99), empty.interval(99)) == (0, None, None, Interval(None, None))


def test_what_never_came_is_slower_than_everything() -> None:
    ten = sample(range(90), n_missing=10)
    assert ten.percentile(50) == pytest.approx(49.5)
    assert ten.percentile(99) is None
    assert ten.mean is None
    assert sample([1.0], n_missing=1).percentile(0) == 1.0


def test_losing_samples_never_shortens_a_tail() -> None:
    full = sample(range(400))
    for n_lost in (1, 2, 3, 8, 40):
        cut = sample(range(400 - n_lost), n_missing=n_lost).percentile(99)
        assert cut is None or cut >= full.percentile(99)


def test_nan_infinity_and_negative_durations_count_as_never_come() -> None:
    odd = sample([1.0, math.nan, math.inf, -0.5, 2.0])
    assert (odd.values.tolist(), odd.n_missing) == ([1.0, 2.0], 3)


@pytest.mark.parametrize(("percent", "n"), [(99, MIN_N_P99), (95, MIN_N_P95)])
def test_the_smallest_n_with_a_two_sided_interval(percent: float, n: int) -> None:
    assert sample(range(n)).interval(percent).high == n - 1
    assert sample(range(n - 1)).interval(percent).high is None


@pytest.mark.parametrize("n", [1, 2, 10, 368, 1000, 20_000])
@pytest.mark.parametrize("p", [0.5, 0.95, 0.99])
def test_ranks_follow_the_binomial(n: int, p: float) -> None:
    log_pmf = [
        math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
        for k in range(n + 1)
    ]
    cdf = np.cumsum(np.exp(log_pmf))
    low = int((cdf <= 0.025).sum())
    high = next((k + 1 for k in range(n) if cdf[k] >= 0.975), n + 1)
    assert rank_interval(n, p) == (low, high)


def test_the_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    truth = -math.log(0.01)
    hits = 0
    for _ in range(400):
        interval = sample(rng.exponential(size=1000)).interval(99)
        assert interval.low is not None and interval.high is not None
        hits += interval.low <= truth <= interval.high
    assert hits / 400 >= 0.93
