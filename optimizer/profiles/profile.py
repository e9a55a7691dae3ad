"""Profile: what one kind of serving wants, as frozen values. Loaded from YAML by `profiles.loader`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from objectives.objective import Limit, Objective

Sharing = Literal["exclusive", "time-slice", "mps", "mig"]
MemoryKnob = Literal["kv_cache_memory_bytes", "gpu_memory_utilization"]


@dataclass(frozen=True)
class Tenant:
    """One source of traffic. Its requests go to one instance."""

    name: str
    instance: str
    trace: str
    """A packaged trace's name (`azure-conv`, `azure-code`, `mooncake-conversation`) or a file."""
    share: float
    """Share of the study's requests that are this tenant's; all shares sum to 1."""
    target_ttft_p99_ms: float | None = None
    target_itl_p99_ms: float | None = None
    """What the tenant was promised; None: the reference configuration's own P99."""
    reads: str = ""
    """What this traffic is, for people."""


@dataclass(frozen=True)
class RelativeLimit:
    """A limit whose bound is a multiple of what the reference configuration measured."""

    metric: str
    times_reference: float
    why: str = ""

    def resolve(self, reference: float | None) -> Limit | None:
        """None when the reference has no value to be relative to."""
        if reference is None:
            return None
        return Limit(self.metric, at_most=self.times_reference * reference, why=self.why)


@dataclass(frozen=True)
class LoadSpec:
    """How much is replayed. The rate R itself is found by calibration unless the user fixes it."""

    sustain_share: float
    """The steady load's first try, as a share of the reference's saturation capacity C0."""
    measured_requests: int
    warmup_requests: int
    saturation_requests: int
    stress_requests: int
    time_limit_s: float
    """A steady or stress phase is cut this long after its last arrival."""


@dataclass(frozen=True)
class Budget:
    """Trials and stages."""

    n_trials: int
    stable_trials: int
    """Trials spent on finding the region that survives stress, baselines included."""
    startup_trials: int
    """Space-filling trials before the sampler starts to learn."""
    noise_repeats: int
    """Runs of the reference on the same window that give the noise floor."""


@dataclass(frozen=True)
class SpaceSpec:
    """What is searched, before model, GPU and workload fill in the ranges."""

    memory_knob: MemoryKnob
    memory_span: float
    """The memory knob's interval starts at (1 - span) of the ceiling the capacity stage solved."""
    advanced: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """The profile's own `space:` entries, as read; checked by `search_spaces.overrides`."""


@dataclass(frozen=True)
class Profile:
    """One validated profile."""

    name: str
    why: str
    model: str
    gpu: str
    sharing: Sharing
    instances: tuple[str, ...]
    tenants: tuple[Tenant, ...]
    objectives: tuple[Objective, ...]
    limits: tuple[Limit, ...]
    relative_limits: tuple[RelativeLimit, ...]
    load: LoadSpec
    budget: Budget
    space: SpaceSpec
    text: str = ""
    """The YAML it was read from, for the study's manifest."""

    @property
    def is_shared(self) -> bool:
        return len(self.instances) > 1

    def tenants_of(self, instance: str) -> tuple[str, ...]:
        return tuple(t.name for t in self.tenants if t.instance == instance)
