"""Fitting residuals to whole trials on a real engine: the same requests are simulated and the figures compared.

Each trial alone gives a factor at which its simulation takes as long as it did; the median over trials is what is
learned, so that one odd trial moves little and each can be predicted from the others. What a configuration did in
practice is one number a figure, so the step factor is all that one or two trials can tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from objectives.measurement import Load, PhaseMeasurement
from objectives.samples import LoadSamples
from objectives.statistics import median_slope
from objectives.throughput import is_running_set_full, output_tokens_per_s_per_gpu
from optimizer.engines.engine import LoadPlan, Placement
from optimizer.engines.simulator.engine import SimulatedEngine, SimulatorSpec
from optimizer.engines.simulator.fit_steps import Error, Fitted, bounded, error_of
from optimizer.engines.simulator.recording import OUTBOUND_S, inbound_s
from optimizer.engines.simulator.residuals import LEAST, MOST, MOST_FRONT_END_S, NONE, Residuals
from optimizer.errors import EngineFailed

N_ROUNDS = 8
"""Simulations of a trial to find its own factor."""
CLOSE = 0.005
"""Of the logarithm of a factor that is near enough."""
FORMS = ("the step factor", "front-end time", "prefill factor with a front-end time")
"""What may be learned, one scalar more each; further ones only from this many trials on:"""
MIN_TO_COMPARE = 4
WORTH = 0.1
"""Share of the held-out error that a further scalar must take away, and no less than this much of it: what is smaller
is the noise of running a trial twice."""
LEAST_GAIN = 0.01
MIN_REQUESTS = 30
"""Of a trial, to tell more than its step factor."""
MOST_POINTS, LEAST_STEP_S = 300, 1e-4
"""Requests whose pairs give the slope, and the simulated difference from which on a pair says something."""
MIN_SPREAD = 2.0
"""P90 over P10 of simulated prefill times, from which on their slope and their offset can be told apart."""
QUEUED = 2.0
"""Requests whose simulated TTFT is more than this multiple of the median are left out: they measure the queue."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class MeasuredTrial:
    """One configuration on a real engine. The placement holds its KV blocks as booted (`num_gpu_blocks_override`)."""

    name: str
    placement: Placement
    plans: Mapping[Load, LoadPlan]
    measured: Mapping[Load, PhaseMeasurement]

    @property
    def tp(self) -> int:
        return int(self.placement.instances[0].config.get("tensor_parallel_size") or 1)


Figures = Mapping[str, float]


def fit_trials(trials: Sequence[MeasuredTrial], spec: SimulatorSpec, say: Say = lambda _: None) -> tuple[Fitted, ...]:
    """One Fitted a tensor-parallel size. `spec`: the simulator as it is, without residuals; its noise is left out.

    `say` hears one line a trial. A trial that the simulator refuses to boot is left out, with a remark."""
    sizes = sorted({t.tp for t in trials})
    return tuple(_fit_one([t for t in trials if t.tp == tp], tp, replace(spec, noise=0.0), say) for tp in sizes)


def figures_of(phases: Mapping[Load, PhaseMeasurement]) -> dict[str, float]:
    """What is compared: TPOT and TTFT under the steady load; throughput in saturation, if the running set was full."""
    found: dict[str, float | None] = {}
    if "steady" in phases:
        steady = LoadSamples((phases["steady"],))
        found |= {"TPOT": steady.tpot_ms.percentile(50), "TTFT": steady.ttft_ms.percentile(50)}
    if "saturation" in phases:
        full = LoadSamples((phases["saturation"],))
        if is_running_set_full(full):
            found["throughput"] = output_tokens_per_s_per_gpu(full)
    return {name: value for name, value in found.items() if value is not None and value > 0}


def _fit_one(trials: Sequence[MeasuredTrial], tp: int, spec: SimulatorSpec, say: Say) -> Fitted:
    known, remarks = list[_Known](), list[str]()
    for number, trial in enumerate(trials, 1):
        say(f"{trial.name} ({number}/{len(trials)})")
        try:
            known.append(_study(trial, tp, spec))
        except (EngineFailed, _Uncomparable) as error:
            remarks.append(f"{trial.name} is left out: {error}")
    form, held_out, why = _choose_form(known, tp, spec)
    residuals = _combined(known, form, remarks)
    return Fitted(
        tp,
        len(known),
        residuals,
        before=_errors([(k.measured, k.plain) for k in known]),
        after=_errors([(k.measured, _simulated(k.trial, tp, spec, residuals)) for k in known]),
        held_out=held_out,
        remarks=(*remarks, *why),
    )


