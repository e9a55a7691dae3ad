"""A load like the one that was watched, made from its histograms: for predictions by simulation, and for nothing else.

Arrivals are Poisson at the rate seen; prompts and answers are drawn from the server's own histograms, each for itself.
"""

from __future__ import annotations

import numpy as np

from objectives.measurement import PhaseMeasurement, RequestRecord
from optimizer.engines.vllm.readings import Gains, Histogram
from optimizer.questions.prediction import MOST_REQUESTS
from optimizer.questions.situation import Situation
from optimizer.watching.of_watch import OUTPUTS, PROMPTS

LEAST_REQUESTS = 20
"""Fewer answers than this are no picture of a workload."""


def typical_load(s: Situation, gains: Gains, n_gpus: int) -> PhaseMeasurement | None:
    """None where too little was seen to make one."""
    prompts, outputs = gains.histogram(PROMPTS), gains.histogram(OUTPUTS)
    if prompts is None or outputs is None or prompts.n < LEAST_REQUESTS or not s.offered_per_s:
        return None
    n = min(max(round(s.offered_per_s * s.span_s), LEAST_REQUESTS), MOST_REQUESTS)
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(1.0 / s.offered_per_s, n))
    most = s.whole("max_model_len") or 2**31
    records = tuple(
        _record(i, float(t), _drawn(prompts, rng, most - 1), _drawn(outputs, rng, most))
        for i, t in enumerate(arrivals - arrivals[0])
    )
    fitting = tuple(r for r in records if r.prompt_tokens + r.asked_output_tokens <= most) or records
    end_s = fitting[-1].scheduled_s
    return PhaseMeasurement("steady", fitting, n_gpus, s.offered_per_s, 0.0, end_s, end_s)


def _record(number: int, time_s: float, prompt: int, output: int) -> RequestRecord:
    return RequestRecord(number, "default", time_s, time_s, prompt, output, np.empty(0))


def _drawn(lengths: Histogram, rng: np.random.Generator, most: int) -> int:
    return int(np.clip(lengths.draw(float(rng.uniform())), 1, most))
