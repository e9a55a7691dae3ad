"""Several tenants' traces as one: named, at shares, with their peaks at the same moment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from optimizer.errors import UserError
from optimizer.workload.arrivals import at_rate, rotated
from optimizer.workload.prefix import families
from optimizer.workload.trace import Trace
from optimizer.workload.window import busiest

PEAK_SECONDS = 10.0


@dataclass(frozen=True)
class Mixed:
    trace: Trace
    notices: tuple[str, ...]


def merge(parts: Mapping[str, Trace]) -> Trace:
    """All rows on one clock, the tenant named after its part. Sessions and prefix blocks of different parts are
    different, whatever their numbers in the files were.

    Raises UserError when no part has a request, or parts count prefix blocks in different sizes."""
    full = {name: part for name, part in parts.items() if len(part)}
    if not full:
        raise UserError("the tenants' traces have no request")
    sizes = {name: part.prefix_block_tokens for name, part in full.items() if part.prefix_ids is not None}
    if len(set(sizes.values())) > 1:
        raise UserError(f"tenants' traces have prefix blocks of different sizes ({sizes}); they cannot be mixed")
    arrival = np.concatenate([part.arrival_s for part in full.values()])
    order = np.argsort(arrival, kind="stable")
    ids, start = _joined_blocks(list(full.values())) if sizes else (None, None)
    trace = Trace(
        np.zeros(arrival.size),
        np.concatenate([part.prompt_tokens for part in full.values()]),
        np.concatenate([part.output_tokens for part in full.values()]),
        np.repeat(np.arange(len(full), dtype=np.int16), [len(part) for part in full.values()]),
        tuple(full),
        ids,
        start,
        max(sizes.values(), default=0),
        _joined_sessions(list(full.values())),
    )
    return trace.take(order).at(arrival[order])


def _joined_blocks(parts: list[Trace]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    ids, counts, n_known = [], [], 0
    for part in parts:
        if part.prefix_ids is None or part.prefix_start is None:
            counts.append(np.zeros(len(part), np.int64))
            continue
        known, number = np.unique(part.prefix_ids, return_inverse=True)
        ids.append(number + n_known)
        counts.append(np.diff(part.prefix_start))
        n_known += known.size
    return np.concatenate(ids), np.concatenate([[0], np.cumsum(np.concatenate(counts))])


def _joined_sessions(parts: list[Trace]) -> NDArray[np.int64] | None:
    if all(part.session is None for part in parts):
        return None
    sessions, n_known = [], 0
    for part in parts:
        own = families(part) if part.session is None else np.unique(part.session, return_inverse=True)[1]
        sessions.append(own + n_known)
        n_known += int(own.max()) + 1
    return np.concatenate(sessions)


def mix(
    parts: Mapping[str, Trace],
    shares: Mapping[str, float] | None = None,
    *,
    n_requests: int = 0,
    seed: int = 0,
    are_peaks_aligned: bool = True,
) -> Mixed:
    """The parts on a common span, each part's requests making up its share (default: as recorded), their busiest
    10 seconds in the middle. Rows are repeated (with jitter) only when fewer than `n_requests` would come out.

    Raises UserError for a share that is not above 0, or a part without requests."""
    weight = _weights(parts, shares)
    rates = {name: part.rate_per_s for name, part in parts.items()}
    total = min((r / weight[name] for name, r in rates.items() if r is not None), default=1.0)
    span = min(len(part) / (total * weight[name]) for name, part in parts.items())
    notices = []
    if n_requests > span * total:
        span = n_requests / total
        notices.append("the tenants' traces are short for this many requests: rows are repeated with jitter")
    laid = {
        name: _laid_out(part, total * weight[name], span, seed + k, are_peaks_aligned)
        for k, (name, part) in enumerate(parts.items())
    }
    merged = merge(_trimmed({k: v for k, v in laid.items() if len(v)}, weight, seed))
    counts = np.bincount(merged.tenant, minlength=len(merged.tenants))
    listed = ", ".join(f"{name} {n / len(merged):.0%}" for name, n in zip(merged.tenants, counts, strict=True))
    peaks = ", their busiest 10 s at the same time" if are_peaks_aligned else ""
    return Mixed(merged, (*notices, f"{len(merged):,} requests of {len(counts)} tenants ({listed}){peaks}"))


def _weights(parts: Mapping[str, Trace], shares: Mapping[str, float] | None) -> dict[str, float]:
    for name, part in parts.items():
        if not len(part):
            raise UserError(f"tenant {name}: its trace has no request")
    if shares is None:
        rates = {name: part.rate_per_s or 1.0 for name, part in parts.items()}
    else:
        rates = {name: shares.get(name, 0.0) for name in parts}
    for name, rate in rates.items():
        if not (math.isfinite(rate) and rate > 0):
            raise UserError(f"tenant {name}: share {rate:g}, expected a number above 0")
    return {name: rate / sum(rates.values()) for name, rate in rates.items()}


def _laid_out(part: Trace, rate_per_s: float, span_s: float, seed: int, is_peak_centred: bool) -> Trace:
    laid = at_rate(part, rate_per_s, n_requests=max(1, round(rate_per_s * span_s)), seed=seed).trace
    period = max(len(laid) / rate_per_s, span_s, float(laid.arrival_s[-1]) * (1 + 1e-9))
    if is_peak_centred:
        middle = busiest(laid, PEAK_SECONDS)[0] + PEAK_SECONDS / 2
        laid = rotated(laid, span_s / 2 - middle, period)
    return laid.take(np.flatnonzero(laid.arrival_s < span_s))


def _trimmed(parts: Mapping[str, Trace], weight: Mapping[str, float], seed: int) -> dict[str, Trace]:
    """Families left out, seeded, from parts that have more than their share of what the scarcest part allows."""
    total = min(len(part) / weight[name] for name, part in parts.items())
    trimmed = {}
    for k, (name, part) in enumerate(parts.items()):
        family = families(part)
        sizes = np.bincount(family)
        order = np.random.default_rng([seed & 0x7FFFFFFF, 0x713, k]).permutation(sizes.size)
        reached = np.cumsum(sizes[order]) - sizes[order] / 2
        is_kept = np.zeros(sizes.size, bool)
        is_kept[order[reached <= total * weight[name] + 1e-9]] = True
        trimmed[name] = part.take(np.flatnonzero(is_kept[family]))
    return trimmed


def renamed(trace: Trace, tenant: str) -> Trace:
    """The trace as one tenant's."""
    return replace(trace, tenant=np.zeros(len(trace), np.int16), tenants=(tenant,))
