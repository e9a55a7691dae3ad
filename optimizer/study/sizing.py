"""Sizing: how much of a window is replayed, and which tails that much can carry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from objectives.adequacy import SampleSizes, adapt
from objectives.objective import Limit
from optimizer.errors import UserError
from optimizer.profiles.profile import Profile, RelativeLimit
from optimizer.study.traffic import Traffic
from search_spaces.capacity import Capacity
from search_spaces.space import SearchSpace, flag_of

IntArray = NDArray[np.int32]
SATURATION_TURNS = 3
"""The saturation load holds at least this many times the requests that run at once."""
MAX_SATURATION_REQUESTS = 10_000
SMOKE_REQUESTS = 60
"""Measured requests a tenant of a smoke run."""
SMOKE_REPEATS = 2
LEAST_REQUESTS = 10
"""Of any load, however short the window."""


def shortened(profile: Profile) -> tuple[Profile, tuple[str, ...]]:
    """A smoke run: SMOKE_REQUESTS a tenant are measured, every other load is cut by the same factor."""
    load = profile.load
    n = SMOKE_REQUESTS * len(profile.tenants)
    factor = min(n / load.measured_requests, 1.0)

    def cut(count: int) -> int:
        return min(max(math.ceil(count * factor), LEAST_REQUESTS), count)

    short = replace(
        load,
        measured_requests=cut(load.measured_requests),
        warmup_requests=cut(load.warmup_requests),
        saturation_requests=cut(load.saturation_requests),
        stress_requests=cut(load.stress_requests),
    )
    budget = replace(profile.budget, noise_repeats=min(profile.budget.noise_repeats, SMOKE_REPEATS))
    note = (
        f"smoke: {short.measured_requests} steady, {short.stress_requests} stress and {short.saturation_requests}"
        " saturation requests; it shows that everything runs, its figures decide nothing"
    )
    return replace(profile, load=short, budget=budget), (note,)


def long_enough(
    profile: Profile, traffic: Traffic, capacity: Capacity, space: SearchSpace
) -> tuple[Profile, Traffic, tuple[str, ...]]:
    """A saturation load whose queue outlasts the filling of the running set: on a shorter one every figure is a lower
    bound, far below what the card can do."""
    at_once = capacity.concurrency(max(traffic.mean_tokens, 1.0), capacity.ceiling_bytes)
    if capacity.gpu.is_cpu:  # its memory holds far more sequences than are worth running
        at_once = min(at_once, _most_sequences(space))
    n, asked = min(round(SATURATION_TURNS * at_once), MAX_SATURATION_REQUESTS), profile.load.saturation_requests
    if n <= asked:
        return profile, traffic, ()
    load = replace(profile.load, saturation_requests=n)
    note = f"saturation: {n:,} requests instead of {asked:,}, since about {at_once:,.0f} run at once on this card"
    return replace(profile, load=load), replace(traffic, spec=load), (note,)


def _most_sequences(space: SearchSpace) -> float:
    """The largest running set of the space, all servers together."""
    tops = (p.values()[-1] for p in space.parameters if flag_of(p.name) == "max_num_seqs")
    return float(sum(top for top in tops if isinstance(top, int | float)))


def adapted_to(profile: Profile, traffic: Traffic, *, is_smoke: bool) -> tuple[Profile, tuple[str, ...]]:
    """The profile with tails that the window can carry; P99 becomes P95 where n is too small (in a smoke run the
    largest of n), and says so."""
    trace = traffic.loads(1.0, ("steady",))[0]
    rows = trace.trace.take(slice(trace.n_warmup, None))
    sizes = SampleSizes(*(_per_tenant(rows.tenant, rows.tenants, count) for count in _counts(rows.output_tokens)))
    relative = [Limit(r.metric, at_most=r.times_reference, why=r.why) for r in profile.relative_limits]
    try:
        fixed = adapt(profile.objectives, profile.limits, sizes, is_max_allowed=is_smoke)
    except ValueError as error:
        raise UserError(f"objectives: {error}") from None
    other = adapt((), relative, sizes, is_max_allowed=is_smoke)
    relatives = tuple(RelativeLimit(x.metric, x.bound, x.why) for x in other.limits)
    changed = replace(profile, objectives=fixed.objectives, limits=fixed.limits, relative_limits=relatives)
    return changed, tuple(dict.fromkeys((*fixed.notes, *other.notes)))


def _counts(output_tokens: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Per request: 1, its gaps, 1 if it streams at all."""
    return np.ones_like(output_tokens), output_tokens - 1, (output_tokens > 1).astype(np.int32)


def _per_tenant(tenant: NDArray[np.int16], names: Sequence[str], count: IntArray) -> dict[str, int]:
    return {name: int(count[tenant == i].sum()) for i, name in enumerate(names)}
