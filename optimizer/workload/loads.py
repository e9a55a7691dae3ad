"""The three loads of a trial from one frozen window: steady, saturation, stress. Never blended.

Each is a function of (window, rate, seed) alone: every trial of a study replays the same rows at the same times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from objectives.measurement import Load
from optimizer.errors import UserError
from optimizer.workload.arrivals import MAX_FACTOR, Retimed, assemble, at_rate
from optimizer.workload.trace import Trace
from optimizer.workload.window import (
    busiest,
    densest_rows,
    longest_rows,
    nearest_start,
    weighted_tokens,
)

PEAK_SECONDS = 10.0
LONG_SHARE = 0.1
"""Share of the stress load's requests that are replaced by the tenant's longest prompts."""
MAX_RATE_MISS = 0.05
"""A measured stretch further than this from the rate asked for is looked for again in a longer layout."""
_BEFORE_S = 1e-6
"""Warm-up rows that share the first measured row's arrival are put this far before it."""
_MAX_LAYOUTS = 20
_WARMUP_COPY = 1 << 20
"""Copy number of stress warm-up rows: their conversations are not those of the burst."""


@dataclass(frozen=True)
class LoadTrace:
    """What a study turns into a LoadPlan by adding a time limit."""

    load: Load
    trace: Trace
    """Measured rows start at 0, warm-up rows lie before; saturation: measured rows at 0, in trace order."""
    n_warmup: int
    offered_per_s: float | None
    """Realised mean rate of the measured rows; None for saturation, and for fewer than 2 distinct arrivals."""
    max_context_tokens: int
    repeated_share: float
    """Share of measured rows whose row of the window is replayed earlier in this load, too (with fresh ids)."""

    @property
    def n_measured(self) -> int:
        return len(self.trace) - self.n_warmup


def steady(
    window: Trace,
    rate_per_s: float,
    *,
    n_requests: int = 1000,
    n_warmup: int = 200,
    seed: int = 0,
    squeeze: bool = False,
) -> LoadTrace:
    """The window's own mix at a mean of `rate_per_s`. At the window's own rate the rows arrive as recorded."""
    n_rows = n_warmup + n_requests
    for n_laid in (n_rows, 2 * n_rows, 4 * n_rows):
        laid = at_rate(window, rate_per_s, n_requests=n_laid, seed=seed, squeeze=squeeze)
        first = _measured_start(laid, window, rate_per_s, n_warmup, n_requests)
        trace = _from_zero(laid.trace.take(slice(first, first + n_rows)), n_warmup)
        if abs((_rate(trace, n_warmup) or rate_per_s) / rate_per_s - 1) <= MAX_RATE_MISS:
            break
    repeated = _repeated_share(laid.source_row[first : first + n_rows], n_warmup)
    return LoadTrace("steady", trace, n_warmup, _rate(trace, n_warmup), max_context_tokens(trace), repeated)


def _measured_start(laid: Retimed, window: Trace, rate_per_s: float, n_warmup: int, n_requests: int) -> int:
    """Where to begin so that the measured rows are offered at the load and rate asked for. Rows used before are avoided
    as long as the recorded rate makes that possible."""
    candidates = laid.trace.take(slice(n_warmup, None))
    load_per_s = rate_per_s * float(weighted_tokens(window).mean())
    is_avoidable = rate_per_s <= (window.rate_per_s or 0.0)
    repeated = laid.copy[n_warmup:] > 0 if is_avoidable else None
    return nearest_start(candidates, n_requests, load_per_s, rate_per_s=rate_per_s, is_unwanted=repeated)


def saturation(window: Trace, *, n_requests: int = 1000, n_warmup: int = 0, seed: int = 0) -> LoadTrace:
    """The same mix (a seeded share of every tenant's families), every measured row waiting at 0 in the window's order;
    warm-up rows wait one second earlier.

    `n_requests` must keep the queue non-empty once the running set is full: several times `max_num_seqs`."""
    n_rows = n_warmup + n_requests
    share = n_rows / max(len(window), 1)
    laid = at_rate(window, share * (window.rate_per_s or 1.0), n_requests=n_rows, seed=seed)
    rows = laid.trace.take(slice(0, n_rows))
    trace = rows.at(np.where(np.arange(n_rows) < n_warmup, -1.0, 0.0))
    repeated = _repeated_share(laid.source_row[:n_rows], n_warmup)
    return LoadTrace("saturation", trace, n_warmup, None, max_context_tokens(trace), repeated)


