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
    noise_floor,
    rank_interval,
    sample,
    student_t,
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


def test_noise_floor_holds_for_two_runs_of_the_same() -> None:
    rng = np.random.default_rng(1)
    groups = [list(100 * rng.lognormal(0, 0.02, 3)) for _ in range(300)]
    floor = noise_floor(groups)
    assert floor is not None
    pairs = 100 * rng.lognormal(0, 0.02, (4000, 2))
    ratio = pairs.max(axis=1) / pairs.min(axis=1) - 1
    assert (ratio <= floor).mean() == pytest.approx(0.95, abs=0.025)


def test_noise_floor_of_few_repeats_is_wide_and_of_none_unknown() -> None:
    assert noise_floor([[100.0, 102.0]]) > noise_floor([[100.0, 102.0]] * 10)  # type: ignore[operator]
    assert noise_floor([[100.0], [50.0]]) is None
    assert noise_floor([]) is None
    assert noise_floor([[0.0, 1.0]]) is None
    assert noise_floor([[math.nan, 1.0]]) is None
    assert noise_floor([[7.0, 7.0, 7.0]]) == 0.0


@pytest.mark.parametrize(("dof", "point"), [(1, 12.706), (10, 2.228), (11, 2.201), (30, 2.042), (120, 1.980)])
def test_students_t(dof: int, point: float) -> None:
    assert student_t(dof) == pytest.approx(point, abs=0.003)
