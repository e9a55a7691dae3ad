"""When requests arrive: another mean rate, spread batches, repetition. Time is never squeezed unless asked.

A lower rate thins, a higher one superposes shifted copies, both by whole families (sessions, shared prefixes). Every
row of the trace is used once before any is used twice, so a thinned trace becomes longer in time, not shorter in
rows. Everything is a function of (trace, rate, seed).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from optimizer.errors import UserError
from optimizer.workload.prefix import common_ids, families
from optimizer.workload.trace import Trace

MAX_FACTOR = 10_000
"""Superposing more copies of a trace than this leaves nothing of its pattern."""
_MAX_ROWS = 20_000_000


@dataclass(frozen=True)
class Retimed:
    """A trace at another rate, with where each row came from."""

    trace: Trace
    source_row: NDArray[np.intp]
    copy: NDArray[np.int64]
    """0 for a row's first use; copy k > 0 has fresh prefix and session ids, and another place in time."""

    @property
    def repeated_share(self) -> float:
        return float(np.mean(self.copy > 0)) if self.copy.size else 0.0


def at_rate(trace: Trace, rate_per_s: float, *, n_requests: int, seed: int, squeeze: bool = False) -> Retimed:
    """At least `n_requests` requests at a mean of `rate_per_s` (any positive number), arrivals from 0.

    The trace's own pattern is kept: pass j over it covers [j, j + 1) times its period, each with the next share of
    families of a seeded order; further copies of a family are shifted in time by a seeded amount. Tenants keep their
    shares. `squeeze` scales the gaps instead. A trace without a span gets Poisson arrivals. Far above the recorded
    rate, a run of rows covers less time than a conversation lasts, so less prefix reuse falls into it.

    Raises UserError for an empty trace, a rate that is not above 0, or one beyond MAX_FACTOR."""
    if not len(trace):
        raise UserError("the workload has no request to replay")
    if not (math.isfinite(rate_per_s) and rate_per_s > 0):
        raise UserError(f"rate {rate_per_s:g} req/s: expected a number above 0")
    if n_requests > _MAX_ROWS:
        raise UserError(f"{n_requests:,} requests asked for; at most {_MAX_ROWS:,} can be laid out")
    recorded = trace.rate_per_s
    if recorded is None:
        return _poisson(trace, rate_per_s, n_requests, seed)
    source = trace.at((trace.arrival_s - trace.arrival_s[0]) * (recorded / rate_per_s if squeeze else 1.0))
    factor = 1.0 if squeeze else rate_per_s / recorded
    factor = 1.0 if abs(factor - 1.0) < 1e-9 else factor
    if factor > MAX_FACTOR:
        raise UserError(
            f"rate {rate_per_s:g} req/s is {factor:,.0f} x the trace's {recorded:.3g}; at most {MAX_FACTOR} x:"
            " give a lower --rate, or --rate recorded"
        )
    n_passes = math.ceil(n_requests / (len(trace) * factor) - 1e-9)
    while True:
        layout = _passes(source, factor, n_passes, seed)
        if layout[0].size >= n_requests:
            return assemble(source, *layout)
        n_passes += 1


def _passes(
    trace: Trace, factor: float, n_passes: int, seed: int
) -> tuple[NDArray[np.intp], NDArray[np.int64], NDArray[np.float64]]:
    """(source row, copy, arrival) of `n_passes` passes, unsorted."""
    period = trace.span_s * len(trace) / (len(trace) - 1)
    family = families(trace)
    first = np.full(family.max() + 1, np.inf)
    np.minimum.at(first, family, trace.arrival_s)
    rows, copies, arrivals = [], [], []
    for tenant in np.unique(trace.tenant):
        own = np.flatnonzero(trace.tenant == tenant)
        quota = own.size * factor
        for copy in range(math.ceil(n_passes * factor - 1e-9)):
            rng = np.random.default_rng([seed & 0x7FFFFFFF, int(tenant), copy])
            before = _rows_before(family[own], rng)
            turn = np.floor((before + copy * own.size) / quota + 1e-9).astype(np.int64)
            shift = _shift(first[family[own]], copy, period, own.size, family[own], rng)
            is_in = turn < n_passes
            rows.append(own[is_in])
            copies.append(np.full(int(is_in.sum()), copy, np.int64))
            arrivals.append((trace.arrival_s[own] + shift + turn * period)[is_in])
    return np.concatenate(rows), np.concatenate(copies), np.concatenate(arrivals)


