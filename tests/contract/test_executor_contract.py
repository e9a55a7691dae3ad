"""One suite over every Executor: the same plans come to the same outcomes, whatever happens to the workers."""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from optimizer.cluster.executor import Executor
from optimizer.cluster.inline import InlineExecutor
from optimizer.cluster.ray_executor import RayExecutor
from optimizer.engines.build import SimulatedEngineSpec
from optimizer.engines.engine import Instance, LoadPlan, Placement
from optimizer.engines.simulator.engine import SimulatorSpec
from optimizer.errors import Unavailable
from optimizer.processes import wait_until_ended
from optimizer.trial import Broken, Infeasible, Measured, Outcome, TrialPlan
from optimizer.workload.trace import Trace
from search_spaces.config import Config
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model

sys.path.insert(0, str(Path(__file__).parent))
from faulty_engines import FaultyEngineSpec

pytestmark = [pytest.mark.ray, pytest.mark.slow]

N_SLOTS = 2
SIMULATOR = SimulatedEngineSpec(SimulatorSpec(model=find_model("Qwen3-8B"), gpu=find_gpu("A100-80")))


def load(seed: int = 0, n: int = 40) -> LoadPlan:
    rng = np.random.default_rng(seed)
    trace = Trace(
        arrival_s=np.sort(rng.uniform(0.0, 10.0, n)) - 0.0,
        prompt_tokens=rng.integers(50, 800, n).astype(np.int32),
        output_tokens=rng.integers(5, 60, n).astype(np.int32),
        tenant=np.zeros(n, np.int16),
    )
    trace = trace.shifted(-float(trace.arrival_s[0]))
    return LoadPlan("steady", trace, n_warmup=0, offered_per_s=n / 10.0, time_limit_s=120.0)


def plan(trial: int, fault: str = "server", max_num_seqs: int = 32) -> TrialPlan:
    config = Config({"max_num_seqs": max_num_seqs, "max_num_batched_tokens": 2048, "max_model_len": 4096})
    placement = Placement((Instance(fault, config, ("default",)),))
    return TrialPlan(trial=trial, run=0, purpose="search", placement=placement, loads=(load(),), seed=trial)


@pytest.fixture(scope="module", params=["inline", "ray"])
def shared(request: pytest.FixtureRequest) -> Iterator[Executor]:
    spec = FaultyEngineSpec(SIMULATOR)
    if request.param == "inline":
        executor: Any = InlineExecutor(spec)
    else:
        executor = RayExecutor(spec, study="contract", n_slots=N_SLOTS)
    with executor:
        yield executor


@pytest.fixture
def executor(shared: Executor) -> Iterator[Executor]:
    yield shared
    shared.cancel_all()


on_ray = pytest.mark.parametrize("shared", ["ray"], indirect=True)
"""Only processes can be killed."""


@pytest.fixture
def ray_executor(executor: Executor) -> RayExecutor:
    assert isinstance(executor, RayExecutor)
    return executor


def run(executor: Executor, *plans: TrialPlan, within_s: float = 60.0) -> dict[int, Outcome]:
    for p in plans:
        executor.submit(p)
    return collect(executor, len(plans), within_s)


def collect(executor: Executor, n: int, within_s: float = 60.0) -> dict[int, Outcome]:
    until = time.monotonic() + within_s
    found: dict[int, Outcome] = {}
    while len(found) < n and time.monotonic() < until:
        for finished in executor.wait(5.0):
            assert finished.plan.trial not in found, "told twice"
            found[finished.plan.trial] = finished.outcome
    return found


