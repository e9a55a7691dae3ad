"""run_trial over engines at the edge of the protocol: they refuse, die, answer nothing, or get stuck."""

from __future__ import annotations

import contextlib
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from objectives.measurement import ClientReport, EngineCounters, EngineSample, Load, PhaseMeasurement, RequestRecord
from objectives.metric import compute_metrics
from objectives.objective import Limit, Objective, score
from optimizer.clock import VirtualClock
from optimizer.diagnosis.sustained import unsustained
from optimizer.engines.engine import BootReport, Instance, LoadPlan, Placement
from optimizer.errors import EngineFailed
from optimizer.trial import Broken, Infeasible, Measured, Stopped, StopRule, TrialPlan, run_trial
from optimizer.workload.trace import Trace
from search_spaces.config import Config
from tests.measured import failed, phase, record, served_by_slots

N_REQUESTS = 400
WARMUP_S = 5.0
Replay = Callable[[LoadPlan], PhaseMeasurement]


def answer(plan: LoadPlan) -> PhaseMeasurement:
    """Every request answered at once, 20 tokens at 20 ms."""
    arrivals = plan.trace.arrival_s[plan.n_warmup :]
    records = served_by_slots(arrivals, [20] * arrivals.size, 1000)
    return phase(records, plan.load, counters={"server": EngineCounters(n_preemptions=0.0)})


@dataclass
class Scripted:
    """An engine that follows the protocol and does what the test says where it says."""

    replay_as: Replay = answer
    boot_failure: BaseException | None = None
    stop_failure: BaseException | None = None
    is_simulated: bool = True
    calls: list[str] = field(default_factory=list)
    identity: str = "scripted 0"
    held: Placement | None = None

    def boot(self, placement: Placement, seed: int) -> BootReport:
        self.calls.append(f"boot {seed}")
        if self.boot_failure:
            raise self.boot_failure
        return BootReport({"load": 10.0, "graph_capture": 5.0}, {"server": 100_000}, {"server": 6250}, None)

    def holds(self, placement: Placement) -> bool:
        return self.held == placement

    def logs(self) -> dict[str, str]:
        return {"server": f"{len(self.calls)} calls"}

    def configure(self, placement: Placement) -> None:
        self.calls.append("configure")

    def reset(self) -> None:
        self.calls.append("reset")

    def replay(self, plan: LoadPlan) -> PhaseMeasurement:
        self.calls.append(plan.load)
        return self.replay_as(plan)

    def sample(self) -> tuple[EngineSample, ...]:
        return ()

    def stop(self) -> None:
        self.calls.append("stop")
        if self.stop_failure:
            raise self.stop_failure


def load_plan(load: Load) -> LoadPlan:
    arrivals = np.concatenate([[-WARMUP_S], 0.1 * np.arange(N_REQUESTS)])
    n = arrivals.size
    trace = Trace(arrivals, np.full(n, 100, np.int32), np.full(n, 20, np.int32), np.zeros(n, np.int16))
    return LoadPlan(load, trace, n_warmup=1, offered_per_s=10.0, time_limit_s=100.0)


def plan(*loads: Load, stop_rule: StopRule | None = None) -> TrialPlan:
    placement = Placement((Instance("server", Config({"max_num_seqs": 8}), ("default",)),))
    return TrialPlan(3, 0, "search", placement, tuple(map(load_plan, loads)), seed=7, stop_rule=stop_rule)


ALL: tuple[Load, ...] = ("saturation", "stress", "steady")


def in_load(load: Load, replay: Replay) -> Replay:
    return lambda plan: replay(plan) if plan.load == load else answer(plan)


def raising(error: BaseException) -> Replay:
    def replay(plan: LoadPlan) -> PhaseMeasurement:
        raise error

    return replay


