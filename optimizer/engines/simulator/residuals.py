"""Residuals: what a real engine was seen to take, over what the step-time model says. 1.0 means: as the model says.

One factor a tensor-parallel size multiplies every step; where the data can tell it apart, a second one multiplies steps
that prefill, and a third figure is added to the front end's time. They are learned by `fit`, never typed in.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from optimizer.engines.simulator.step_time import StepTimeModel

LEAST, MOST = 0.2, 20.0
"""A factor beyond is no residual: the card, the model or its dtype is another than was said."""
MOST_FRONT_END_S = 2.0


@dataclass(frozen=True, slots=True)
class Residuals:
    """Of one (GPU, model, TP). Raises ValueError for a factor outside LEAST..MOST, or a time above MOST_FRONT_END_S."""

    step: float = 1.0
    """On the time of every step."""
    prefill: float = 1.0
    """On steps that prefill, beside `step`."""
    front_end_s: float = 0.0
    """Seconds added to the front end's part of TTFT; below 0 it is faster than the table says."""

    def __post_init__(self) -> None:
        for name in ("step", "prefill"):
            value = getattr(self, name)
            if not (math.isfinite(value) and LEAST <= value <= MOST):
                raise ValueError(f"the residual {name} is {value!r}, a factor from {LEAST:g} to {MOST:g} was expected")
        if not (math.isfinite(self.front_end_s) and abs(self.front_end_s) <= MOST_FRONT_END_S):
            raise ValueError(
                f"the residual front_end_s is {self.front_end_s!r}, at most {MOST_FRONT_END_S:g} s expected"
            )

    @property
    def text(self) -> str:
        parts = [f"step time x {self.step:.3f}"]
        parts += [f"prefill x {self.prefill:.3f}"] if self.prefill != 1.0 else []
        parts += [f"front end {1e3 * self.front_end_s:+.1f} ms"] if self.front_end_s else []
        return ", ".join(parts)

    def to_json(self) -> dict[str, float]:
        return asdict(self)


NONE = Residuals()
ByTp = Mapping[int, Residuals]
"""Tensor-parallel size -> residuals."""


def residuals_for(by_tp: ByTp, tp: int) -> Residuals:
    """Those of this size; of none measured, the next smaller one's step factor: what the host and the kernels cost too
    much shows at every size. NONE where nothing was learned at or below it."""
    if tp in by_tp:
        return by_tp[tp]
    smaller = [size for size in by_tp if size < tp]
    return Residuals(step=by_tp[max(smaller)].step) if smaller else NONE


@dataclass(frozen=True)
class Corrected:
    """A StepTimeModel times its residuals. Linear in contexts as the model itself is."""

    model: StepTimeModel
    residuals: Residuals

    @property
    def windows(self) -> tuple[int, ...]:
        return self.model.windows

    def decode_line(self, n_decodes: int) -> tuple[float, tuple[float, ...]]:
        base, slopes = self.model.decode_line(n_decodes)
        factor = self.residuals.step
        return factor * base, tuple(factor * slope for slope in slopes)

    def mixed_s(
        self, prefills: Sequence[tuple[int, int]], n_sampled: int, n_decodes: int, contexts: Sequence[int]
    ) -> float:
        factor = self.residuals.step * self.residuals.prefill
        return factor * self.model.mixed_s(prefills, n_sampled, n_decodes, contexts)

    def demand(self, n_tokens: int, n_prefill_tokens: int, seconds: float) -> tuple[float, float]:
        """The shares are the model's own: a residual stretches a step, it does not say with what."""
        factor = self.residuals.step * (self.residuals.prefill if n_prefill_tokens else 1.0)
        return self.model.demand(n_tokens, n_prefill_tokens, seconds / factor)


def corrected(model: StepTimeModel, residuals: Residuals) -> StepTimeModel:
    return model if residuals == NONE else Corrected(model, residuals)


def hash_of(by_tp: ByTp) -> str:
    """8 hex digits: a study's figures with other residuals are other figures."""
    text = json.dumps({str(tp): one.to_json() for tp, one in sorted(by_tp.items())})
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def by_tp_from(fields: Any) -> dict[int, Residuals]:
    """From JSON. Raises ValueError, TypeError or KeyError for what is none."""
    return {int(tp): Residuals(**{k: float(v) for k, v in one.items()}) for tp, one in dict(fields).items()}
