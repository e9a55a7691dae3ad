"""Several slots at once: used while the reference measures there what it measures alone, else fewer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from optimizer.cluster.executor import Finished, WorkerState
from optimizer.cluster.inline import InlineExecutor
from optimizer.study.calibration import Calibration
from optimizer.study.events import Event, Notice
from optimizer.study.runs import Runs
from optimizer.study.setup import Setup
from optimizer.study.side_by_side import hold_to
from optimizer.trial import Broken, Measured, TrialPlan
from tests.small_study import Bench, bench, calibrator, small_setup


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return small_setup(tmp_path_factory.mktemp("small"))


@dataclass
class Crowded:
    """Slots of the simulator whose engines are slowed as more than `quiet` of them run at once."""

    inner: InlineExecutor
    n_slots: int
    quiet: int
    n_lost: int = 0
    queue: list[TrialPlan] = field(default_factory=list)
    at_once: list[int] = field(default_factory=list)
    plans: list[TrialPlan] = field(default_factory=list)

    notices: tuple[str, ...] = ()
    worker_states: Mapping[str, WorkerState] = field(default_factory=dict)

    @property
    def n_outstanding(self) -> int:
        return len(self.queue)

    def submit(self, plan: TrialPlan, delay_s: float = 0.0) -> None:
        self.queue.append(plan)
        self.plans.append(plan)

    def limit(self, n_slots: int) -> None:
        self.n_slots = n_slots

    def wait(self, timeout_s: float) -> tuple[Finished, ...]:
        now, self.queue = self.queue[: self.n_slots], self.queue[self.n_slots :]
        self.at_once.append(len(now))
        for plan in now:
            self.inner.submit(plan)
        done = [f for _ in now for f in self.inner.wait(timeout_s)]
        return tuple(self._slowed(f) for f in done) if len(now) > self.quiet else tuple(done)

    def _slowed(self, finished: Finished) -> Finished:
        outcome = finished.outcome
        if self.n_lost:
            return Finished(finished.plan, Broken(cause="lost", kind="hang"))
        assert isinstance(outcome, Measured)
        phases = dict(outcome.measurement.phases)
        steady = phases["steady"]
        late = tuple(
            replace(r, token_times_s=r.scheduled_s + 2 * (r.token_times_s - r.scheduled_s)) for r in steady.records
        )
        phases["steady"] = replace(steady, records=late)
        return Finished(finished.plan, replace(outcome, measurement=replace(outcome.measurement, phases=phases)))

    def cancel_all(self) -> None:
        self.queue.clear()

    def close(self) -> None:
        self.inner.close()

    def __enter__(self) -> Crowded:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def calibrated(
    path: Path, setup: Setup, n_slots: int, quiet: int, **moods: int
) -> tuple[Crowded, Calibration, list[Event]]:
    made: Bench = bench(path, setup)
    executor = Crowded(made.executor, n_slots, quiet, **moods)
    runs = Runs(executor, made.folder, made.events.append)
    return executor, calibrator(made, runs=runs, is_real=True).calibrate(None), made.events


def notices(events: Sequence[Event]) -> list[str]:
    return [e.text for e in events if isinstance(e, Notice) and "at a time" in e.text]


def test_repeats_run_alone_and_on_servers_of_their_own(setup: Setup, tmp_path: Path) -> None:
    executor, found, events = calibrated(tmp_path, setup, n_slots=2, quiet=2)
    assert executor.at_once[:-1] == [1] * (len(executor.at_once) - 1) and executor.at_once[-1] == 2
    repeats = [p.is_fresh for p in executor.plans if 200 <= p.run < 300]
    assert repeats == [False, True], "the first may take what the search for R left running"
    assert found.n_slots == 2 and notices(events) == ["2 trials at a time measure what one alone does"]
    assert Calibration.from_json(found.to_json()) == found


def test_slots_that_disturb_each_other_are_halved_until_they_do_not(setup: Setup, tmp_path: Path) -> None:
    executor, found, events = calibrated(tmp_path, setup, n_slots=4, quiet=2)
    assert found.n_slots == executor.n_slots == 2
    first, second = notices(events)
    assert first.startswith("4 trials at a time disturb each other (P99 TTFT ms +") and first.endswith(
        ": 2 at a time from now on"
    )
    assert second == "2 trials at a time measure what one alone does"


def test_what_cannot_be_measured_together_is_not_run_together(setup: Setup, tmp_path: Path) -> None:
    executor, found, events = calibrated(tmp_path, setup, n_slots=2, quiet=1, n_lost=1)
    assert found.n_slots == executor.n_slots == 1
    assert notices(events) == [
        "2 trials at a time disturb each other (it could not be measured): 1 at a time from now on"
    ]


def test_one_slot_is_one_and_the_simulator_is_not_looked_at(setup: Setup, tmp_path: Path) -> None:
    _, found, _ = calibrated(tmp_path, setup, n_slots=1, quiet=1)
    assert found.n_slots == 1
    assert calibrator(bench(tmp_path / "simulated", setup)).calibrate(None).n_slots is None


def test_a_resume_keeps_to_what_was_found(setup: Setup, tmp_path: Path) -> None:
    made = bench(tmp_path, setup)
    executor = Crowded(made.executor, 4, 4)
    runs = Runs(executor, made.folder, made.events.append)
    for found, expected in ((None, 4), (8, 4), (2, 2)):
        hold_to(found, runs, made.events.append)
        assert executor.n_slots == expected
    assert notices(made.events) == ["2 trials at a time, as calibration found; 4 slots are here"]