def _rows_before(family: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """In a seeded order of the families: for each row, how many rows stand in families before its own."""
    present, inverse, sizes = np.unique(family, return_inverse=True, return_counts=True)
    order = rng.permutation(present.size)
    before = np.empty(present.size, np.int64)
    before[order] = np.cumsum(sizes[order]) - sizes[order]
    return before[inverse]


def _shift(
    first_s: NDArray[np.float64],
    copy: int,
    period: float,
    n_rows: int,
    family: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.float64]:
    """Seconds by which each row of a copy moves: one shift a copy and a jitter of up to a mean gap a family; a family
    that would start after the period wraps to its beginning as a whole. Copy 0 stays where it was recorded."""
    if copy == 0:
        return np.zeros(n_rows)
    present, inverse = np.unique(family, return_inverse=True)
    move = rng.uniform(0, period) + rng.uniform(0, period / n_rows, present.size)[inverse]
    return np.where(first_s + move >= period, move - period, move)


def _poisson(trace: Trace, rate_per_s: float, n_requests: int, seed: int) -> Retimed:
    n = max(n_requests, 1)
    gaps = np.random.default_rng([seed & 0x7FFFFFFF, 0x501]).exponential(1 / rate_per_s, n)
    rows = np.arange(n) % len(trace)
    return assemble(trace, rows, np.arange(n) // len(trace), np.cumsum(gaps) - gaps[0])


def assemble(
    trace: Trace, source_row: NDArray[np.intp], copy: NDArray[np.int64], arrival_s: NDArray[np.float64]
) -> Retimed:
    """These rows at these times (sorted here); copies above 0 get ids of their own, except common prefix blocks."""
    order = np.argsort(arrival_s, kind="stable")
    rows, copies = source_row[order], copy[order]
    still = trace.at(np.zeros(len(trace)))
    made = still.take(rows).at(arrival_s[order])
    if copies.any():
        made = replace(
            made, prefix_ids=_fresh_blocks(trace, made, copies), session=_fresh_sessions(trace, made, copies)
        )
    return Retimed(made, rows, copies)


def _fresh_blocks(trace: Trace, made: Trace, copies: NDArray[np.int64]) -> NDArray[np.int64] | None:
    if made.prefix_ids is None or made.prefix_start is None or trace.prefix_ids is None:
        return None
    known = np.unique(trace.prefix_ids)
    number = np.searchsorted(known, made.prefix_ids)
    of_block = np.repeat(copies, np.diff(made.prefix_start))
    is_common = np.isin(made.prefix_ids, common_ids(trace))
    return np.where(is_common, number, number + of_block * known.size)


def _fresh_sessions(trace: Trace, made: Trace, copies: NDArray[np.int64]) -> NDArray[np.int64] | None:
    if made.session is None or trace.session is None:
        return None
    known = np.unique(trace.session)
    return np.searchsorted(known, made.session) + copies * known.size


def batch_spacing_s(trace: Trace) -> float | None:
    """Spacing of recorded batches: most rows share their arrival with another, and the distinct arrivals lie on a
    grid (Mooncake: 3 s; a log cut to whole seconds: 1 s). None when arrivals are not batched."""
    distinct, counts = np.unique(trace.arrival_s, return_counts=True)
    if distinct.size < 3 or counts[counts > 1].sum() < len(trace) / 2:
        return None
    gaps = np.diff(distinct)
    spacing = float(np.median(gaps))
    steps = np.maximum(np.round(gaps / spacing), 1)
    tolerance = np.maximum(0.01 * spacing * steps, 2e-3)
    return spacing if np.mean(np.abs(gaps - steps * spacing) <= tolerance) >= 0.9 else None


def spread_batches(trace: Trace, seed: int) -> tuple[Trace, str | None]:
    """Rows of a batch spread uniformly (seeded) over the batch spacing, in file order; and the notice that says so.

    Replayed as recorded, every batch would land at once and P99 TTFT would measure the batching."""
    spacing = batch_spacing_s(trace)
    if spacing is None:
        return trace, None
    distinct, batch = np.unique(trace.arrival_s, return_inverse=True)
    room = np.append(np.minimum(np.diff(distinct), spacing), spacing)
    offset = np.random.default_rng([seed & 0x7FFFFFFF, 0xBA7C]).uniform(0, 1, len(trace)) * room[batch]
    offset = offset[np.lexsort((offset, batch))]
    told = f"arrivals are recorded in batches every {spacing:.3g} s: each batch was spread evenly over it (seed {seed})"
    return trace.at(trace.arrival_s + offset), told


def rotated(trace: Trace, by_s: float, period_s: float) -> Trace:
    """The trace moved by `by_s` on a circle of `period_s`; a family that would start after the end wraps as a whole."""
    family = families(trace)
    first = np.full(family.max(initial=-1) + 1, np.inf)
    np.minimum.at(first, family, trace.arrival_s)
    by_s = by_s % period_s
    move = np.where(first + by_s >= period_s, by_s - period_s, by_s)[family]
    arrival = trace.arrival_s + move
    order = np.argsort(arrival, kind="stable")
    return trace.at(np.zeros(len(trace))).take(order).at(arrival[order])
