"""What the simulator says about one case, in the units of the published figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.accuracy.loads import Case
from objectives.measurement import PhaseMeasurement
from optimizer.engines.engine import Instance, LoadPlan, Placement
from optimizer.engines.simulator.engine import SimulatedEngine, SimulatorSpec
from optimizer.engines.simulator.residuals import Residuals

TIME_LIMIT_S = 1e8


@dataclass(frozen=True)
class Prediction:
    """None: not defined for this case (one-token answers have no TPOT)."""

    tpot_ms: float | None
    tpot_p99_ms: float | None
    ttft_ms: float
    ttft_p99_ms: float
    out_tok_s: float
    duration_s: float
    n_preemptions: float
    kv_tokens: int
    uncalibrated: tuple[str, ...]
    """What the step times rest on without kernel data."""


def predict(case: Case, is_little: bool = False, factor: float = 1.0) -> Prediction:
    """Noise off. `factor`: on every step time. `is_little`: throughput as clients x output / mean latency, as the row's
    own was derived.

    Raises EngineFailed when the simulator says that it cannot run."""
    tp = int(case.arguments["tensor_parallel_size"])
    residuals = {tp: Residuals(step=factor)} if factor != 1.0 else {}
    placement = Placement((Instance("server", case.config, ("default",)),))
    engine = SimulatedEngine(
        SimulatorSpec(case.model, case.gpu, noise=0.0, n_clients=case.n_clients, residuals=residuals)
    )
    report = engine.boot(placement, seed=0)
    plan = LoadPlan("steady", case.trace, 0, case.trace.rate_per_s, TIME_LIMIT_S)
    phase = engine.replay(plan)
    return _summed(case, phase, report.kv_tokens["server"], tuple(report.facts.get("uncalibrated", ())), is_little)


def _summed(
    case: Case, phase: PhaseMeasurement, kv_tokens: int, uncalibrated: tuple[str, ...], is_little: bool
) -> Prediction:
    counted = [r for r in phase.records if r.request_id >= case.n_uncounted and r.token_times_s.size]
    first = np.array([r.token_times_s[0] - r.scheduled_s for r in counted])
    last = np.array([r.token_times_s[-1] - r.scheduled_s for r in counted])
    n_tokens = np.array([r.token_times_s.size for r in counted])
    many = n_tokens > 1
    tpots = (last[many] - first[many]) / (n_tokens[many] - 1)
    duration_s = max(float(r.token_times_s[-1]) for r in counted)
    out_tok_s = float(sum(r.token_times_s.size for r in phase.records)) / duration_s
    if (is_little or case.n_uncounted) and case.n_clients is not None:
        out_tok_s = case.n_clients * float(n_tokens.mean()) / float(last.mean())
    return Prediction(
        tpot_ms=1e3 * float(tpots.mean()) if tpots.size else None,
        tpot_p99_ms=1e3 * float(np.percentile(tpots, 99)) if tpots.size else None,
        ttft_ms=1e3 * float(first.mean()),
        ttft_p99_ms=1e3 * float(np.percentile(first, 99)),
        out_tok_s=out_tok_s,
        duration_s=duration_s,
        n_preemptions=sum(c.n_preemptions or 0.0 for c in phase.counters.values()),
        kv_tokens=kv_tokens,
        uncalibrated=uncalibrated,
    )
