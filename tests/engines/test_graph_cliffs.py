"""Batches beyond the captured CUDA-graph sizes cost more, and the whole engine feels it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from objectives.measurement import PhaseMeasurement
from optimizer.engines.simulator.steps import StepRecord, read_steps

sys.path.insert(0, str(Path(__file__).parent))
from simulated import engine, placement, plan, trace

SMALL = "Qwen2.5-0.5B"
"""Launch-bound: its device time is shorter than what launching its kernels one by one takes."""


def saturated(**arguments: object) -> PhaseMeasurement:
    one = engine("A100-40", SMALL)
    one.boot(placement(max_num_seqs=96, **arguments), 0)
    return one.replay(plan(trace(300, prompts=(20, 60), outputs=(50, 200)), "saturation"))


def itl_p50_s(phase: PhaseMeasurement) -> float:
    return float(np.median(np.concatenate([r.gaps_s for r in phase.records])))


def test_a_capture_size_below_the_batch_costs_throughput() -> None:
    whole, cut, eager = saturated(), saturated(max_cudagraph_capture_size=32), saturated(enforce_eager=True)
    assert itl_p50_s(cut) > 1.05 * itl_p50_s(whole)
    assert itl_p50_s(eager) > 1.5 * itl_p50_s(cut)
    assert whole.end_s < cut.end_s < eager.end_s


def test_the_cliff_stands_where_the_captured_sizes_end(tmp_path: Path) -> None:
    at = {n: seconds(decodes(tmp_path, 32, n)) for n in (31, 32, 33)}
    beyond = {n: seconds(decodes(tmp_path, 64, n)) for n in (31, 32, 33)}
    assert at[32] / at[31] < 1.02
    assert at[33] / at[32] > 1.05
    assert beyond[33] / beyond[32] < 1.02
    assert at[32] == beyond[32]


def decodes(folder: Path, capture_size: int, n: int) -> list[StepRecord]:
    """Decode-only steps of `n` equal requests that run together."""
    log = folder / f"{capture_size}-{n}"
    one = engine("A100-40", SMALL, step_log=str(log))
    one.boot(placement(max_num_seqs=96, max_cudagraph_capture_size=capture_size), 0)
    one.replay(plan(trace(n, prompts=(40, 40), outputs=(50, 50)), "saturation"))
    return [s for s in read_steps(log) if s.n_decodes == n and not s.prefills]


def seconds(steps: list[StepRecord]) -> float:
    assert len(steps) > 40
    return steps[0].seconds
