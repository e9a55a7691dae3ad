"""A trial's life: boot or take what is booted, three loads, drain, judge, clean up; and what a trial comes back as.

`run_trial` is the one place where an unexpected exception is caught: whatever happens, it returns an Outcome.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from objectives.caveats import caveats, main_failure
from objectives.measurement import Load, Measurement, PhaseMeasurement
from objectives.objective import Limit
from objectives.preemption import preemptions_per_request
from objectives.samples import LoadSamples
from optimizer.clock import REAL_CLOCK, Clock
from optimizer.engines.engine import BootReport, Engine, LoadPlan, Placement
from optimizer.errors import EngineFailed

LOAD_ORDER: tuple[Load, ...] = ("steady", "stress", "saturation")
"""First stable, then fast: what would rule a configuration out is replayed before what would rank it."""


CLIENT = "client"
"""Kind of a Broken outcome whose load generator did not keep up."""


@dataclass(frozen=True)
class StopRule:
    """Bounds beyond which the rest of a trial cannot make it good; it is stopped and told as such."""

    max_unsustained: float = 0.5
    """Stop after the steady load when more than this share of the offered rate is not served."""
    max_stress_preemptions_per_request: float = 5.0


@dataclass(frozen=True)
class TrialPlan:
    """Everything a worker needs. Picklable; carries no study, storage or sampler."""

    trial: int
    """The Optuna trial number, or -1 for runs that belong to no trial (calibration)."""
    run: int
    """0 for the first run of a trial; retries and confirmations count on."""
    purpose: str
    """`search`, `calibration`, `confirmation`, `rate`: for the record."""
    placement: Placement
    loads: tuple[LoadPlan, ...]
    seed: int
    stop_rule: StopRule | None = None
    is_fresh: bool = False
    """On servers of its own, even where the worker holds some with the same arguments."""

    def __post_init__(self) -> None:
        names = [plan.load for plan in self.loads]
        if len(set(names)) != len(names):
            raise ValueError(f"a run replays each load once, got {names}")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What every outcome carries."""

    engine_seconds: Mapping[str, float] = field(default_factory=dict)
    """phase (boot, steady, saturation, stress) -> engine seconds; virtual for the simulator"""
    wall_s: float = 0.0
    boot: BootReport | None = None
    worker: str = ""
    logs: Mapping[str, str] = field(default_factory=dict)
    """instance -> what its server printed; for the trial's folder, not read back from there"""


@dataclass(frozen=True, kw_only=True)
class Measured(Outcome):
    """Every load ran. Told COMPLETE with its true values; a missed limit is a constraint above 0."""

    measurement: Measurement
    findings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Infeasible(Outcome):
    """The configuration's fault; nothing usable was measured. Never on the front; says where not to go."""

    kind: str
    phase: str | None
    cause: str
    violation: float = 1.0
    """> 0, larger is worse."""
    evidence: tuple[str, ...] = ()
    """Lines of the engine's log that say so."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """What the engine itself said would fit; narrows the search."""


@dataclass(frozen=True, kw_only=True)
class Broken(Outcome):
    """Our fault or the machine's. Retried, then FAIL; never held against the configuration."""

    cause: str
    kind: str = ""
    """The engine's verdict (`port`, `neighbour`, `hang`, `client`, ...); empty for an error of our own."""
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Stopped(Outcome):
    """A bound shows it cannot be good. Told like a missed limit, never on the front."""

    measurement: Measurement
    bound: str
    """The rule that stopped it, e.g. `unsustained`."""
    violation: float
    reason: str


def run_trial(plan: TrialPlan, engine: Engine, clock: Clock = REAL_CLOCK) -> Outcome:
    """Boot unless the engine holds these servers, replay every load; whatever happens, return an Outcome.

    What an engine still holds after a good run is left to the next plan (its worker stops it in the end); after
    anything else it is stopped. Only KeyboardInterrupt and SystemExit pass, after that. A failure is Infeasible only if
    the engine says that the configuration is at fault; everything unexpected is Broken, ours to repeat."""
    log = _Log(clock, engine.is_simulated)
    outcome: Outcome | None = None
    try:
        outcome = _run(plan, engine, log)
    except EngineFailed as error:
        outcome = _failed(error, log.phase)
    except Exception as error:
        outcome = Broken(cause=one_line(error))
    finally:
        with _noted(log):
            if not (are_servers_fine(outcome) and engine.holds(plan.placement)):
                engine.stop()
            log.texts = dict(engine.logs())
    if log.stop_failure and isinstance(outcome, Measured):
        outcome = replace(outcome, findings=(*outcome.findings, log.stop_failure))
    seconds, wall_s = dict(log.seconds), clock.now_s() - log.begin_s
    return replace(outcome, engine_seconds=seconds, wall_s=wall_s, boot=log.boot, logs=log.texts)


