"""Isolation: what one tenant's tail becomes when its neighbour on the card is saturated instead of idle.

Each tenant's own steady load is replayed twice on all instances booted: alone, and beside a neighbour whose requests
all wait from the start and last as long as the tenant's arrivals do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from objectives.metric import load_samples
from objectives.statistics import MIN_N_P95
from objectives.tenancy import isolation_ratio
from optimizer.engines.engine import LoadPlan, Placement
from optimizer.study.runs import Runs
from optimizer.trial import Measured, Outcome, TrialPlan
from optimizer.workload.mix import merge
from optimizer.workload.trace import Trace

ISOLATION_RUN = 80
BUSY_MARGIN = 1.3
"""The neighbour gets this many times the requests it can finish in the tenant's time."""
MAX_BUSY_REQUESTS = 20_000


@dataclass(frozen=True)
class Isolation:
    """One tenant of one trial: its P99 beside a saturated neighbour over the same beside an idle one; 1 is perfect."""

    trial: int
    tenant: str
    ttft_ratio: float | None
    itl_ratio: float | None
    ttft_tail: str = "P99"
    """What of the TTFT is compared: of too few requests for a tail, the max of n."""


@dataclass(frozen=True)
class IsolationProbe:
    """What measuring isolation needs. `steady` is the study's steady load at R."""

    steady: LoadPlan
    seed: int
    runs: Runs

    def measure(self, members: Sequence[tuple[int, Placement, Mapping[str, float | None]]]) -> tuple[Isolation, ...]:
        """`members`: (trial, servers, metrics of its trial). Two runs a member and tenant."""
        wanted = [(t, p, m, tenant) for t, p, m in members for tenant in self.steady.trace.tenants]
        plans = []
        for k, (trial, placement, metrics, tenant) in enumerate(wanted):
            run = ISOLATION_RUN + 2 * (k % len(self.steady.trace.tenants))
            plans.append(self._plan(trial, run, placement, self._alone(tenant)))
            plans.append(self._plan(trial, run + 1, placement, self._beside(tenant, placement, metrics)))
        outcomes = self.runs.carry_out(plans, "isolation", lambda plan, o: f"trial {plan.trial}")
        return tuple(
            _ratio(trial, tenant, outcomes[2 * k], outcomes[2 * k + 1])
            for k, (trial, _, _, tenant) in enumerate(wanted)
        )

    def _alone(self, tenant: str) -> LoadPlan:
        keep = np.flatnonzero(self.steady.trace.tenant == self.steady.trace.tenants.index(tenant))
        rows = self.steady.trace.take(keep)
        return replace(self.steady, trace=rows, n_warmup=int((rows.arrival_s < 0).sum()), offered_per_s=None)

    def _beside(self, tenant: str, placement: Placement, metrics: Mapping[str, float | None]) -> LoadPlan:
        """The tenant's rows, and before them, as warm-up rows, everything its neighbours can work on meanwhile."""
        alone = self._alone(tenant).trace
        mine = placement.instance_of(tenant).name
        begin = float(alone.arrival_s[0])
        neighbours = [t for t in self.steady.trace.tenants if placement.instance_of(t).name != mine]
        busy = [self._queue(t, metrics, alone.span_s, begin) for t in neighbours]
        parts = {t: trace for t, trace in zip(neighbours, busy, strict=True) if len(trace)} | {
            tenant: _named(alone, tenant)
        }
        trace = merge(parts)
        n_warmup = int((trace.arrival_s < 0).sum())
        return replace(self.steady, trace=trace, n_warmup=n_warmup, offered_per_s=None)

    def _queue(self, tenant: str, metrics: Mapping[str, float | None], span_s: float, begin_s: float) -> Trace:
        """The neighbour's rows, over and over, all waiting when the tenant's first request comes."""
        keep = np.flatnonzero(self.steady.trace.tenant == self.steady.trace.tenants.index(tenant))
        rate = metrics.get(f"{tenant}:saturation_requests_per_s_per_gpu") or keep.size / max(span_s, 1.0)
        n = min(max(int(rate * span_s * BUSY_MARGIN), keep.size), MAX_BUSY_REQUESTS)
        at_once = self.steady.trace.at(np.full(len(self.steady.trace), min(begin_s, 0.0) - 1e-3))
        return _named(at_once.take(np.resize(keep, n)), tenant)

    def _plan(self, trial: int, run: int, placement: Placement, load: LoadPlan) -> TrialPlan:
        return TrialPlan(trial, run, "isolation", placement, (load,), self.seed * 1_000_003 + 800_029 + trial)


def _named(trace: Trace, tenant: str) -> Trace:
    return replace(trace, tenant=np.zeros(len(trace), np.int16), tenants=(tenant,))


def _ratio(trial: int, tenant: str, idle: Outcome, busy: Outcome) -> Isolation:
    samples = [load_samples([o.measurement], "steady") if isinstance(o, Measured) else None for o in (busy, idle)]
    if samples[0] is None or samples[1] is None:
        return Isolation(trial, tenant, None, None)
    is_few = samples[1].of_tenant(tenant).ttft_ms.n < MIN_N_P95
    ttft = isolation_ratio(samples[0], samples[1], tenant, "ttft_ms", percent=100 if is_few else 99)
    itl = isolation_ratio(samples[0], samples[1], tenant, "itl_ms")
    return Isolation(trial, tenant, ttft, itl, "max of n" if is_few else "P99")
