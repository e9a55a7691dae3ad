"""What a trace is, in the numbers that tuning a server needs. Arithmetic over a Trace; unknown is None, never 0."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimizer.workload.arrivals import batch_spacing_s, spread_batches
from optimizer.workload.prefix import families, reusable_tokens
from optimizer.workload.trace import Trace
from optimizer.workload.window import peak_over_mean

MEBI = 1 << 20
CACHE_TOKENS = {"1M": MEBI, "3M": 3 * MEBI, "10M": 10 * MEBI}
"""Sizes of a least-recently-used prefix cache, in tokens (M = 2^20)."""
MAX_CACHE_BLOCKS = 3_000_000
"""Longer traces are judged by their first rows with this many blocks (the cache is replayed block by block)."""
MIN_IN_MINUTE = 25
"""A 60 s window with fewer requests says nothing about burstiness."""
PEAK_SECONDS = (1.0, 10.0, 60.0)


@dataclass(frozen=True)
class ServiceTime:
    """Assumed time a request occupies a server; only Little's law uses it. Pass your own server's figures."""

    prompt_tokens_per_s: float = 8000.0
    """Prefill speed of one request: an 8 B model on an A100, the order of magnitude."""
    itl_ms: float = 25.0

    def of(self, trace: Trace) -> NDArray[np.float64]:
        """(n,) seconds from arrival to last token, without queueing."""
        return trace.prompt_tokens / self.prompt_tokens_per_s + trace.output_tokens * self.itl_ms / 1e3


@dataclass(frozen=True)
class Spread:
    """A distribution. Percentiles interpolate linearly."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True)
class Concurrency:
    """Little's law: requests in service = arrivals per second x seconds each stays."""

    mean: float
    at_peak: float | None
    """At the rate of the busiest 10 s."""
    kv_tokens_mean: float
    """Cached tokens of requests in service: prompt whole, output half on average."""
    assumed_prompt_tokens_per_s: float
    assumed_itl_ms: float


@dataclass(frozen=True)
class PrefixReuse:
    """Share of all prompt tokens whose leading blocks are in the cache when the request comes."""

    block_tokens: int
    endless: float
    by_cache: Mapping[str, float]
    """cache size -> share"""
    median_request: float
    """Median over requests of the request's own share, endless cache."""
    n_families: int
    n_rows_used: int


@dataclass(frozen=True)
class Character:
    """Rates are per second. None: not defined for this trace (no span, too few requests)."""

    n_requests: int
    span_s: float
    rate_per_s: float | None
    prompt_tokens: Spread
    output_tokens: Spread
    total_tokens: Spread
    prompt_tokens_per_s: float | None
    output_tokens_per_s: float | None
    gap_cv: float | None
    """Standard deviation over mean of the gaps between arrivals; 1 for a Poisson process."""
    gap_cv_60s_median: float | None
    gap_cv_60s_p90: float | None
    """The same inside 60 s windows with at least 25 requests."""
    batch_spacing_s: float | None
    """Arrivals were recorded in batches this far apart; None if not."""
    gap_cv_spread: float | None
    """gap_cv once recorded batches are spread over their spacing (what a replay uses)."""
    longest_silence_s: float | None
    peak_over_mean: Mapping[str, float | None]
    """`1 s`, `10 s`, `60 s` -> requests in the busiest stretch that long, wherever it begins, over the mean."""
    binned_peak_over_mean: Mapping[str, float | None]
    """The same over consecutive bins from the first arrival (what public statistics of traces usually give)."""
    concurrency: Concurrency | None
    prefix_reuse: PrefixReuse | None
    one_token_share: float
    """Share of requests that ask for 1 token: they have no inter-token latency."""
    n_gaps: int
    """Inter-token gaps the trace would give, all requests together."""
    tenants: Mapping[str, int]
    n_sessions: int | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def characterize(trace: Trace, service: ServiceTime | None = None, *, seed: int = 0) -> Character:
    """Raises ValueError for an empty trace."""
    if not len(trace):
        raise ValueError("a trace without requests has no character")
    rate = trace.rate_per_s
    spread, _ = spread_batches(trace, seed)
    minutes = _minute_cvs(trace)
    counts = np.bincount(trace.tenant, minlength=len(trace.tenants))
    total = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
    return Character(
        n_requests=len(trace),
        span_s=trace.span_s,
        rate_per_s=rate,
        prompt_tokens=spread_of(trace.prompt_tokens),
        output_tokens=spread_of(trace.output_tokens),
        total_tokens=spread_of(total),
        prompt_tokens_per_s=_per_s(trace.prompt_tokens, trace.span_s),
        output_tokens_per_s=_per_s(trace.output_tokens, trace.span_s),
        gap_cv=gap_cv(trace.arrival_s),
        gap_cv_60s_median=float(np.median(minutes)) if minutes.size else None,
        gap_cv_60s_p90=float(np.percentile(minutes, 90)) if minutes.size else None,
        batch_spacing_s=batch_spacing_s(trace),
        gap_cv_spread=gap_cv(spread.arrival_s),
        longest_silence_s=float(np.diff(trace.arrival_s).max()) if len(trace) > 1 else None,
        peak_over_mean={f"{s:g} s": peak_over_mean(trace, s) for s in PEAK_SECONDS},
        binned_peak_over_mean={f"{s:g} s": _binned_peak(trace, s) for s in PEAK_SECONDS},
        concurrency=_concurrency(trace, rate, service or ServiceTime()),
        prefix_reuse=_prefix_reuse(trace),
        one_token_share=float(np.mean(trace.output_tokens == 1)),
        n_gaps=int((trace.output_tokens.astype(np.int64) - 1).sum()),
        tenants={name: int(n) for name, n in zip(trace.tenants, counts, strict=True)},
        n_sessions=None if trace.session is None else int(np.unique(trace.session).size),
    )


