"""Fitting residuals to a step log: (what a step did, how long it took), against the step-time model.

Medians of logarithms, so that a hiccup in one step of ten moves nothing. What the log cannot tell is not learned, and
the reason is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.engines.simulator.residuals import LEAST, MOST, NONE, Residuals
from optimizer.engines.simulator.step_time import StepTimeModel
from optimizer.engines.simulator.steps import StepRecord

MIN_STEPS = 10
"""Of one kind (decode alone, or with a prefill), to learn a factor from."""
N_FOLDS = 5
"""The log is cut into so many stretches; each is predicted from the others."""


@dataclass(frozen=True, slots=True)
class Error:
    """Of predictions against what was measured: median and 90th percentile of |predicted / measured - 1|, and the
    signed median. Shares: 0.1 is 10 %."""

    figure: str
    n: int
    median: float
    p90: float
    bias: float

    @property
    def text(self) -> str:
        return f"{self.median:.1%} (P90 {self.p90:.1%}, bias {self.bias:+.1%})"


@dataclass(frozen=True)
class Fitted:
    """What was learned for one tensor-parallel size, and what it did to the error."""

    tp: int
    n: int
    """Steps, or trials."""
    residuals: Residuals
    before: tuple[Error, ...]
    after: tuple[Error, ...]
    """On the data that was learned from."""
    held_out: tuple[Error, ...]
    """Each part predicted from the others; empty where there is only one part."""
    remarks: tuple[str, ...] = ()
    """What was not learned and why; a factor at the end of its range."""


def fit_steps(steps: Sequence[StepRecord], model_of: Callable[[int], StepTimeModel]) -> tuple[Fitted, ...]:
    """One Fitted a tensor-parallel size. `model_of`: TP -> the uncorrected model with the server's arguments."""
    return tuple(_fit_one([s for s in steps if s.tp == tp], tp, model_of(tp)) for tp in sorted({s.tp for s in steps}))


def _fit_one(steps: Sequence[StepRecord], tp: int, model: StepTimeModel) -> Fitted:
    is_mixed = np.array([bool(s.prefills) for s in steps])
    measured = np.array([s.seconds for s in steps])
    predicted = np.array([predicted_s(s, model) for s in steps])
    residuals, remarks = _learn(measured, predicted, is_mixed)
    return Fitted(
        tp,
        len(steps),
        residuals,
        before=_errors(predicted, measured, is_mixed),
        after=_errors(predicted * _factors(residuals, is_mixed), measured, is_mixed),
        held_out=_held_out(measured, predicted, is_mixed),
        remarks=tuple(remarks),
    )


def predicted_s(step: StepRecord, model: StepTimeModel) -> float:
    """Raises ValueError when the step has other attention windows than the model."""
    n_windows = len(model.windows)
    if step.n_decodes and len(step.contexts) != n_windows:
        raise ValueError(f"step {step.index}: {len(step.contexts)} context sums, the model has {n_windows} windows")
    if step.prefills:
        n_sampled = step.n_decodes + len(step.prefills) if step.n_sampled is None else step.n_sampled
        contexts = step.contexts or (0,) * n_windows
        return model.mixed_s(step.prefills, n_sampled, step.n_decodes, contexts)
    base, slopes = model.decode_line(step.n_decodes)
    return base + sum(slope * context for slope, context in zip(slopes, step.contexts, strict=True))


def _learn(
    measured: NDArray[np.float64], predicted: NDArray[np.float64], is_mixed: NDArray[np.bool_]
) -> tuple[Residuals, list[str]]:
    ratio = np.log(measured / predicted)
    remarks: list[str] = []
    n_decode, n_mixed = int((~is_mixed).sum()), int(is_mixed.sum())
    if ratio.size < MIN_STEPS:
        return NONE, [f"nothing is learned from {ratio.size} steps: at least {MIN_STEPS} are needed"]
    if n_decode < MIN_STEPS or n_mixed < MIN_STEPS:
        kind = "decode alone" if n_decode < MIN_STEPS else "prefill"
        remarks.append(f"one factor for all steps: only {min(n_decode, n_mixed)} steps {kind}, {MIN_STEPS} are needed")
        return Residuals(step=bounded(math.exp(float(np.median(ratio))), "step", remarks)), remarks
    step = bounded(math.exp(float(np.median(ratio[~is_mixed]))), "step", remarks)
    prefill = bounded(math.exp(float(np.median(ratio[is_mixed]))) / step, "prefill", remarks)
    return Residuals(step=step, prefill=prefill), remarks


def bounded(value: float, name: str, remarks: list[str]) -> float:
    """Within what is plausible; says so where that binds."""
    inside = min(max(value, LEAST), MOST)
    if inside != value:
        remarks.append(
            f"{name} would be {value:.3g} and is held at {inside:g}: is it another card, model, dtype or TP than said?"
        )
    return inside


def _factors(residuals: Residuals, is_mixed: NDArray[np.bool_]) -> NDArray[np.float64]:
    return residuals.step * np.where(is_mixed, residuals.prefill, 1.0)


def _errors(
    predicted: NDArray[np.float64], measured: NDArray[np.float64], is_mixed: NDArray[np.bool_]
) -> tuple[Error, ...]:
    kinds = (("step", np.full(is_mixed.shape, True)), ("decode step", ~is_mixed), ("prefill step", is_mixed))
    return tuple(error_of(name, predicted[kind], measured[kind]) for name, kind in kinds if kind.any())


def error_of(figure: str, predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> Error:
    relative = predicted / measured - 1
    size = np.abs(relative)
    return Error(figure, size.size, float(np.median(size)), float(np.percentile(size, 90)), float(np.median(relative)))


def _held_out(
    measured: NDArray[np.float64], predicted: NDArray[np.float64], is_mixed: NDArray[np.bool_]
) -> tuple[Error, ...]:
    """Stretches of the log, not single steps: neighbours are alike."""
    if measured.size < N_FOLDS * MIN_STEPS:
        return ()
    fold = np.arange(measured.size) * N_FOLDS // measured.size
    corrected = predicted.copy()
    for k in range(N_FOLDS):
        kept = fold != k
        residuals, _ = _learn(measured[kept], predicted[kept], is_mixed[kept])
        corrected[~kept] *= _factors(residuals, is_mixed[~kept])
    return _errors(corrected, measured, is_mixed)
