"""Calibration: what the reference configuration can carry, before trial 0. Gives R, the noise floor, tenants' targets.

A saturation load gives the reference's capacity C0 in requests per second at the workload's mix. The recorded arrivals
at a share of C0 (0.8 by default) must be sustained, else that rate x 0.85, at most three times; then R is frozen for
the study. Repeats of the reference at R with other seeds give the noise floor, the targets of tenants that were
promised nothing, and the bounds of limits that are relative to the reference. These runs are not trials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from objectives.caveats import main_failure
from objectives.measurement import Load, Measurement, PhaseMeasurement
from objectives.metric import Targets, compute_pooled_metrics, load_samples
from objectives.objective import Limit, Objective
from objectives.tenancy import reference_targets
from optimizer.engines.engine import LoadPlan, Placement
from optimizer.errors import UserError
from optimizer.profiles.profile import Profile
from optimizer.study.events import Listener, Notice
from optimizer.study.runs import Runs
from optimizer.study.side_by_side import SideBySide
from optimizer.trial import Infeasible, Measured, Outcome, TrialPlan

STEP_DOWN = 0.85
MAX_STEPS_DOWN = 3
LOW_LOAD = 1.3
"""A configuration that saturates above this multiple of C0 says that the load is now low for this hardware."""
MIN_NOISE = 0.005
"""Differences below half a percent are never worth a decision, whatever the repeats say."""


@dataclass(frozen=True)
class Reference:
    """A configuration to hold everything else against."""

    name: str
    """`current`, `vLLM defaults`, `safe`."""
    placement: Placement


@dataclass(frozen=True)
class Calibration:
    """What calibration found; stored with the study and never changed by a resume."""

    reference: str
    """Name of the reference that could be measured."""
    capacity_per_s: float | None
    """C0: requests per second the reference finishes at saturation; None when the rate was given."""
    rate_per_s: float
    """R, requests per second, all tenants together."""
    how: str
    is_sustained: bool
    values: tuple[float, ...]
    """The reference's objectives at R, repeats pooled: the frozen reference of the hypervolume."""
    noise: tuple[float, ...]
    """Relative noise floor of each objective, from repeats of one window."""
    targets: Mapping[str, Targets]
    limits: tuple[Limit, ...]
    """The profile's limits with relative ones resolved, then the user's own."""
    metrics: Mapping[str, float | None]
    single_server: Mapping[str, float | None] | None = None
    """Several instances only: the same figures of one server that has every tenant."""
    n_slots: int | None = None
    """Trials that do not disturb each other at a time; None on a simulated engine, where none does."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Calibration:
        return cls(
            **{
                **body,
                "values": tuple(body["values"]),
                "noise": tuple(body["noise"]),
                "targets": {t: Targets(**v) for t, v in body["targets"].items()},
                "limits": tuple(Limit(**limit) for limit in body["limits"]),
            }
        )


@dataclass(frozen=True)
class Calibrator:
    """What calibration needs. `loads(rate, names)` builds the frozen loads of the study's window at a rate."""

    profile: Profile
    references: tuple[Reference, ...]
    """In order of preference; the first that boots is the reference."""
    loads: Callable[[float, Sequence[Load]], tuple[LoadPlan, ...]]
    shares: Mapping[str, float]
    """tenant -> share of the requests"""
    own_limits: tuple[Limit, ...]
    single_server: Placement | None
    seed: int
    runs: Runs
    listener: Listener
    is_real: bool = False
    """On a real engine: repeats run one at a time, alone on the host and on servers of their own, since the noise of
    booting is part of what trials differ by; then it is seen whether several at a time disturb each other."""

    def calibrate(self, rate_per_s: float | None) -> Calibration:
        """With the first reference that can be measured. Finds R unless `rate_per_s` fixes it.

        Raises UserError, with every reference's reason, when none can."""
        reasons = []
        for k, reference in enumerate(self.references):
            found = self._calibrate(k, reference, rate_per_s)
            if isinstance(found, Calibration):
                return found
            reasons.append(f"{reference.name}: {found}")
            self.listener(Notice(f"{reference.name} cannot be the reference: {found}", is_warning=True))
        raise UserError(f"no reference configuration can be measured: {'; '.join(reasons)}")

    def _calibrate(self, k: int, reference: Reference, rate_per_s: float | None) -> Calibration | str:
        """What the k-th reference gives, or why it cannot be one."""
        capacity = None if rate_per_s is not None else self._find_capacity(k, reference)
        if isinstance(capacity, str):
            return capacity
        rate, how = rate_per_s, "as given"
        if capacity is not None:
            rate, how = self._find_rate(k, reference, capacity)
        assert rate is not None
        measured = self._repeat(k, reference, rate)
        if isinstance(measured, str):
            return measured
        targets = self._targets(measured)
        metrics = compute_pooled_metrics(measured, targets)
        values = _values(metrics, self.profile.objectives)
        if values is None:
            return self._unread(measured, metrics)
        zero = next((o.metric for o, v in zip(self.profile.objectives, values, strict=True) if v <= 0), None)
        if zero is not None:
            return f"its {zero} is 0, so nothing can be compared with it; make it a limit instead of an objective"
        not_sustained = metrics.get("steady_unsustained")
        is_sustained = not_sustained is not None and not_sustained <= 0
        if not is_sustained:
            text = f"{reference.name} does not sustain R = {rate:.4g} requests/s ({how})"
            self.listener(Notice(f"{text}; the study goes on at that rate", is_warning=True))
        noise = self._noise(measured, targets, values)
        return Calibration(
            reference=reference.name,
            capacity_per_s=capacity,
            rate_per_s=rate,
            how=how,
            is_sustained=is_sustained,
            values=values,
            noise=noise,
            targets=targets,
            limits=(*self._limits(metrics), *self.own_limits),
            metrics=metrics,
            single_server=self._single_server(rate, targets),
            n_slots=self._side_by_side(reference, rate, values, noise, targets),
        )

    def _find_capacity(self, k: int, reference: Reference) -> float | str:
        """C0: what it finishes per second at saturation; or why there is none."""
        plan = self._plan(reference.placement, self.loads(1.0, ("saturation",)), k)
        outcome = self._carry_out([plan], partial(self._saturated_text, reference))[0]
        if not isinstance(outcome, Measured):
            return _cause(outcome)
        capacity = capacity_per_s(outcome.measurement.phases["saturation"], self.shares)
        return capacity if capacity > 0 else f"no request finished{_failures([outcome.measurement], 'saturation')}"

    def _find_rate(self, k: int, reference: Reference, capacity: float) -> tuple[float, str]:
        """(R, where it comes from); the lowest that is tried when none is sustained."""
        share = self.profile.load.sustain_share
        for step in range(MAX_STEPS_DOWN + 1):
            rate = capacity * share * STEP_DOWN**step
            plan = self._plan(reference.placement, self.loads(rate, ("steady",)), 100 + 10 * k + step)
            outcome = self._carry_out([plan], partial(_kept_up_text, f"{reference.name} at {rate:.4g}/s"))[0]
            if isinstance(outcome, Measured) and _is_sustained(outcome.measurement):
                break
        return rate, f"{rate / capacity:.2f} of the capacity of {reference.name}, {capacity:.3g} requests/s"

    def _repeat(self, k: int, reference: Reference, rate: float) -> list[Measurement] | str:
        """The reference with every load, once per seed; or why it cannot be measured."""
        loads = self.loads(rate, ("steady", "stress", "saturation"))
        n = self.profile.budget.noise_repeats
        plans = [replace(self._plan(reference.placement, loads, 200 + n * k + j), is_fresh=j > 0) for j in range(n)]
        describe = partial(_kept_up_text, f"{reference.name} at R again")
        groups = [[plan] for plan in plans] if self.is_real else [plans]
        outcomes = [outcome for group in groups for outcome in self._carry_out(group, describe)]
        failed = next((o for o in outcomes if not isinstance(o, Measured)), None)
        if failed is not None:
            return _cause(failed)
        return [o.measurement for o in outcomes if isinstance(o, Measured)]

    def _side_by_side(
        self,
        reference: Reference,
        rate: float,
        values: tuple[float, ...],
        noise: tuple[float, ...],
        targets: Mapping[str, Targets],
    ) -> int | None:
        if not self.is_real:
            return None
        return SideBySide(
            placement=reference.placement,
            loads=self.loads(rate, ("steady", "stress", "saturation")),
            objectives=self.profile.objectives,
            alone=values,
            floors=noise,
            targets=targets,
            seed_of=self._seed,
            runs=self.runs,
            listener=self.listener,
        ).settle()

    def _single_server(self, rate: float, targets: Mapping[str, Targets]) -> Mapping[str, float | None] | None:
        if self.single_server is None:
            return None
        loads = self.loads(rate, ("steady", "stress", "saturation"))
        plan = self._plan(self.single_server, loads, 400)
        outcome = self._carry_out([plan], partial(_kept_up_text, "one server with every tenant at R"))[0]
        return compute_pooled_metrics([outcome.measurement], targets) if isinstance(outcome, Measured) else None

    def _targets(self, measured: Sequence[Measurement]) -> dict[str, Targets]:
        promised = {t.name: Targets(t.target_ttft_p99_ms, t.target_itl_p99_ms) for t in self.profile.tenants}
        samples = load_samples(measured, "steady")
        assert samples is not None
        return reference_targets(samples, promised)

    def _limits(self, metrics: Mapping[str, float | None]) -> tuple[Limit, ...]:
        relative = [(r, r.resolve(metrics.get(r.metric))) for r in self.profile.relative_limits]
        for spec, limit in relative:
            if limit is None:
                self.listener(Notice(f"the reference has no {spec.metric}: no limit is set on it", is_warning=True))
        return (*self.profile.limits, *(limit for _, limit in relative if limit is not None))

    def _noise(
        self, measured: Sequence[Measurement], targets: Mapping[str, Targets], pooled: tuple[float, ...]
    ) -> tuple[float, ...]:
        """Two standard deviations of the repeats, relative: what two runs of one configuration differ by."""
        rows = [_values(compute_pooled_metrics([m], targets), self.profile.objectives) for m in measured]
        known = np.array([row for row in rows if row is not None])
        if len(known) < 2:
            return tuple(MIN_NOISE for _ in pooled)
        spread = 2 * known.std(axis=0, ddof=1) / np.abs(np.array(pooled))
        return tuple(float(max(s, MIN_NOISE)) for s in spread)

    def _carry_out(self, plans: Sequence[TrialPlan], describe: Callable[[Outcome], str]) -> list[Outcome]:
        return self.runs.carry_out(plans, "calibration", lambda plan, outcome: describe(outcome))

    def _saturated_text(self, reference: Reference, outcome: Outcome) -> str:
        if not isinstance(outcome, Measured):
            return f"{reference.name}: {_cause(outcome)}"
        capacity = capacity_per_s(outcome.measurement.phases["saturation"], self.shares)
        return f"{reference.name}, saturated, finishes {capacity:.4g} requests/s"

    def _plan(self, placement: Placement, loads: tuple[LoadPlan, ...], run: int) -> TrialPlan:
        return TrialPlan(-1, run, "calibration", placement, loads, seed=self._seed(run))

    def _seed(self, run: int) -> int:
        return self.seed * 1_000_003 + 7_919 + run

    def _unread(self, measured: Sequence[Measurement], metrics: Mapping[str, float | None]) -> str:
        missing = [o.metric for o in self.profile.objectives if metrics.get(o.metric) is None]
        return f"{', '.join(missing)} cannot be read{_failures(measured, 'steady')}"