class _Uncomparable(Exception):
    """A trial without a figure that both sides have."""


@dataclass(frozen=True)
class _Known:
    """A trial with what it tells alone."""

    trial: MeasuredTrial
    measured: Figures
    plain: Figures
    """Simulated without residuals."""
    own: tuple[Residuals | None, ...]
    """Its own residuals in each of FORMS; None for what it cannot tell."""


def _study(trial: MeasuredTrial, tp: int, spec: SimulatorSpec) -> _Known:
    measured = figures_of(trial.measured)
    plain = _simulated(trial, tp, spec, NONE)
    if not {"TPOT", "throughput"} & measured.keys() & plain.keys():
        raise _Uncomparable("neither a time per token nor a throughput was measured and simulated")
    first = Residuals(step=_step_factor(trial, tp, spec, measured, NONE))
    prefill, front_end_s = _first_tokens(trial, tp, spec, first)
    second = None if front_end_s is None else replace(first, front_end_s=_held(front_end_s))
    if prefill is None or prefill <= 0:
        return _Known(trial, measured, plain, (first, second, None))
    third = Residuals(prefill=bounded(prefill, "prefill", []))
    third = replace(third, step=_step_factor(trial, tp, spec, measured, third))
    _, front_end_s = _first_tokens(trial, tp, spec, third)
    third = replace(third, front_end_s=_held(front_end_s or 0.0))
    return _Known(trial, measured, plain, (first, second, third))


def _held(front_end_s: float) -> float:
    return float(np.clip(front_end_s, -MOST_FRONT_END_S, MOST_FRONT_END_S))


def _step_factor(trial: MeasuredTrial, tp: int, spec: SimulatorSpec, measured: Figures, given: Residuals) -> float:
    """The step factor at which the simulation takes as long as the trial did, by regula falsi on logarithms: bracketed,
    so that a time per token that explodes near saturation cannot throw it off. `given`: the other residuals."""
    known: list[tuple[float, float]] = []
    following = 0.0
    for _ in range(N_ROUNDS):
        simulated = _simulated(trial, tp, spec, replace(given, step=math.exp(following)))
        known.append((following, _log_off(measured, simulated)))
        if abs(known[-1][1]) < CLOSE:
            break
        following = min(max(_next(known), math.log(LEAST)), math.log(MOST))
        if any(abs(following - x) < CLOSE / 2 for x, _ in known):
            break
    return math.exp(min(known, key=_distance)[0])


def _distance(point: tuple[float, float]) -> float:
    return abs(point[1])


def _next(known: Sequence[tuple[float, float]]) -> float:
    """Where the line through the nearest points on both sides crosses 0; with points on one side only, as far as the
    nearest is off."""
    slower = [k for k in known if k[1] <= 0]
    faster = [k for k in known if k[1] > 0]
    if not slower or not faster:
        at, off = min(known, key=_distance)
        return at + off
    (a, off_a), (b, off_b) = min(slower), max(faster)
    crossing = b + (a - b) * off_b / (off_b - off_a)
    return min(max(crossing, b + 0.1 * (a - b)), a - 0.1 * (a - b)) if a > b else (a + b) / 2


def _log_off(measured: Figures, simulated: Figures) -> float:
    """Logarithm of how much longer steps took than simulated: by throughput in saturation, where steps follow each
    other; only without it by the time per token, which depends on how near the load comes to saturation, too."""
    if "throughput" in measured and "throughput" in simulated:
        return math.log(simulated["throughput"] / measured["throughput"])
    if "TPOT" in measured and "TPOT" in simulated:
        return math.log(measured["TPOT"] / simulated["TPOT"])
    return 0.0


def _simulated(trial: MeasuredTrial, tp: int, spec: SimulatorSpec, residuals: Residuals) -> Figures:
    return figures_of(_replayed(trial, tp, spec, residuals, tuple(trial.measured)))