def spread_of(values: NDArray[Any]) -> Spread:
    p50, p90, p99, largest = (float(v) for v in np.percentile(values, [50, 90, 99, 100]))
    return Spread(float(values.mean()), p50, p90, p99, largest)


def gap_cv(arrival_s: NDArray[np.float64]) -> float | None:
    """None with fewer than 2 gaps or without a span."""
    gaps = np.diff(arrival_s)
    return float(gaps.std() / gaps.mean()) if gaps.size >= 2 and gaps.mean() > 0 else None


def _minute_cvs(trace: Trace) -> NDArray[np.float64]:
    minute = np.floor((trace.arrival_s - trace.arrival_s[0]) / 60).astype(np.int64)
    bounds = np.append(np.flatnonzero(np.diff(minute, prepend=-1)), len(trace))
    parts = [trace.arrival_s[a:b] for a, b in itertools.pairwise(bounds) if b - a >= MIN_IN_MINUTE]
    found = [gap_cv(part) for part in parts]
    return np.array([cv for cv in found if cv is not None], np.float64)


def _binned_peak(trace: Trace, seconds: float) -> float | None:
    if trace.span_s < seconds:
        return None
    bins = np.floor((trace.arrival_s - trace.arrival_s[0]) / seconds).astype(np.int64)
    fullest = np.diff(np.append(np.flatnonzero(np.diff(bins, prepend=-1)), len(trace))).max()
    return float(fullest / (len(trace) / trace.span_s * seconds))


def _per_s(tokens: NDArray[np.int32], span_s: float) -> float | None:
    return float(tokens.sum(dtype=np.int64) / span_s) if span_s > 0 else None


def _concurrency(trace: Trace, rate: float | None, service: ServiceTime) -> Concurrency | None:
    if rate is None:
        return None
    stay = service.of(trace)
    peak = peak_over_mean(trace, 10.0)
    mean = rate * float(stay.mean())
    kv_tokens = rate * float((stay * (trace.prompt_tokens + trace.output_tokens / 2)).mean())
    at_peak = None if peak is None else mean * peak
    return Concurrency(mean, at_peak, kv_tokens, service.prompt_tokens_per_s, service.itl_ms)


def _prefix_reuse(trace: Trace) -> PrefixReuse | None:
    if trace.prefix_start is None:
        return None
    n_used = int(np.searchsorted(trace.prefix_start, MAX_CACHE_BLOCKS, "right")) - 1
    used = trace if n_used >= len(trace) else trace.take(slice(0, max(1, n_used)))
    endless = reusable_tokens(used)
    if endless is None:
        return None
    total = float(used.prompt_tokens.sum(dtype=np.int64))
    by_cache = {}
    for name, size in CACHE_TOKENS.items():
        found = reusable_tokens(used, size)
        assert found is not None
        by_cache[name] = float(found.sum() / total)
    return PrefixReuse(
        used.prefix_block_tokens,
        float(endless.sum() / total),
        by_cache,
        float(np.median(endless / used.prompt_tokens)),
        int(families(used).max()) + 1,
        len(used),
    )