def capacity_per_s(phase: PhaseMeasurement, shares: Mapping[str, float]) -> float:
    """Requests per second that a saturated phase finished, at the workload's mix; 0 if nothing finished.

    With several tenants the one that is served least for its share decides, since the mix is what is offered."""
    span = phase.counted_until_s - phase.counted_from_s
    if span <= 0:
        return 0.0
    found = []
    for tenant, share in shares.items():
        done = sum(
            1
            for r in phase.records
            if r.tenant == tenant
            and r.failure is None
            and phase.counted_from_s <= r.token_times_s[-1] <= phase.counted_until_s
        )
        found.append(done / span / share)
    return min(found)


def _failures(measured: Sequence[Measurement], load: Load) -> str:
    """Which requests failed most, and why; empty if none did."""
    samples = load_samples(measured, load)
    failure = main_failure(samples) if samples is not None else None
    return f": {failure}" if failure else ""


def _values(metrics: Mapping[str, float | None], objectives: Sequence[Objective]) -> tuple[float, ...] | None:
    values = [metrics.get(o.metric) for o in objectives]
    known = tuple(v for v in values if v is not None)
    return known if len(known) == len(values) else None


def _is_sustained(measurement: Measurement) -> bool:
    value = compute_pooled_metrics([measurement]).get("steady_unsustained")
    return value is not None and value <= 0


def _kept_up_text(what: str, outcome: Outcome) -> str:
    if not isinstance(outcome, Measured):
        return f"{what}: {_cause(outcome)}"
    return f"{what}: {'sustained' if _is_sustained(outcome.measurement) else 'not sustained'}"


def _cause(outcome: Outcome) -> str:
    return outcome.cause if isinstance(outcome, Infeasible) else getattr(outcome, "cause", type(outcome).__name__)