def _replayed(
    trial: MeasuredTrial, tp: int, spec: SimulatorSpec, residuals: Residuals, loads: Sequence[Load]
) -> dict[Load, PhaseMeasurement]:
    engine = SimulatedEngine(replace(spec, residuals={tp: residuals}))
    engine.boot(trial.placement, 0)
    wanted = [load for load in loads if load in trial.plans and load != "stress"]
    return {load: engine.replay(trial.plans[load]) for load in wanted}


def _first_tokens(
    trial: MeasuredTrial, tp: int, spec: SimulatorSpec, given: Residuals
) -> tuple[float | None, float | None]:
    """(prefill factor, front-end seconds) on top of `given`, from its requests one by one; None for what it cannot
    tell."""
    if "steady" not in trial.measured or "steady" not in trial.plans:
        return None, None
    again = _replayed(trial, tp, spec, given, ("steady",))["steady"]
    simulated = {r.request_id: r.ttft_s for r in again.records if r.ttft_s is not None}
    both = [(simulated[r.request_id], r.ttft_s) for r in trial.measured["steady"].records
            if r.ttft_s is not None and r.request_id in simulated]  # fmt: skip
    if len(both) < MIN_REQUESTS:
        return None, None
    fixed_s = inbound_s(tp) + OUTBOUND_S
    x, y = np.array(both).T - fixed_s
    calm = x <= QUEUED * np.median(x)
    x, y = x[calm], y[calm]
    low, high = np.percentile(x, [10, 90])
    if low <= 0 or high / low < MIN_SPREAD:
        return None, float(np.median(y - x))
    slope = median_slope(x, y, MOST_POINTS, LEAST_STEP_S)
    return slope, float(np.median(y - slope * x))


def _choose_form(
    known: Sequence[_Known], tp: int, spec: SimulatorSpec
) -> tuple[int, tuple[Error, ...], tuple[str, ...]]:
    """(which of FORMS, its errors on trials left out, why not more): each further scalar has to lower the error of
    trials that it was not learned from."""
    if len(known) < MIN_TO_COMPARE:
        held_out = _held_out(known, 0, tp, spec) if len(known) > 1 else ()
        return 0, held_out, (f"only {FORMS[0]}: {len(known)} trials, {MIN_TO_COMPARE} are needed for more",)
    chosen, errors = 0, _held_out(known, 0, tp, spec)
    why = []
    for form in range(1, len(FORMS)):
        if sum(k.own[form] is not None for k in known) < MIN_TO_COMPARE:
            why.append(f"no {FORMS[form]}: too few trials tell it (prompts of one length, or few requests)")
            continue
        found = _held_out(known, form, tp, spec)
        if _mean(errors) - _mean(found) > max(WORTH * _mean(errors), LEAST_GAIN):
            chosen, errors = form, found
        else:
            why.append(
                f"no {FORMS[form]}: the error of trials left out would be {_mean(found):.1%}, not {_mean(errors):.1%}"
            )
    return chosen, errors, tuple(why)


def _mean(errors: Sequence[Error]) -> float:
    return float(np.mean([e.median for e in errors])) if errors else math.inf


def _combined(known: Sequence[_Known], form: int, remarks: list[str]) -> Residuals:
    """The medians over trials, of factors on their logarithms."""
    own = [r for k in known if (r := k.own[form]) is not None]
    if not own:
        remarks.append("nothing is learned: no trial can be compared")
        return NONE
    step = float(np.exp(np.median([math.log(r.step) for r in own])))
    prefill = float(np.exp(np.median([math.log(r.prefill) for r in own])))
    front_end_s = float(np.median([r.front_end_s for r in own]))
    return Residuals(bounded(step, "step", remarks), bounded(prefill, "prefill", remarks), front_end_s)


def _held_out(known: Sequence[_Known], form: int, tp: int, spec: SimulatorSpec) -> tuple[Error, ...]:
    """Every trial predicted from the others."""
    pairs = []
    for out in known:
        residuals = _combined([k for k in known if k is not out], form, [])
        pairs.append((out.measured, _simulated(out.trial, tp, spec, residuals)))
    return _errors(pairs)


def _errors(pairs: Sequence[tuple[Figures, Figures]]) -> tuple[Error, ...]:
    found = []
    for name in ("TPOT", "throughput", "TTFT"):
        both = [(simulated[name], measured[name]) for measured, simulated in pairs
                if name in measured and name in simulated]  # fmt: skip
        if both:
            predicted, truth = np.array(both).T
            found.append(error_of(name, predicted, truth))
    return tuple(found)