def test_first_stable_then_fast_and_always_stopped() -> None:
    engine = Scripted()
    outcome = run_trial(plan(*ALL), engine)
    assert isinstance(outcome, Measured)
    assert engine.calls == ["boot 7", "reset", "steady", "reset", "stress", "reset", "saturation", "stop"]
    assert set(outcome.measurement.phases) == set(ALL)
    assert outcome.measurement.kv_tokens == {"server": 100_000}
    assert outcome.boot is not None and outcome.boot.kv_blocks == {"server": 6250}
    assert isinstance(pickle.loads(pickle.dumps(outcome)), Measured)


def test_virtual_seconds_are_charged_to_their_phase() -> None:
    outcome = run_trial(plan("steady", "stress"), Scripted())
    last_s = 0.1 * (N_REQUESTS - 1) + 0.05 + 19 * 0.02
    assert outcome.engine_seconds == pytest.approx(
        {"boot": 15.0, "warm-up": 2 * WARMUP_S, "steady": last_s, "stress": last_s}
    )


def test_a_real_engine_is_charged_by_the_clock_even_where_it_fails() -> None:
    clock = VirtualClock()

    def slow_then_dead(load: LoadPlan) -> PhaseMeasurement:
        clock.sleep_s(30.0)
        if load.load == "stress":
            raise EngineFailed("runtime_peak", "stress", "CUDA out of memory", is_config_fault=True)
        return answer(load)

    outcome = run_trial(plan("steady", "stress"), Scripted(slow_then_dead, is_simulated=False), clock)
    assert isinstance(outcome, Infeasible)
    assert outcome.engine_seconds == {"boot": 0.0, "steady": 30.0, "stress": 30.0}
    assert outcome.wall_s == 60.0


@pytest.mark.parametrize(
    ("kind", "phase_said", "phase_told"), [("no_kv_room", "boot", "boot"), ("weights_do_not_fit", None, "boot")]
)
def test_a_boot_that_cannot_work_is_the_configurations_fault(
    kind: str, phase_said: str | None, phase_told: str
) -> None:
    error = EngineFailed(kind, phase_said, "needs 3 GiB, has 1 GiB\ntraceback", is_config_fault=True, violation=2.0)
    engine = Scripted(boot_failure=error)
    outcome = run_trial(plan(*ALL), engine)
    assert isinstance(outcome, Infeasible)
    assert (outcome.kind, outcome.phase, outcome.violation) == (kind, phase_told, 2.0)
    assert outcome.cause == "needs 3 GiB, has 1 GiB"
    assert engine.calls == ["boot 7", "stop"]


def test_dying_under_stress_after_a_good_steady_load_is_infeasible() -> None:
    error = EngineFailed("runtime_peak", None, "out of memory in a full step", is_config_fault=True)
    outcome = run_trial(plan(*ALL), engine := Scripted(in_load("stress", raising(error))))
    assert isinstance(outcome, Infeasible)
    assert (outcome.kind, outcome.phase) == ("runtime_peak", "stress")
    assert "saturation" not in engine.calls and engine.calls[-1] == "stop"
    assert outcome.engine_seconds["steady"] > 0