def flat(value: Any) -> Any:
    """A value that `==` compares, arrays and records included."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if is_dataclass(value):
        return type(value).__name__, {f.name: flat(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {k: flat(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [flat(v) for v in value]
    return value


def what(outcome: Outcome) -> Any:
    """The outcome without where and how fast it was computed."""
    return flat(replace(outcome, wall_s=0.0, worker=""))


@pytest.fixture(scope="module")
def expected() -> dict[int, Any]:
    """Each plan run alone, by an engine of its own."""
    found = {}
    for trial, seqs in enumerate((1, 4, 32, 128, 256)):
        with InlineExecutor(SIMULATOR) as alone:
            found[trial] = what(run(alone, plan(trial, max_num_seqs=seqs))[trial])
    return found


def test_the_same_plans_come_to_the_same_outcomes_in_any_order(executor: Executor, expected: dict[int, Any]) -> None:
    plans = [plan(trial, max_num_seqs=seqs) for trial, seqs in enumerate((1, 4, 32, 128, 256))]
    assert len(plans) > N_SLOTS
    assert {k: what(v) for k, v in run(executor, *plans).items()} == expected
    assert {k: what(v) for k, v in run(executor, *reversed(plans)).items()} == expected
    assert len({str(v) for v in expected.values()}) == len(expected)


def test_an_outcome_is_measured_names_its_worker_and_can_be_pickled(executor: Executor) -> None:
    outcome = run(executor, plan(3))[3]
    assert isinstance(outcome, Measured)
    assert outcome.worker == "inline" or outcome.worker.startswith("ray-")
    phase = outcome.measurement.phases["steady"]
    assert len(phase.records) == 40 and all(r.token_times_s.flags.writeable for r in phase.records)
    assert what(pickle.loads(pickle.dumps(outcome))) == what(outcome)


def test_waiting_with_nothing_outstanding_returns_at_once(executor: Executor) -> None:
    start_s = time.monotonic()
    assert executor.wait(30.0) == ()
    assert time.monotonic() - start_s < 1.0
    assert executor.n_outstanding == 0 and executor.n_slots >= 1


def test_everything_submitted_is_outstanding_until_it_is_told(executor: Executor) -> None:
    for trial in range(4):
        executor.submit(plan(trial))
    assert executor.n_outstanding == 4
    assert sorted(collect(executor, 4)) == [0, 1, 2, 3]
    assert executor.n_outstanding == 0


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("raise", Broken, "RuntimeError: the bug of somebody"),
        ("port-taken", Broken, "address in use"),
        ("out-of-memory", Infeasible, "weights do not fit"),
    ],
)
def test_an_engine_that_fails_is_an_outcome(executor: Executor, fault: str, kind: type[Outcome], said: str) -> None:
    outcomes = run(executor, plan(0, fault), plan(1))
    assert type(outcomes[0]) is kind and said in outcomes[0].cause  # type: ignore[attr-defined]
    assert isinstance(outcomes[1], Measured)


def test_after_cancelling_nothing_is_outstanding_and_the_next_plan_runs(executor: Executor) -> None:
    for trial in range(5):
        executor.submit(plan(trial))
    executor.cancel_all()
    assert executor.n_outstanding == 0 and executor.wait(0.2) == ()
    assert list(run(executor, plan(7))) == [7]


@on_ray
@pytest.mark.parametrize("fault", ["killed", "exit"])
def test_a_lost_worker_breaks_its_plan_only_and_once(ray_executor: RayExecutor, fault: str) -> None:  # case OPT-09
    outcomes = run(ray_executor, plan(0), plan(1, fault), plan(2), plan(3))
    assert [type(outcomes[t]) for t in range(4)] == [Measured, Broken, Measured, Measured]
    assert "lost" in outcomes[1].cause and "\n" not in outcomes[1].cause  # type: ignore[attr-defined]
    assert ray_executor.wait(0.3) == () and ray_executor.n_slots == N_SLOTS


@on_ray
def test_a_worker_killed_from_outside_breaks_its_plan(ray_executor: RayExecutor) -> None:  # cases OPT-09, PROC-04
    ray_executor.submit(plan(0, "hang"))
    assert ray_executor.wait(1.0) == ()
    busy = next(slot for slot in ray_executor._slots if slot.stage == "run")
    assert busy.badge is not None
    worker = psutil.Process(busy.badge.pid)
    worker.kill()
    outcome = collect(ray_executor, 1)[0]
    assert isinstance(outcome, Broken) and busy.name in outcome.cause
    assert isinstance(run(ray_executor, plan(1))[1], Measured)


@on_ray
def test_cancelling_interrupts_workers_that_hang(ray_executor: RayExecutor) -> None:
    for trial in range(3):
        ray_executor.submit(plan(trial, "hang"))
    assert ray_executor.wait(0.5) == ()
    workers = {psutil.Process(s.badge.pid) for s in ray_executor._slots if s.badge and s.stage == "run"}
    ray_executor.cancel_all()
    assert ray_executor.n_outstanding == 0
    assert isinstance(run(ray_executor, plan(5))[5], Measured)
    assert workers and wait_until_ended(lambda: workers, 10)


@on_ray
def test_ray_keeps_its_notices_to_itself(ray_executor: RayExecutor, capfd: pytest.CaptureFixture[str]) -> None:
    run(ray_executor, plan(0, "killed"))
    time.sleep(0.5)
    assert capfd.readouterr() == ("", "")


@on_ray
def test_workers_stay_light_and_single_threaded(ray_executor: RayExecutor) -> None:
    outcome = run(ray_executor, plan(0, "modules"))[0]
    assert isinstance(outcome, Infeasible) and outcome.cause == "loaded [], threads 1"


@on_ray
def test_each_worker_has_shown_the_drivers_own_badge(ray_executor: RayExecutor) -> None:
    run(ray_executor, *[plan(t) for t in range(4)])
    badges = [slot.badge for slot in ray_executor._slots]
    assert all(
        b is not None and b.identity.package_hash == ray_executor._admission.driver.identity.package_hash
        for b in badges
    )
    assert len({b.pid for b in badges if b} | {os.getpid()}) == N_SLOTS + 1


@on_ray
def test_a_plan_that_kills_every_worker_ends_in_a_clear_refusal(ray_executor: RayExecutor) -> None:
    """Last of the module: it uses the slots up."""
    outcomes = run(ray_executor, *[plan(t, "killed") for t in range(10)])
    assert len(outcomes) == 10 and all(isinstance(o, Broken) for o in outcomes.values())
    assert ray_executor.n_slots == 0 and ray_executor.n_outstanding == 0
    with pytest.raises(Unavailable, match=r"no worker is left .*3 workers lost in a row"):
        ray_executor.submit(plan(11))
