"""run_trial, sustained load and metrics against the simulator itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from objectives.metric import compute_metrics
from optimizer.diagnosis.sustained import unsustained
from optimizer.engines.engine import Instance, LoadPlan, Placement
from optimizer.engines.simulator.engine import SimulatedEngine, SimulatorSpec
from optimizer.trial import Infeasible, Measured, Stopped, StopRule, TrialPlan, run_trial
from optimizer.workload.trace import Trace
from search_spaces.config import Config
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model

BUDGETS = {"max_num_batched_tokens": 2048, "max_num_seqs": 64, "max_model_len": 8192, "gpu_memory_utilization": 0.9}


def workload(rate_per_s: float, n: int = 400, n_warmup: int = 60, *, at_once: bool = False) -> Trace:
    """Poisson arrivals with log-normal lengths, about 1,000 prompt and 200 output tokens."""
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(1 / rate_per_s, n + n_warmup))
    arrivals = np.zeros(n + n_warmup) if at_once else arrivals - arrivals[n_warmup]
    lengths = [np.clip(rng.lognormal(math.log(m) - 0.2, 0.6, n + n_warmup), 1, 4000) for m in (1000, 200)]
    prompt, output = (x.astype(np.int32) for x in lengths)
    return Trace(arrivals, prompt, output, np.zeros(n + n_warmup, np.int16))


def trial(rate_per_s: float, stop_rule: StopRule | None = None, **changes: float | int) -> TrialPlan:
    placement = Placement((Instance("server", Config({**BUDGETS, **changes}), ("default",)),))
    steady, burst = workload(rate_per_s), workload(rate_per_s, at_once=True)
    loads = (
        LoadPlan("saturation", burst, 0, None, 600.0),
        LoadPlan("stress", burst.take(slice(0, 80)), 0, None, 600.0),
        LoadPlan("steady", steady, 60, rate_per_s, 600.0),
    )
    return TrialPlan(0, 0, "search", placement, loads, seed=11, stop_rule=stop_rule)


@pytest.fixture(scope="module")
def engine() -> SimulatedEngine:
    return SimulatedEngine(SimulatorSpec(find_model("Llama-3.1-8B"), find_gpu("H100-80")))


def capacity_per_s(engine: SimulatedEngine) -> float:
    outcome = run_trial(trial(1.0), engine)
    assert isinstance(outcome, Measured)
    value = compute_metrics(outcome.measurement)["saturation_requests_per_s_per_gpu"]
    assert value is not None
    return value


def test_below_capacity_every_figure_is_there_and_above_it_the_trial_says_so(engine: SimulatedEngine) -> None:
    capacity = capacity_per_s(engine)
    calm = run_trial(trial(0.5 * capacity), engine)
    assert isinstance(calm, Measured)
    metrics = compute_metrics(calm.measurement)
    assert unsustained(calm.measurement.phases["steady"]) <= 0
    for name in (
        "saturation_output_tokens_per_s_per_gpu",
        "steady_ttft_p99_ms",
        "steady_itl_p99_ms",
        "steady_stall_p99_ms",
        "stress_min_free_memory_bytes",
        "steady_kv_usage_max",
    ):
        assert (metrics[name] or 0) > 0, name
    assert metrics["steady_failed_share"] == metrics["stress_failed_share"] == 0
    assert metrics["steady_preemptions_per_request"] == 0
    assert metrics["saturation_running_set_full"] == 1
    hot = run_trial(trial(1.5 * capacity), engine)
    assert isinstance(hot, Measured)
    assert unsustained(hot.measurement.phases["steady"]) > 0.1
    assert any("not sustainable" in line for line in hot.findings)


def test_a_hopeless_rate_is_stopped_after_the_steady_load(engine: SimulatedEngine) -> None:
    outcome = run_trial(trial(200.0, StopRule()), engine)
    assert isinstance(outcome, Stopped) and outcome.bound == "unsustained"
    assert set(outcome.engine_seconds) == {"boot", "warm-up", "steady"}


def test_a_card_without_room_is_infeasible(engine: SimulatedEngine) -> None:
    outcome = run_trial(trial(1.0, gpu_memory_utilization=0.12), engine)
    assert isinstance(outcome, Infeasible)
    assert outcome.violation > 0 and "\n" not in outcome.cause


def test_a_length_limit_below_every_prompt_measures_nothing_good(engine: SimulatedEngine) -> None:
    outcome = run_trial(trial(1.0, max_model_len=2, max_num_batched_tokens=2048), engine)
    assert not isinstance(outcome, Measured) or not (
        compute_metrics(outcome.measurement)["steady_ttft_p99_ms"]
        or compute_metrics(outcome.measurement)["saturation_output_tokens_per_s_per_gpu"]
    )


def test_the_same_seed_gives_the_same_figures(engine: SimulatedEngine) -> None:
    first, second = (run_trial(trial(2.0), engine) for _ in range(2))
    assert isinstance(first, Measured) and isinstance(second, Measured)
    assert compute_metrics(first.measurement) == compute_metrics(second.measurement)