def stress(
    window: Trace,
    rate_per_s: float,
    *,
    n_requests: int = 300,
    n_warmup: int = 100,
    seed: int = 0,
    recorded: Trace | None = None,
    long_share: float = LONG_SHARE,
) -> LoadTrace:
    """Every tenant's busiest stretch at the same time, with its longest prompts in it, after warm-up at `rate_per_s`.

    Each tenant arrives at its recorded peak over mean (busiest 10 s) times its share of `rate_per_s`, so the sum is at
    least the whole workload's recorded peak. `recorded`: where peaks and long prompts are looked for (default: the
    window). It is a survival test: no objective is read from it."""
    source = window if recorded is None else recorded
    if not 0 <= long_share <= 1:
        raise UserError(f"stress: share of long prompts {long_share:g}, expected 0 to 1")
    rates = stress_rates(source, rate_per_s)
    total = sum(rates.values())
    rows, copies, arrivals = [], [], []
    for tenant, rate in rates.items():
        row, copy, arrival = _burst(source, tenant, rate, max(1, round(n_requests * rate / total)), seed, long_share)
        rows.append(row)
        copies.append(copy)
        arrivals.append(arrival)
    warm = at_rate(source, rate_per_s, n_requests=max(1, n_warmup), seed=seed + 1)
    keep = slice(0, n_warmup)
    rows.append(warm.source_row[keep])
    copies.append(warm.copy[keep] + _WARMUP_COPY)
    lead = warm.trace.arrival_s[keep]
    arrivals.append(lead - (lead[-1] if n_warmup else 0.0) - 1 / rate_per_s)
    laid = assemble(source, np.concatenate(rows), np.concatenate(copies), np.concatenate(arrivals))
    repeated = _repeated_share(laid.source_row, n_warmup)
    return LoadTrace(
        "stress", laid.trace, n_warmup, _rate(laid.trace, n_warmup), max_context_tokens(laid.trace), repeated
    )


def stress_rates(recorded: Trace, rate_per_s: float) -> dict[int, float]:
    """tenant index -> its stress rate: its busiest 10 s over the whole workload's mean, times the rate, as far as its
    trace can be laid out."""
    mean = recorded.rate_per_s
    rates = {}
    for tenant in np.unique(recorded.tenant):
        own = recorded.take(np.flatnonzero(recorded.tenant == tenant))
        share = len(own) / len(recorded)
        is_long_enough = mean is not None and recorded.span_s >= PEAK_SECONDS
        peak = busiest(own, PEAK_SECONDS)[1] / PEAK_SECONDS / mean if mean and is_long_enough else share
        most = MAX_FACTOR * (own.rate_per_s or math.inf)
        rates[int(tenant)] = min(max(peak, share) * rate_per_s, most)
    return rates


def _burst(
    source: Trace, tenant: int, rate_per_s: float, n: int, seed: int, long_share: float
) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.float64]]:
    """(source row, copy, arrival from 0) of one tenant's part of the stress load."""
    own = np.flatnonzero(source.tenant == tenant)
    mine = source.take(own)
    dense = np.arange(len(mine))[densest_rows(mine, n)]
    laid = _at_least(mine.take(dense), rate_per_s, n, seed)
    row, copy = dense[laid.source_row[:n]].copy(), laid.copy[:n].copy()
    longest = longest_rows(mine, min(len(mine), int(np.ceil(long_share * n))))
    place = np.linspace(0, n - 1, longest.size).astype(np.intp)
    row[place], copy[place] = longest, 0
    return own[row], copy, laid.trace.arrival_s[:n] - laid.trace.arrival_s[0]


def _at_least(rows: Trace, rate_per_s: float, n: int, seed: int) -> Retimed:
    """Laid out so that the first `n` arrive at no less than `rate_per_s` (a short layout can miss its mean)."""
    asked = rate_per_s
    for _ in range(_MAX_LAYOUTS):
        laid = at_rate(rows, asked, n_requests=n, seed=seed)
        reached = laid.trace.take(slice(0, n)).rate_per_s
        if reached is None or reached >= rate_per_s:
            break
        asked *= max(1.02, rate_per_s / reached)
    return laid


def _repeated_share(source_row: NDArray[np.intp], n_warmup: int) -> float:
    is_first = np.zeros(source_row.size, bool)
    is_first[np.unique(source_row, return_index=True)[1]] = True
    return float(np.mean(~is_first[n_warmup:]))


def max_context_tokens(trace: Trace) -> int:
    """Largest prompt + output."""
    return int((trace.prompt_tokens.astype(np.int64) + trace.output_tokens).max())


def _from_zero(rows: Trace, n_warmup: int) -> Trace:
    arrival = rows.arrival_s - rows.arrival_s[min(n_warmup, len(rows) - 1)]
    arrival[:n_warmup] = np.minimum(arrival[:n_warmup], -_BEFORE_S)
    return rows.at(arrival)


def _rate(trace: Trace, n_warmup: int) -> float | None:
    return trace.take(slice(n_warmup, None)).rate_per_s
