"""Percentiles with their uncertainty, from raw samples.

What never came (a failed request's first token) counts as slower than everything that came: a percentile whose rank
falls on it is None, never a number. An empty sample has no mean and no percentile. Nothing here returns NaN or inf.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95
MIN_N_P99 = 368
"""Fewest samples for which a two-sided 95 % interval of a P99 exists: the smallest n with 0.99^n <= 0.025."""
MIN_N_P95 = 72
"""The same for a P95: the smallest n with 0.95^n <= 0.025."""


def finite(value: float | None) -> float | None:
    """The number, or None for anything that is not one."""
    return None if value is None or not math.isfinite(value) else float(value)


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided interval. An end that n samples cannot bound is None."""

    low: float | None
    high: float | None


@dataclass(frozen=True, eq=False)
class Sample:
    """Durations of one kind, ascending, and how many more never came. Build with `sample`."""

    values: NDArray[np.float64]
    n_missing: int = 0

    @property
    def n(self) -> int:
        """Everything that was due, come or not."""
        return int(self.values.size) + self.n_missing

    @property
    def mean(self) -> float | None:
        """Over what came; None if nothing did, or if anything is missing (an average cannot hold what never came)."""
        return finite(float(self.values.mean())) if self.values.size and not self.n_missing else None

    @property
    def max(self) -> float | None:
        """What is called "max of n"; None if anything is missing."""
        return float(self.values[-1]) if self.values.size and not self.n_missing else None

    def percentile(self, percent: float) -> float | None:
        """Linear interpolation between order statistics (numpy's default), with the missing ranked last."""
        if not 0 <= percent <= 100:
            raise ValueError(f"a percentile lies in 0..100, got {percent}")
        if not self.n:
            return None
        rank = percent / 100 * (self.n - 1)
        low, share = int(rank), rank - int(rank)
        if low + (share > 0) >= self.values.size:
            return None
        below = float(self.values[low])
        return below if share == 0 else below + share * (float(self.values[low + 1]) - below)

    def interval(self, percent: float, confidence: float = CONFIDENCE) -> Interval:
        """Distribution-free interval of a percentile: two order statistics whose ranks a binomial count gives.

        Assumes independent samples. Gaps of one step are not independent (a long step stretches them all), so for
        pooled ITL it is the least the uncertainty can be."""
        low, high = rank_interval(self.n, percent / 100, confidence)
        return Interval(self._at_rank(low), self._at_rank(high))

    def _at_rank(self, rank: int) -> float | None:
        return float(self.values[rank - 1]) if 1 <= rank <= self.values.size else None


def sample(values: ArrayLike | Iterable[float], n_missing: int = 0) -> Sample:
    """Sort the samples. NaN, inf and negative durations (a clock fault) count as never come."""
    array = np.asarray(values if isinstance(values, np.ndarray) else list(values), np.float64).ravel()  # type: ignore[arg-type]
    is_usable = np.isfinite(array) & (array >= 0)
    return Sample(np.sort(array[is_usable]), n_missing + int((~is_usable).sum()))


def rank_interval(n: int, p: float, confidence: float = CONFIDENCE) -> tuple[int, int]:
    """1-based ranks of the order statistics that bound the p-quantile; 0 or n + 1 where n is too small for an end.

    The number of samples below the quantile is Binomial(n, p): the low rank l is the largest with
    P(B < l) <= a/2, the high rank u the smallest with P(B >= u) <= a/2 (Conover, Practical Nonparametric
    Statistics, 3rd ed., section 3.2)."""
    if n < 1:
        return 0, n + 1
    tail = (1 - confidence) / 2
    first, below = _binomial_cdf(n, p)
    n_low = int(np.searchsorted(below, tail, side="right"))
    n_high = int(np.searchsorted(below, 1 - tail, side="left"))
    low = first + n_low if n_low or first else 0
    return low, min(first + n_high + 1, n + 1)


def _binomial_cdf(n: int, p: float) -> tuple[int, NDArray[np.float64]]:
    """(k0, P(B <= k0), P(B <= k0 + 1), ...) over every k within 12 standard deviations of the mean."""
    if p <= 0 or p >= 1:
        return (0 if p <= 0 else n), np.ones(1)
    reach = 12 * math.sqrt(n * p * (1 - p)) + 12
    first, last = max(0, math.floor(n * p - reach)), min(n, math.ceil(n * p + reach))
    k = np.arange(first, last)
    log_pmf = np.concatenate([[0.0], np.cumsum(np.log((n - k) / (k + 1)) + math.log(p / (1 - p)))])
    pmf = np.exp(log_pmf - log_pmf.max())
    return first, np.cumsum(pmf / pmf.sum())


def median_slope(x: NDArray[np.float64], y: NDArray[np.float64], most: int, least_step: float = 0.0) -> float:
    """Theil's and Sen's: the median over pairs more than `least_step` apart in x, of at most `most` points spread
    evenly over the rows. NaN where no pair is."""
    every = np.linspace(0, x.size - 1, min(x.size, most)).astype(int)
    x, y = x[every], y[every]
    i, j = np.triu_indices(x.size, 1)
    apart = np.abs(x[j] - x[i]) > least_step
    return float(np.median((y[j] - y[i])[apart] / (x[j] - x[i])[apart]))
