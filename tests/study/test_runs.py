"""Runs: retried when broken, stored before they are used, never repeated once stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.cluster.executor import NoSlotLeft
from optimizer.engines.engine import Placement
from optimizer.errors import UserError
from optimizer.study.events import Notice, RunFinished
from optimizer.study.runs import MAX_RETRIES, RETRY_STEP, Runs
from optimizer.study.setup import Setup
from optimizer.trial import Broken, Infeasible, Measured, TrialPlan
from tests.small_study import Bench, MoodyEngineSpec, bench, engine_of, small_setup


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return small_setup(tmp_path_factory.mktemp("small"))


def plan(setup: Setup, trial: int = 0, run: int = 0, placement: Placement | None = None) -> TrialPlan:
    loads = setup.traffic.loads(1.0, ("stress",))
    return TrialPlan(trial, run, "search", placement or setup.references[0].placement, loads, seed=trial)


def moody(path: Path, setup: Setup, **moods: object) -> Bench:
    return bench(path, setup, MoodyEngineSpec(engine_of(setup), **moods))  # type: ignore[arg-type]


def finished(made: Bench) -> list[tuple[int, int]]:
    return [(e.n_done, e.n_total) for e in made.events if isinstance(e, RunFinished)]


def test_outcomes_come_in_the_order_of_the_plans_and_are_counted(setup: Setup, tmp_path: Path) -> None:
    made = bench(tmp_path, setup)
    plans = [plan(setup, t) for t in (3, 1, 2)]
    outcomes = made.runs.carry_out(plans, "rates", lambda p, o: f"trial {p.trial}")
    assert all(isinstance(o, Measured) for o in outcomes)
    assert finished(made) == [(1, 3), (2, 3), (3, 3)]
    assert [e.detail for e in made.events if isinstance(e, RunFinished)] == ["trial 3", "trial 1", "trial 2"]
    assert made.runs.engine_s == pytest.approx(sum(sum(o.engine_seconds.values()) for o in outcomes))
    assert made.runs.n_kept == 3


@pytest.mark.parametrize("n_broken", range(1, MAX_RETRIES + 1))
def test_a_broken_run_is_tried_again_and_stored_under_its_first_number(
    n_broken: int, setup: Setup, tmp_path: Path
) -> None:
    made = moody(tmp_path, setup, n_broken=n_broken)
    outcome = made.runs.carry_out([plan(setup)], "search")[0]
    assert isinstance(outcome, Measured)
    assert made.folder.runs_of(0) == {0: "search"}
    assert finished(made) == [(1, 1)], "tries are no progress"


def test_a_run_that_stays_broken_comes_back_as_broken_and_is_tried_afresh_by_the_next_process(
    setup: Setup, tmp_path: Path
) -> None:
    made = moody(tmp_path, setup, n_broken=MAX_RETRIES + 1)
    outcome = made.runs.carry_out([plan(setup)], "search")[0]
    assert isinstance(outcome, Broken) and "port 8000 is taken" in outcome.cause
    assert made.runs.stored(plan(setup)) is None
    assert isinstance(made.runs.carry_out([plan(setup)], "search")[0], Measured)


def test_a_configuration_that_is_refused_is_not_tried_again(setup: Setup, tmp_path: Path) -> None:
    made = moody(tmp_path, setup, refused=frozenset({256}))
    assert isinstance(made.runs.carry_out([plan(setup)], "search")[0], Infeasible)
    assert made.runs.n_kept == 1
    assert isinstance(made.runs.stored(plan(setup)), Infeasible)


def test_stored_runs_are_not_repeated(setup: Setup, tmp_path: Path) -> None:
    first = bench(tmp_path, setup)
    told = first.runs.carry_out([plan(setup, 0), plan(setup, 1)], "search")
    first.folder.release()
    later = bench(tmp_path, setup)
    again = later.runs.carry_out([plan(setup, 0), plan(setup, 1), plan(setup, 2)], "search")
    assert finished(later) == [(3, 3)]
    assert [o.engine_seconds for o in again[:2]] == [o.engine_seconds for o in told]
    assert later.runs.n_kept == 1


def test_a_damaged_run_is_named(setup: Setup, tmp_path: Path) -> None:
    made = bench(tmp_path, setup)
    made.runs.carry_out([plan(setup)], "search")
    (made.folder.run_path(0, 0) / "samples.npz").write_bytes(b"half")
    with pytest.raises(UserError, match=r"run-0: the stored run is damaged .*delete this folder and --resume"):
        made.runs.stored(plan(setup))


def test_retries_run_under_numbers_of_their_own(setup: Setup, tmp_path: Path) -> None:
    made = bench(tmp_path, setup)
    assert made.runs.retry(plan(setup, run=2), Broken(cause="lost"))
    assert made.executor.wait(1.0)[0].plan.run == RETRY_STEP + 2
    last = replace(plan(setup), run=MAX_RETRIES * RETRY_STEP)
    assert not made.runs.retry(last, Broken(cause="lost"))
    assert not made.runs.retry(plan(setup), made.runs.carry_out([plan(setup)], "search")[0])


@pytest.mark.parametrize(
    ("kind", "n_tries"), [("hang", 2), ("killed", 2), ("client", 3), ("port", 3), ("version", 3), ("", 3)]
)
def test_how_often_a_run_is_repeated_depends_on_what_broke_it(
    kind: str, n_tries: int, setup: Setup, tmp_path: Path
) -> None:
    made = bench(tmp_path, setup)
    plans = [replace(plan(setup), run=k * RETRY_STEP) for k in range(4)]
    assert sum(made.runs.retry(p, Broken(cause="x", kind=kind)) for p in plans) == n_tries - 1


@pytest.mark.parametrize("kind", ["profiling_race", "neighbour", "port", "host_ram"])  # case OOM-18
def test_what_passes_by_itself_is_waited_for_longer_each_time(kind: str, setup: Setup, tmp_path: Path) -> None:
    made = bench(tmp_path, setup)
    runs = Runs(made.executor, made.folder, made.events.append, pause_s=40.0)
    pauses = []
    for n in range(2):
        assert runs.retry(replace(plan(setup), run=n * RETRY_STEP), Broken(cause="x", kind=kind))
        pauses.append(made.executor._pending.until_ready_s())
        made.executor.cancel_all()
    assert pauses == pytest.approx([40.0, 120.0], abs=2.0)
    assert runs.retry(plan(setup), Broken(cause="x", kind="hang"))
    assert made.executor._pending.until_ready_s() == 0.0


def test_a_repeat_is_on_servers_of_its_own(setup: Setup, tmp_path: Path) -> None:
    made = bench(tmp_path, setup)
    made.runs.retry(plan(setup), Broken(cause="lost"))
    taken = made.executor._pending.take("")
    assert taken is not None and taken.is_fresh


def test_without_a_slot_left_the_study_ends_in_one_line_and_its_trial_stays_open(setup: Setup, tmp_path: Path) -> None:
    made = moody(tmp_path, setup, n_broken=99, broken_kind="quarantine")
    with pytest.raises(NoSlotLeft, match=r"no worker is left .its device is quarantined: "):
        made.runs.carry_out([plan(setup), plan(setup, 1)], "search")
    assert made.folder.runs_of(0) == {}, "nothing is told, so that a resume runs it again"
    told = [e.text for e in made.events if isinstance(e, Notice)]
    assert told == ["given up: its device is quarantined: quarantine (boot): port 8000 is taken"]


def test_a_run_that_the_machine_disturbed_is_measured_once_more(setup: Setup, tmp_path: Path) -> None:  # case GPU-04
    made = bench(tmp_path, setup)
    first = plan(setup)
    outcome = made.runs.carry_out([first], "search")[0]
    assert isinstance(outcome, Measured) and not made.runs.retry(first, outcome)
    phases = {
        load: replace(phase, disturbances=("throttled: SW thermal slowdown",))
        for load, phase in outcome.measurement.phases.items()
    }
    disturbed = replace(outcome, measurement=replace(outcome.measurement, phases=phases))
    assert made.runs.retry(first, disturbed)
    assert "throttled" in next(e.text for e in made.events if isinstance(e, Notice) and "again" in e.text)
    assert not made.runs.retry(replace(first, run=first.run + RETRY_STEP), disturbed), "then it is lived with"
