"""Is there enough to measure? Tails that the sample cannot carry are named and computed as P95, or refused; where a
run is only a smoke test, as what they then are: the max of n.

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


def adapt(
    objectives: Sequence[Objective], limits: Sequence[Limit], sizes: SampleSizes, *, is_max_allowed: bool = False
) -> Adequate:
    """Rename P99 figures of the steady load to P95 where the window is too small; where it is too small for that as
    well and `is_max_allowed`, to the max of n.

    Raises ValueError for an objective that the window cannot measure at all (no request has a second token, or fewer
    than 72 samples). A limit that cannot be is left as it is: it will be missed, as unknown is not met."""
    notes: dict[str, None] = {}
    names = {m: _adapt_name(m, sizes, notes, True, is_max_allowed) for m in (o.metric for o in objectives)}
    bounds = {m: _adapt_name(m, sizes, notes, False, is_max_allowed) for m in (x.metric for x in limits)}
    return Adequate(
        tuple(replace(o, metric=names[o.metric]) for o in objectives),
        tuple(replace(x, metric=bounds[x.metric]) for x in limits),
        tuple(notes),
    )


def _adapt_name(
    metric: str, sizes: SampleSizes, notes: dict[str, None], is_objective: bool, is_max_allowed: bool
) -> str:
    tenant, _, name = metric.rpartition(":")
    n = _n_samples(name, tenant, sizes)
    if n is None:
        return metric
    percent = tail_percent(n)
    is_max = percent is None and is_max_allowed and n > 0
    if percent is None and is_objective and not is_max:
        raise ValueError(_too_small(metric, n))
    small = _as_part(name, "max" if is_max else "p95")
    if percent == 99 or small not in METRICS:
        return metric
    renamed = f"{tenant}:{small}" if tenant else small
    least, what = (MIN_N_P95, f", the max of {n}") if is_max else (MIN_N_P99, "")
    notes[f"{metric}: n = {n} is below {least}, so it is called and computed as {renamed}{what}"] = None
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


def _as_part(name: str, part: str) -> str:
    return name.replace("_p99_", f"_{part}_") if "_p99_" in name else name.replace("_ratio", f"_{part}_ratio")


def _too_small(metric: str, n: int) -> str:
    if n == 0 and "itl" in metric:
        return f"{metric}: every answer asked for has one token, so there is no gap to measure; drop this one"
    return (
        f"{metric}: the window gives {n} samples, a P95 needs {MIN_N_P95} and a P99 {MIN_N_P99}; "
        "take a longer window or repeat the trace with jitter"
    )
