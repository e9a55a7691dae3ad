"""Several tenants on one card: each against its own target, the worst of them as the objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from objectives.samples import LoadSamples
from objectives.statistics import Sample


@dataclass(frozen=True, slots=True)
class Targets:
    """What a tenant was promised at the tail: the profile's figure, or its reference run's. None: nothing.

    Raises ValueError for a target that is not above 0."""

    ttft_ms: float | None = None
    itl_ms: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("ttft_ms", self.ttft_ms), ("itl_ms", self.itl_ms)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"target {name} must be above 0, got {value}")


TargetsByTenant = Mapping[str, Targets]


def worst_ttft_ratio(samples: LoadSamples, targets: TargetsByTenant | None, percent: float) -> float | None:
    """Largest TTFT percentile over its target. None if a tenant with requests has no tail, or a tenant no entry."""
    return _worst(samples, targets or {}, percent, lambda s: s.ttft_ms, lambda t: t.ttft_ms)


def worst_itl_ratio(samples: LoadSamples, targets: TargetsByTenant | None, percent: float) -> float | None:
    """The same for ITL. A tenant that only asks for one-token answers has no ITL and is left out."""
    return _worst(samples, targets or {}, percent, lambda s: s.itl_ms, lambda t: t.itl_ms, min_tokens=2)


def _worst(
    samples: LoadSamples,
    targets: TargetsByTenant,
    percent: float,
    tail_of: Callable[[LoadSamples], Sample],
    target_of: Callable[[Targets], float | None],
    min_tokens: int = 1,
) -> float | None:
    """A tenant whose entry promises nothing here cannot be worst, but must still have been answered."""
    if not set(samples.tenants) <= set(targets):
        return None
    ratios: list[float] = []
    for tenant in samples.tenants:
        own, target = samples.of_tenant(tenant), target_of(targets[tenant])
        if all(r.asked_output_tokens < min_tokens for r in own.records):
            continue
        tail = tail_of(own).percentile(percent)
        if tail is None:
            return None
        if target is not None:
            ratios.append(tail / target)
    return max(ratios) if ratios else None


def reference_targets(
    samples: LoadSamples, promised: TargetsByTenant | None = None, percent: float = 99
) -> dict[str, Targets]:
    """Every tenant's promised targets, completed from what the reference configuration did."""
    found = {}
    for tenant in samples.tenants:
        own, said = samples.of_tenant(tenant), (promised or {}).get(tenant, Targets())
        ttft, itl = own.ttft_ms.percentile(percent), own.itl_ms.percentile(percent)
        found[tenant] = Targets(said.ttft_ms or ttft or None, said.itl_ms or itl or None)
    return found


def isolation_ratio(
    busy: LoadSamples, idle: LoadSamples, tenant: str, figure: str, percent: float = 99
) -> float | None:
    """A tenant's tail at R with its neighbour saturated over the same with the neighbour booted but idle; 1 is perfect.

    `figure` is `ttft_ms`, `itl_ms` or any other sample of `LoadSamples`. None if either is unknown."""
    tails = [getattr(s.of_tenant(tenant), figure).percentile(percent) for s in (busy, idle)]
    return tails[0] / tails[1] if tails[0] is not None and tails[1] else None