@pytest.mark.parametrize("violation", [0.0, -1.0, math.nan, math.inf])
def test_an_infeasible_trial_is_never_told_as_good(violation: float) -> None:
    error = EngineFailed("x", "boot", "y", is_config_fault=True, violation=violation)
    outcome = run_trial(plan(*ALL), Scripted(boot_failure=error))
    assert isinstance(outcome, Infeasible) and outcome.violation == 1.0


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (EngineFailed("port", "boot", "port 8000 is taken", is_config_fault=False), "port (boot): port 8000 is taken"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
        (RuntimeError("\n\n  first line\nsecond line"), "RuntimeError: first line"),
        (KeyError(), "KeyError"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_what_is_not_the_configurations_fault_is_broken(error: Exception, cause: str) -> None:
    for engine in (Scripted(boot_failure=error), Scripted(in_load("saturation", raising(error)))):
        outcome = run_trial(plan(*ALL), engine)
        assert isinstance(outcome, Broken)
        assert outcome.cause == cause
        assert engine.calls[-1] == "stop"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_an_interrupt_passes_after_the_engine_is_stopped(error: BaseException) -> None:
    engine = Scripted(in_load("stress", raising(error)))
    with pytest.raises(type(error)):
        run_trial(plan(*ALL), engine)
    assert engine.calls[-1] == "stop"


def test_a_failing_stop_hides_neither_the_figures_nor_the_cause() -> None:
    stuck = RuntimeError("a process is left")
    outcome = run_trial(plan(*ALL), Scripted(stop_failure=stuck))
    assert isinstance(outcome, Measured)
    assert outcome.findings[-1] == "the engine did not stop cleanly: RuntimeError: a process is left"
    error = EngineFailed("no_kv_room", "boot", "y", is_config_fault=True)
    assert isinstance(run_trial(plan(*ALL), Scripted(boot_failure=error, stop_failure=stuck)), Infeasible)


def overloaded(load: LoadPlan) -> PhaseMeasurement:
    arrivals = load.trace.arrival_s[load.n_warmup :]
    return phase(served_by_slots(arrivals, [20] * arrivals.size, 1), load.load)


def test_a_hopeless_steady_load_stops_the_trial() -> None:
    outcome = run_trial(plan(*ALL, stop_rule=StopRule()), engine := Scripted(in_load("steady", overloaded)))
    assert isinstance(outcome, Stopped)
    assert outcome.bound == "unsustained" and outcome.violation > 0.5
    assert outcome.reason.startswith("not sustainable at 10 req/s, capacity ~2.")
    assert list(outcome.measurement.phases) == ["steady"]
    assert engine.calls[-2:] == ["steady", "stop"]


def test_without_a_stop_rule_it_is_measured_and_its_value_says_so() -> None:
    outcome = run_trial(plan(*ALL), Scripted(in_load("steady", overloaded)))
    assert isinstance(outcome, Measured)
    assert unsustained(outcome.measurement.phases["steady"]) > 0.5
    assert any("not sustainable" in line for line in outcome.findings)


def test_the_last_load_is_never_stopped_for() -> None:
    assert isinstance(run_trial(plan("steady", stop_rule=StopRule()), Scripted(overloaded)), Measured)


@pytest.mark.parametrize(("n_preemptions", "kind"), [(2100.0, Stopped), (1900.0, Measured), (None, Measured)])
def test_thrash_under_stress_stops_the_trial(n_preemptions: float | None, kind: type) -> None:
    def thrash(load: LoadPlan) -> PhaseMeasurement:
        counters = {"server": EngineCounters(n_preemptions=n_preemptions)}
        return phase(answer(load).records, load.load, counters=counters)

    outcome = run_trial(plan(*ALL, stop_rule=StopRule()), Scripted(in_load("stress", thrash)))
    assert isinstance(outcome, kind)
    if isinstance(outcome, Stopped):
        assert outcome.bound == "stress_preemptions_per_request" and outcome.violation == pytest.approx(0.05)


def records_of(make: Callable[[float], RequestRecord]) -> Replay:
    def replay(load: LoadPlan) -> PhaseMeasurement:
        return phase([make(t) for t in load.trace.arrival_s[load.n_warmup :]], load.load)

    return replay


DEGENERATE: dict[str, Replay] = {
    "all failed": records_of(lambda t: failed(float(t))),
    "one token each": records_of(lambda t: record(float(t), float(t) + 0.01)),
    "no request": lambda load: phase([], load.load),
}


@pytest.mark.parametrize("kind", DEGENERATE)
@pytest.mark.parametrize("stop_rule", [None, StopRule()])
def test_no_degenerate_trial_looks_good(kind: str, stop_rule: StopRule | None) -> None:  # cases TOOL-08, EDGE-03
    outcome = run_trial(plan(*ALL, stop_rule=stop_rule), Scripted(DEGENERATE[kind]))
    assert isinstance(outcome, Measured | Stopped)
    objectives = (
        Objective("saturation_output_tokens_per_s_per_gpu", "maximize"),
        Objective("steady_ttft_p99_ms", "minimize"),
        Objective("steady_itl_p99_ms", "minimize"),
    )
    limits = (Limit("steady_preemptions_per_request", at_most=0.01),)
    rules = {"unsustained": unsustained(outcome.measurement.phases["steady"])}
    card = score(compute_metrics(outcome.measurement), objectives, limits, rules)
    assert card.values is None and not card.is_feasible


def test_all_failed_names_the_failure() -> None:  # case TOOL-08
    outcome = run_trial(plan(*ALL, stop_rule=StopRule()), Scripted(DEGENERATE["all failed"]))
    assert isinstance(outcome, Stopped)
    assert "400 of 400 requests failed (400x HTTP 500)" in outcome.reason


def test_a_run_replays_each_load_once() -> None:
    with pytest.raises(ValueError, match="each load once"):
        plan("steady", "steady")


def held_by(engine: Scripted, placement: Placement) -> Scripted:
    engine.held = placement
    return engine


def test_what_the_engine_holds_after_a_good_run_is_left_running() -> None:
    first = plan("steady")
    engine = held_by(Scripted(is_simulated=False), first.placement)
    assert isinstance(run_trial(first, engine), Measured)
    assert engine.calls == ["boot 7", "reset", "steady"]


def test_a_fresh_run_stops_what_is_held_before_it_boots() -> None:
    first = replace(plan("steady"), is_fresh=True)
    engine = held_by(Scripted(is_simulated=False), first.placement)
    run_trial(first, engine)
    assert engine.calls == ["stop", "boot 7", "reset", "steady"]


@pytest.mark.parametrize(
    "error",
    [
        EngineFailed("hang", "serving", "no token for 120 s", is_config_fault=False),
        EngineFailed("runtime_peak", "serving", "out of memory", is_config_fault=True),
        ZeroDivisionError(),
        KeyboardInterrupt(),
    ],
)
def test_after_a_failure_nothing_is_left_running(error: BaseException) -> None:
    first = plan(*ALL)
    engine = held_by(Scripted(in_load("stress", raising(error))), first.placement)
    with contextlib.suppress(KeyboardInterrupt):
        run_trial(first, engine)
    assert engine.calls[-1] == "stop"


def test_a_client_that_could_not_keep_up_is_no_measurement() -> None:
    report = ClientReport(2, 900.0, 3.0, 1.0, 10_000, fault="sends were late: P99 900 ms")

    def late(load: LoadPlan) -> PhaseMeasurement:
        return replace(answer(load), client=report)

    outcome = run_trial(plan(*ALL), engine := Scripted(in_load("stress", late)))
    assert isinstance(outcome, Broken)
    assert (outcome.kind, outcome.cause) == ("client", "stress: sends were late: P99 900 ms")
    assert engine.calls[-2:] == ["stress", "stop"]
    kept_up = run_trial(plan("steady"), Scripted(lambda p: replace(answer(p), client=replace(report, fault=None))))
    assert isinstance(kept_up, Measured)


def test_the_servers_words_come_with_the_outcome_however_it_ends() -> None:
    error = EngineFailed(
        "weights", "load", "y", is_config_fault=True, evidence=["CUDA out of memory"], bounds={"x": 1.0}
    )
    failed_one = run_trial(plan(*ALL), Scripted(boot_failure=error))
    assert isinstance(failed_one, Infeasible) and failed_one.logs == {"server": "2 calls"}
    assert (failed_one.evidence, failed_one.bounds) == (("CUDA out of memory",), {"x": 1.0})
    assert run_trial(plan("steady"), Scripted()).logs == {"server": "4 calls"}
