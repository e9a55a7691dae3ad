"""The search on the simulator: baselines, stable stage, sampled trials; resumed, broken, exhausted."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from objectives.hypervolume import Axes
from objectives.measurement import LOADS
from optimizer.cluster.executor import NoSlotLeft
from optimizer.engines.build import EngineSpec
from optimizer.engines.engine import BootReport, Engine, Placement
from optimizer.errors import EngineFailed
from optimizer.study.calibration import Calibration
from optimizer.study.distributions import standing_distributions
from optimizer.study.events import Notice, StageStarted, TrialFinished, TrialStarted
from optimizer.study.proposer import TpeProposer
from optimizer.study.record import StudyRecord
from optimizer.study.search import Search, SearchPlan
from optimizer.study.searched import GridOfSpace, argument_samples
from optimizer.study.setup import Setup
from optimizer.study.stages import seqs_names
from optimizer.study.terms import Terms
from optimizer.trial import StopRule
from search_spaces.overrides import parse_overrides
from tests.forwarding_engine import ForwardingEngine
from tests.small_study import Bench, MoodyEngineSpec, bench, calibrator, engine_of, judge_of, small_setup


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return small_setup(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def calibration(setup: Setup, tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    return calibrator(bench(tmp_path_factory.mktemp("calibrated"), setup)).calibrate(None)


@dataclass
class Studied:
    """A search that can be run, killed and gone on with in one folder."""

    path: Path
    setup: Setup
    calibration: Calibration
    spec: EngineSpec | None = None

    def open(self) -> tuple[Bench, StudyRecord]:
        made = bench(self.path, self.setup, self.spec)
        judge = judge_of(self.setup, self.calibration)
        samples = [*argument_samples(self.setup.space), *(p.parameters() for _, p, _ in self.setup.baselines)]
        metrics = tuple(o.metric for o in judge.objectives)
        terms = Terms(judge.objectives, metrics, judge.constraint_names, distributions=standing_distributions(samples))
        return made, StudyRecord.open(made.folder.storage_url, "study", terms)

    def search(self, made: Bench, record: StudyRecord, n_trials: int, n_stable: int = 2) -> Search:
        judge, space = judge_of(self.setup, self.calibration), GridOfSpace(self.setup.space)
        n_levels = max(len(space.grid[name]) for name in seqs_names(space.grid))
        plan = SearchPlan(
            baselines=self.setup.baselines,
            base_point=self.setup.base_point,
            grid=space.grid,
            place=self.setup.place,
            loads=self.setup.traffic.loads(self.calibration.rate_per_s, LOADS),
            n_trials=n_trials,
            n_stable=n_stable if n_levels > 1 else 0,
            n_levels=n_levels,
            floors=self.calibration.noise,
            hypervolume=Axes(judge.objectives, self.calibration.values).volume,
            seed=0,
            stop_rule=StopRule(),
        )
        proposer = TpeProposer(space, [o.direction for o in judge.objectives], 0, 3)
        return Search(plan, record, proposer, judge, made.executor, made.runs, made.events.append)

    def run(self, n_trials: int, n_stable: int = 2) -> tuple[Bench, StudyRecord, str]:
        made, record = self.open()
        reason = self.search(made, record, n_trials, n_stable).run()
        return made, record, reason

    def close(self, made: Bench, record: StudyRecord) -> None:
        record.close_storage()
        made.folder.release()


Make = Callable[..., Studied]


@pytest.fixture
def study(tmp_path: Path, setup: Setup, calibration: Calibration) -> Iterator[Make]:
    def make(*choices: str, spec: EngineSpec | None = None, path: Path = tmp_path) -> Studied:
        own = small_setup(tmp_path, overrides=parse_overrides(choices=choices)) if choices else setup
        return Studied(path, own, calibration, spec)

    yield make


def finished(made: Bench) -> list[TrialFinished]:
    return [e for e in made.events if isinstance(e, TrialFinished)]


def refusing(setup: Setup, *seqs: int) -> EngineSpec:
    return MoodyEngineSpec(engine_of(setup), refused=frozenset(seqs))


def test_baselines_then_the_stable_stage_then_the_sampler_to_the_total(study: Make) -> None:
    made, record, reason = study().run(6)
    trials = record.trials()
    assert [t.number for t in trials] == list(range(6))
    assert [t.attributes.get("baseline") for t in trials[:2]] == ["vLLM defaults", "safe"]
    assert [t.stage for t in trials] == ["baseline"] * 2 + ["stable"] + ["fast"] * 3
    assert reason == "all 6 trials are done"
    assert [e.stage for e in made.events if isinstance(e, StageStarted)] == ["baseline", "stable", "fast"]
    assert [e.n_done for e in finished(made)] == [1, 2, 3, 4, 5, 6]
    assert [e.label for e in finished(made)] == ["vLLM defaults", "safe", *[""] * 4]
    assert all(t.is_finished for t in trials)


def test_the_parameters_are_exactly_what_the_servers_ran_with(study: Make) -> None:
    studied = study()
    _, record, _ = studied.run(5)
    for trial in record.trials()[1:]:
        if trial.point is not None:
            assert dict(trial.parameters) == studied.setup.place(dict(trial.point)).parameters()
    assert record.trials()[0].parameters["gpu_memory_utilization"] == 0.92


def test_every_event_tells_how_the_study_stands(study: Make) -> None:
    made, record, _ = study().run(6)
    last = finished(made)[-1]
    feasible = [t for t in record.trials() if t.is_feasible]
    assert (last.n_total, last.n_done, last.n_feasible) == (6, 6, len(feasible))
    assert last.n_front == len(last.front) >= 1
    assert {trial for trial, _ in last.front} <= {t.number for t in feasible}
    assert 0 < last.hypervolume <= 1
    assert [e.hypervolume for e in finished(made)] == sorted(e.hypervolume for e in finished(made))
    assert finished(made)[0].seconds_left is None and last.seconds_left == 0
    for event, trial in zip(finished(made), record.trials(), strict=True):
        assert event.is_feasible == trial.is_feasible == (event.reason == "")


def test_the_same_seed_proposes_the_same_trials(study: Make, tmp_path: Path) -> None:
    runs = [study(path=tmp_path / name).run(6)[1].trials() for name in ("a", "b")]
    assert [t.parameters for t in runs[0]] == [t.parameters for t in runs[1]]
    assert [t.values for t in runs[0]] == [t.values for t in runs[1]]


def test_no_configuration_is_run_twice_and_a_small_space_ends_the_study(study: Make) -> None:  # case OPT-05
    studied = study("max_num_seqs=16,32", "max_num_batched_tokens=512", "watermark=0,0.02",
                    "kv_cache_memory_bytes=4G", "long_prefill_token_threshold=0")  # fmt: skip
    made, record, reason = studied.run(40)
    seen = [repr(sorted(t.parameters.items())) for t in record.trials()]
    assert len(seen) == len(set(seen)) == 1 + 4, "the defaults lie in no space of exact bytes, the safe one is one of 4"
    assert reason == "space exhausted after 4"
    assert any("space exhausted after 4: the study ends before 40 trials" in e.text
               for e in made.events if isinstance(e, Notice))  # fmt: skip


def test_a_region_that_only_fails_is_left_alone_after_two_failures_and_one_more(study: Make, setup: Setup) -> None:
    """Case TOOL-02."""
    seqs = sorted({int(p.values()[-1]) for p in setup.space.parameters if p.name == "max_num_seqs"})
    studied = study(spec=refusing(setup, *seqs))
    _, record, _ = studied.run(24)
    failed = [t for t in record.trials() if t.state == "infeasible" and t.parameters["max_num_seqs"] in seqs]
    assert 1 <= len(failed) <= 3
    assert all(t.failure == "kv_capacity" and t.total_violation > 0 for t in failed)


def test_some_that_fail_do_not_end_the_study_and_only_what_is_missing_is_run_later(
    study: Make, setup: Setup
) -> None:  # case TOOL-07
    studied = study("max_num_seqs=8,16,32", "max_num_batched_tokens=512,1024", "watermark=0,0.02",
                    "kv_cache_memory_bytes=4G", "long_prefill_token_threshold=0",
                    spec=refusing(setup, 16))  # fmt: skip
    made, record, _ = studied.run(8, 0)
    studied.close(made, record)
    later, record, reason = studied.run(40, 0)
    trials = record.trials()
    assert reason == "space exhausted after 11 (1 more lie where every start failed)"
    assert len(trials) == 1 + 11
    assert len(finished(later)) == len(trials) - 8
    own = trials[1:]
    assert {t.state for t in own if t.parameters["max_num_seqs"] == 16} == {"infeasible"}
    assert all(t.state in ("measured", "stopped") for t in own if t.parameters["max_num_seqs"] != 16)


def test_the_stable_stage_finds_how_far_up_the_peak_is_survived(study: Make, setup: Setup) -> None:
    seqs = next(p.values() for p in setup.space.parameters if p.name == "max_num_seqs")
    studied = study(spec=refusing(setup, *seqs[len(seqs) // 2 :]))  # type: ignore[arg-type]
    made, record, _ = studied.run(16, 8)
    notice = next(e.text for e in made.events if isinstance(e, Notice) and e.text.startswith("stable region"))
    highest = seqs[len(seqs) // 2 - 1]
    assert notice == f"stable region: the peak is survived up to max_num_seqs {highest}"
    sampled = [t for t in record.trials() if t.stage == "fast"]
    assert sampled
    within = [t for t in sampled if t.parameters["max_num_seqs"] <= seqs[len(seqs) // 2]]  # type: ignore[operator]
    assert len(within) >= len(sampled) - 1


def test_a_probe_of_the_stable_stage_replays_the_peak_even_where_the_rate_is_too_much(
    study: Make, calibration: Calibration
) -> None:
    studied = replace(study(), calibration=replace(calibration, rate_per_s=8 * calibration.rate_per_s))
    _, record, _ = studied.run(5)
    probes = [t for t in record.trials() if t.stage == "stable"]
    assert probes and all(t.metrics["stress_preemptions_per_request"] is not None for t in probes)
    assert any(t.state == "stopped" for t in record.trials() if t.stage == "fast")


def test_a_machine_that_breaks_is_retried_then_failed_and_held_against_nobody(study: Make, setup: Setup) -> None:
    seqs = next(p.values() for p in setup.space.parameters if p.name == "max_num_seqs")
    studied = study(spec=MoodyEngineSpec(engine_of(setup), breaking=frozenset({int(seqs[-1])})))
    made, record, _ = studied.run(6, 1)
    broken = [t for t in record.trials() if t.state == "broken"]
    assert broken and broken[0].stage == "stable"
    assert not broken[0].violations and broken[0].failure is None
    told = next(e for e in finished(made) if e.trial == broken[0].number)
    assert told.state == "broken" and "port 8000 is taken" in told.reason and told.values is None
    assert not any("stable region" in e.text for e in made.events if isinstance(e, Notice))


def test_what_was_running_when_the_driver_died_runs_again_under_its_number(study: Make) -> None:  # case OPT-09
    studied = study()
    made, record = studied.open()
    dying = studied.search(made, record, 6)
    dying._restore()
    for _ in range(2):
        assert dying._start_next()
        for done in made.executor.wait(1.0):
            dying._finish(done.plan, done.outcome)
    assert dying._start_next()
    studied.close(made, record)
    later, record, _ = studied.run(6)
    trials = record.trials()
    assert [t.number for t in trials] == list(range(6))
    assert all(t.is_finished for t in trials)
    assert [e.trial for e in later.events if isinstance(e, TrialStarted)] == [2, 3, 4, 5]
    assert [t.n_lost for t in trials] == [0, 0, 1, 0, 0, 0]


def test_a_run_that_was_stored_just_before_the_driver_died_is_only_told(study: Make) -> None:
    studied = study()
    made, record = studied.open()
    dying = studied.search(made, record, 3)
    dying._restore()
    assert dying._start_next()
    done = made.executor.wait(1.0)[0]
    made.runs.keep(done.plan, done.outcome)
    studied.close(made, record)
    later, record, _ = studied.run(1)
    assert later.runs.n_kept == 0
    assert record.trial(0).state == "measured"


def test_a_resumed_search_goes_on_as_one_that_was_never_stopped(study: Make, tmp_path: Path) -> None:
    halves = study(path=tmp_path / "halves")
    halves.close(*halves.run(4)[:2])
    _, record, reason = halves.run(8)
    assert reason == "all 8 trials are done"
    _, whole, _ = study(path=tmp_path / "whole").run(8)
    assert [t.parameters for t in record.trials()] == [t.parameters for t in whole.trials()]


def test_a_finished_search_starts_nothing(study: Make) -> None:
    studied = study()
    studied.close(*studied.run(3)[:2])
    made, record, reason = studied.run(3)
    assert made.events == [] and reason == "all 3 trials are done"
    assert len(record.trials()) == 3


def test_a_late_result_of_a_closed_trial_is_dropped(study: Make) -> None:  # case OPT-09
    studied = study()
    made, record = studied.open()
    search = studied.search(made, record, 1)
    search.run()
    plan = search._trial_plan(0, search._proposal_of(record.trial(0)))
    made.executor.submit(plan)
    late = made.executor.wait(1.0)[0]
    before = len(made.events)
    search._finish(late.plan, late.outcome)
    assert len(made.events) == before and len(record.trials()) == 1


def test_a_copy_of_the_folder_can_be_gone_on_with(study: Make, tmp_path: Path) -> None:
    studied = study(path=tmp_path / "here")
    studied.close(*studied.run(3)[:2])
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    _, record, _ = replace(studied, path=tmp_path / "there").run(5)
    assert len(record.trials()) == 5


def seqs_tried(record: StudyRecord, stage: str) -> list[int]:
    return [int(t.parameters["max_num_seqs"]) for t in record.trials() if t.stage == stage]  # type: ignore[arg-type]


def test_a_bound_that_a_failure_named_is_never_exceeded_again(study: Make, setup: Setup) -> None:  # case OOM-21
    studied = study(spec=MoodyEngineSpec(engine_of(setup), at_most=20))
    made, record, _ = studied.run(9)
    memory = {t.parameters.get("kv_cache_memory_bytes") for t in record.trials()}
    assert len(memory) > 1, "the bound is learned anew for each size of the cache"
    for size in memory:
        own = [t for t in record.trials() if t.parameters.get("kv_cache_memory_bytes") == size]
        assert sum(int(t.parameters["max_num_seqs"]) > 20 for t in own) <= 1, f"told once at {size}"  # type: ignore[call-overload]
    told = [e.text for e in made.events if isinstance(e, Notice) and "rules out max_num_seqs above 20" in e.text]
    assert told


def test_what_was_learned_survives_a_resume(study: Make, setup: Setup) -> None:
    studied = study("max_num_batched_tokens=2048", "kv_cache_memory_bytes=3221225472",
                    spec=MoodyEngineSpec(engine_of(setup), at_most=20))  # fmt: skip
    made, record, _ = studied.run(3)
    before = [t for t in record.trials() if t.failure and int(t.parameters["max_num_seqs"]) > 20]  # type: ignore[call-overload]
    assert before and before[-1].bounds == {"max_num_seqs_at_most": 20} and before[-1].failed_in == "graph_capture"
    studied.close(made, record)
    made, record, _ = studied.run(8)
    assert all(int(t.parameters["max_num_seqs"]) <= 20 for t in record.trials()[3:])  # type: ignore[call-overload]


@dataclass(frozen=True)
class OverweightSpec:
    """Weights that never fit."""

    inner: EngineSpec
    n_gpus: int = 0

    def build(self) -> Engine:
        return Overweight(self.inner.build())

    def build_for(self, slot: int, n_slots: int, gpu_uuids: tuple[str, ...]) -> Engine:
        return self.build()


class Overweight(ForwardingEngine):
    def boot(self, placement: Placement, seed: int) -> BootReport:
        raise EngineFailed("weights", "load", "not enough GPU memory", is_config_fault=True)


def test_after_weights_that_do_not_fit_nothing_with_them_is_started(study: Make, setup: Setup) -> None:  # case OOM-01
    made, record, reason = study(spec=OverweightSpec(engine_of(setup))).run(9)
    assert len(record.trials()) == 2, "the baselines; every other trial has the same checkpoint"
    assert reason.startswith("space exhausted after ") and "more lie where every start failed" in reason
    assert any("rules out every other configuration with this checkpoint" in e.text for e in made.events if isinstance(e, Notice))  # fmt: skip


def test_a_search_whose_last_slot_is_given_up_says_so_and_can_go_on(study: Make, setup: Setup) -> None:
    studied = study(spec=MoodyEngineSpec(engine_of(setup), n_broken=99, broken_kind="quarantine"))
    made, record = studied.open()
    with pytest.raises(NoSlotLeft, match="no worker is left"):
        studied.search(made, record, 4).run()
    assert [t.state for t in record.trials()] == ["running"], "open for a resume"
    studied.close(made, record)
    healed = replace(studied, spec=None)
    _, record, reason = healed.run(4)
    assert reason == "all 4 trials are done" and all(t.is_finished for t in record.trials())
