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
from objectives.throughput import is_running_set_full, output_tokens_per_s_per_gpu
from optimizer.engines.engine import LoadPlan, Placement
from optimizer.engines.simulator.engine import SimulatedEngine, SimulatorSpec
from optimizer.engines.simulator.fit_steps import Error, Fitted, bounded, error_of
from optimizer.engines.simulator.recording import OUTBOUND_S, inbound_s
from optimizer.engines.simulator.residuals import MOST_FRONT_END_S, NONE, Residuals
from optimizer.errors import EngineFailed

N_ROUNDS = 3
"""Times a trial's own factor is corrected: figures are nearly, not quite, in proportion to step times."""
CLOSE = 0.005
"""Of the logarithm of a factor that is near enough."""
MIN_FOR_PREFILL, MIN_FOR_FRONT_END = 3, 3
"""Trials; and requests of a trial:"""
MIN_REQUESTS = 30
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
    residuals, more = _learned(known)
    remarks += more
    return Fitted(
        tp,
        len(known),
        residuals,
        before=_errors([(k.measured, k.plain) for k in known]),
        after=_errors([(k.measured, _simulated(k.trial, tp, spec, residuals)) for k in known]),
        held_out=_held_out(known, tp, spec),
        remarks=tuple(remarks),
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
    step: float
    prefill: float | None
    front_end_s: float | None


def _study(trial: MeasuredTrial, tp: int, spec: SimulatorSpec) -> _Known:
    measured = figures_of(trial.measured)
    plain = simulated = _simulated(trial, tp, spec, NONE)
    if not {"TPOT", "throughput"} & measured.keys() & plain.keys():
        raise _Uncomparable("neither a time per token nor a throughput was measured and simulated")
    step = 1.0
    for _ in range(N_ROUNDS):
        off = _log_off(measured, simulated)
        step = bounded(step * math.exp(off), "step", [])
        if abs(off) < CLOSE:
            break
        simulated = _simulated(trial, tp, spec, Residuals(step=step))
    prefill, front_end_s = _first_tokens(trial, tp, spec, step)
    return _Known(trial, measured, plain, step, prefill, front_end_s)


def _log_off(measured: Figures, simulated: Figures) -> float:
    """Logarithm of how much longer it took than simulated: the mean over time per token and throughput."""
    off = []
    if "TPOT" in measured and "TPOT" in simulated:
        off.append(math.log(measured["TPOT"] / simulated["TPOT"]))
    if "throughput" in measured and "throughput" in simulated:
        off.append(math.log(simulated["throughput"] / measured["throughput"]))
    return float(np.mean(off)) if off else 0.0


def _simulated(trial: MeasuredTrial, tp: int, spec: SimulatorSpec, residuals: Residuals) -> Figures:
    return figures_of(_replayed(trial, tp, spec, residuals, tuple(trial.measured)))


def _replayed(
    trial: MeasuredTrial, tp: int, spec: SimulatorSpec, residuals: Residuals, loads: Sequence[Load]
) -> dict[Load, PhaseMeasurement]:
    engine = SimulatedEngine(replace(spec, residuals={tp: residuals}))
    engine.boot(trial.placement, 0)
    wanted = [load for load in loads if load in trial.plans and load != "stress"]
    return {load: engine.replay(trial.plans[load]) for load in wanted}


def _first_tokens(trial: MeasuredTrial, tp: int, spec: SimulatorSpec, step: float) -> tuple[float | None, float | None]:
    """(prefill factor, front-end seconds) of one trial, from its requests one by one; None for what it cannot tell."""
    if "steady" not in trial.measured or "steady" not in trial.plans:
        return None, None
    again = _replayed(trial, tp, spec, Residuals(step=step), ("steady",))["steady"]
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
    slope = _slope(x, y)
    return slope, float(np.median(y - slope * x))


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    """Theil-Sen: the median slope over pairs, of at most 300 points."""
    every = np.linspace(0, x.size - 1, min(x.size, 300)).astype(int)
    x, y = x[every], y[every]
    i, j = np.triu_indices(x.size, 1)
    apart = np.abs(x[j] - x[i]) > 1e-4
    return float(np.median((y[j] - y[i])[apart] / (x[j] - x[i])[apart]))


def _learned(known: Sequence[_Known]) -> tuple[Residuals, list[str]]:
    remarks: list[str] = []
    if not known:
        return NONE, ["nothing is learned: no trial can be compared"]
    step = bounded(float(np.exp(np.median([math.log(k.step) for k in known]))), "step", remarks)
    prefills = [k.prefill for k in known if k.prefill is not None and k.prefill > 0]
    fronts = [k.front_end_s for k in known if k.front_end_s is not None]
    prefill = 1.0
    if len(prefills) >= MIN_FOR_PREFILL:
        prefill = bounded(float(np.median(prefills)), "prefill", remarks)
    else:
        remarks.append(f"no prefill factor: {len(prefills)} trials can tell it, {MIN_FOR_PREFILL} are needed")
    front = 0.0
    if len(fronts) >= MIN_FOR_FRONT_END:
        front = float(np.clip(np.median(fronts), -MOST_FRONT_END_S, MOST_FRONT_END_S))
    else:
        remarks.append(f"no front-end time: {len(fronts)} trials can tell it, {MIN_FOR_FRONT_END} are needed")
    return Residuals(step, prefill, front), remarks


def _held_out(known: Sequence[_Known], tp: int, spec: SimulatorSpec) -> tuple[Error, ...]:
    """Every trial predicted from the others."""
    if len(known) < 2:
        return ()
    pairs = []
    for out in known:
        residuals, _ = _learned([k for k in known if k is not out])
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
