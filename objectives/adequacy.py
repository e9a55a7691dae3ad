"""Is there enough to measure? Tails that the sample cannot carry are named and computed as P95, or refused.

Decided once, from the frozen window, for a whole study: every trial replays that window, so every trial is held to
the same percentile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from objectives.metric import METRICS
from objectives.objective import Limit, Objective
from objectives.statistics import MIN_N_P95, MIN_N_P99


@dataclass(frozen=True)
class SampleSizes:
    """What a steady window can yield, per tenant."""

    requests: Mapping[str, int]
    gaps: Mapping[str, int]
    """Output tokens minus one, summed over requests."""
    streams: Mapping[str, int]
    """Requests that ask for at least two tokens: each has one longest gap."""


@dataclass(frozen=True)
class Adequate:
    """Objectives and limits as the window can carry them, and a line for each that was changed."""

    objectives: tuple[Objective, ...]
    limits: tuple[Limit, ...]
    notes: tuple[str, ...]


def tail_percent(n: int) -> int | None:
    """99, or 95 where n is too small for a two-sided 95 % interval of a P99; None where it is too small for either."""
    return 99 if n >= MIN_N_P99 else 95 if n >= MIN_N_P95 else None


def adapt(objectives: Sequence[Objective], limits: Sequence[Limit], sizes: SampleSizes) -> Adequate:
    """Rename P99 figures of the steady load to P95 where the window is too small.

    Raises ValueError for an objective that the window cannot measure at all (no request has a second token, or fewer
    than 72 samples). A limit that cannot be is left as it is: it will be missed, as unknown is not met."""
    notes: dict[str, None] = {}
    names = {m: _adapt_name(m, sizes, notes, is_objective=True) for m in (o.metric for o in objectives)}
    bounds = {m: _adapt_name(m, sizes, notes, is_objective=False) for m in (x.metric for x in limits)}
    return Adequate(
        tuple(replace(o, metric=names[o.metric]) for o in objectives),
        tuple(replace(x, metric=bounds[x.metric]) for x in limits),
        tuple(notes),
    )


def _adapt_name(metric: str, sizes: SampleSizes, notes: dict[str, None], *, is_objective: bool) -> str:
    tenant, _, name = metric.rpartition(":")
    n = _n_samples(name, tenant, sizes)
    if n is None:
        return metric
    percent = tail_percent(n)
    if percent is None and is_objective:
        raise ValueError(_too_small(metric, n))
    small = _as_p95(name)
    if percent == 99 or small not in METRICS:
        return metric
    renamed = f"{tenant}:{small}" if tenant else small
    notes[f"{metric}: n = {n} is below {MIN_N_P99}, so it is called and computed as {renamed}"] = None
    return renamed


def _n_samples(name: str, tenant: str, sizes: SampleSizes) -> int | None:
    """Samples behind a steady tail (worst-of-tenants: the smallest tenant's); None for a figure that is no tail."""
    match = re.fullmatch(r"steady_(worst_)?(ttft|ttft_from_send|e2e|itl|itl_per_token|stall|tpot)_(p99_ms|ratio)", name)
    if match is None:
        return None
    counts = sizes.gaps if match[2].startswith("itl") else sizes.requests
    counts = sizes.streams if match[2] in ("stall", "tpot") else counts
    if tenant:
        return counts.get(tenant, 0)
    if match[1] is None:
        return sum(counts.values())
    with_any = [n for n in counts.values() if n]
    return min(with_any, default=0)


def _as_p95(name: str) -> str:
    return name.replace("_p99_", "_p95_") if "_p99_" in name else name.replace("_ratio", "_p95_ratio")


def _too_small(metric: str, n: int) -> str:
    if n == 0 and "itl" in metric:
        return f"{metric}: every answer asked for has one token, so there is no gap to measure; drop this one"
    return (
        f"{metric}: the window gives {n} samples, a P95 needs {MIN_N_P95} and a P99 {MIN_N_P99}; "
        "take a longer window or repeat the trace with jitter"
    )