def are_servers_fine(outcome: Outcome | None) -> bool:
    """After what they may serve the next run: they did their part, even where the client did not do its own."""
    return isinstance(outcome, Measured | Stopped) or (isinstance(outcome, Broken) and outcome.kind == CLIENT)


class _Log:
    """What a run has come to: its phase, engine seconds so far, boot report."""

    def __init__(self, clock: Clock, is_simulated: bool) -> None:
        self.clock, self.is_simulated = clock, is_simulated
        self.begin_s = clock.now_s()
        self.phase: str | None = None
        self.seconds: dict[str, float] = {}
        self.boot: BootReport | None = None
        self.stop_failure = ""
        self.texts: dict[str, str] = {}

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Charge real time to a phase, failed or not. Virtual time is charged by what the simulator reports."""
        self.phase, begin_s = phase, self.clock.now_s()
        try:
            yield
        finally:
            if not self.is_simulated:
                self.charge(phase, self.clock.now_s() - begin_s)

    def charge(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds


@contextlib.contextmanager
def _noted(log: _Log) -> Iterator[None]:
    """Stopping must not hide what was measured or raised before it."""
    try:
        yield
    except Exception as error:
        log.stop_failure = f"the engine did not stop cleanly: {one_line(error)}"


def _run(plan: TrialPlan, engine: Engine, log: _Log) -> Outcome:
    with log.timed("boot"):
        if plan.is_fresh and engine.holds(plan.placement):
            engine.stop()
        log.boot = engine.boot(plan.placement, plan.seed)
    if engine.is_simulated:
        log.charge("boot", sum(log.boot.seconds.values()))
    measurement = Measurement({}, engine.is_simulated, engine.identity, dict(log.boot.kv_tokens))
    loads = sorted(plan.loads, key=lambda p: LOAD_ORDER.index(p.load))
    for n_done, load in enumerate(loads, start=1):
        phase = _replay(load, engine, log)
        if phase.client is not None and phase.client.fault is not None:
            return Broken(cause=f"{load.load}: {one_line(phase.client.fault)}", kind=CLIENT)
        measurement = replace(measurement, phases={**measurement.phases, load.load: phase})
        stopped = _stop(plan.stop_rule, phase, measurement) if n_done < len(loads) else None
        if stopped is not None:
            return stopped
    return Measured(measurement=measurement, findings=(*caveats(measurement), *log.boot.facts.get("warnings", ())))


def _replay(load: LoadPlan, engine: Engine, log: _Log) -> PhaseMeasurement:
    with log.timed(load.load):
        engine.reset()
        phase = engine.replay(load)
    if engine.is_simulated:
        warmup_s = max(-float(load.trace.arrival_s[0]), 0.0) if load.n_warmup and len(load.trace) else 0.0
        log.charge("warm-up", warmup_s)
        log.charge(load.load, max(phase.end_s, 0.0))
    return phase


def _stop(rule: StopRule | None, phase: PhaseMeasurement, so_far: Measurement) -> Stopped | None:
    """The bound that this load breaks by more than the rest of the trial could make good."""
    if rule is None:
        return None
    samples = LoadSamples((phase,))
    if phase.load == "steady":
        judged = samples.sustainments[0]
        if judged is None or judged.value <= rule.max_unsustained:
            return None
        reason = "; ".join(t for t in (judged.text, main_failure(samples)) if t)
        return Stopped(measurement=so_far, bound="unsustained", violation=judged.value, reason=reason)
    rate = preemptions_per_request(samples) if phase.load == "stress" else None
    limit = Limit("stress_preemptions_per_request", at_most=rule.max_stress_preemptions_per_request)
    if rate is None or limit.violation(rate) <= 0:
        return None
    reason = f"{rate:.3g} preemptions per request under stress, more than {limit.bound:g}"
    return Stopped(measurement=so_far, bound=limit.metric, violation=limit.violation(rate), reason=reason)


def _failed(error: EngineFailed, phase: str | None) -> Outcome:
    if not error.is_config_fault:
        return Broken(cause=one_line(error), kind=error.kind, evidence=error.evidence)
    violation = error.violation if math.isfinite(error.violation) and error.violation > 0 else 1.0
    return Infeasible(
        kind=error.kind,
        phase=error.phase or phase,
        cause=one_line(error.cause),
        violation=violation,
        evidence=error.evidence,
        bounds=error.bounds,
    )


def one_line(error: Exception | str) -> str:
    """An exception as one line: its type, unless it is one of ours, and its first line."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, str | EngineFailed):
        return text[:300] or "no reason given"
    return f"{type(error).__name__}: {text}"[:300].removesuffix(": ")
