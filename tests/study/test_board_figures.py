"""Figures beside the front: which argument moves an objective, a load over time, where the engine's time went."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from objectives.measurement import EngineSample, PhaseMeasurement
from optimizer.engines.engine import Instance, Placement
from optimizer.study.board_knobs import GIB, knob_figure, movers
from optimizer.study.board_text import LEAST_TRIALS, Standing
from optimizer.study.board_timeline import N_POINTS, engine_time, load_figure, time_figure
from optimizer.study.folder import StudyFolder
from optimizer.study.trial_record import TrialRecord
from optimizer.trial import TrialPlan
from search_spaces.config import Config
from search_spaces.parameter import Value
from tests.study.recording import INFEASIBLE, MEASURED, PARAMETERS, terms

MAX_CHARS = 60_000
"""The dashboard keeps a figure in pieces of 2,045 characters."""


def recorded(
    number: int, parameters: dict[str, Value], values: tuple[float, ...] | None, stage: str = ""
) -> TrialRecord:
    return TrialRecord(number, "measured", parameters, values, {}, {}, "", None, None, stage)


def standing(n: int, seed: int = 1) -> Standing:
    """Throughput follows the sequences and the bytes of KV cache, TTFT nothing, ITL a flag."""
    rng = np.random.default_rng(seed)
    trials = []
    for i in range(n):
        seqs, kv, flag = int(rng.choice([32, 64, 128])), int(rng.integers(4, 40) * GIB // 4), bool(rng.integers(2))
        parameters: dict[str, Value] = {
            "max_num_seqs": seqs,
            "kv_cache_memory_bytes": kv,
            "enable_prefix_caching": flag,
        }
        values = (seqs + 10 * kv / GIB, rng.uniform(100, 900), 20.0 + 30.0 * flag + rng.uniform(0, 5))
        trials.append(recorded(i, {**PARAMETERS, **parameters}, values))
    return Standing(tuple(trials), tuple(trials[:2]), {0: "knee"})


def test_what_moves_an_objective_is_found() -> None:
    found = standing(60)
    assert {m.argument for m in movers(found, 0)[:2]} == {"max_num_seqs", "kv_cache_memory_bytes"}
    (flag, *rest) = movers(found, 2)
    assert flag.argument == "enable_prefix_caching" and flag.share > 0.6
    assert all(m.share < 0.2 for m in (*movers(found, 1), *rest)), "chance explains little"
    assert "max_num_batched_tokens" not in {m.argument for m in movers(found, 0)}, "it never changed"


def test_too_few_trials_tell_nothing() -> None:
    assert movers(standing(LEAST_TRIALS - 1), 0) == []
    assert movers(Standing((), (), {}), 0) == []


@pytest.mark.parametrize(("argument", "unit"), [("kv_cache_memory_bytes", ", GiB"), ("enable_prefix_caching", "")])
def test_every_measured_trial_is_drawn_against_the_argument(argument: str, unit: str) -> None:
    found = standing(60)
    (mover,) = [m for i in range(3) for m in movers(found, i) if m.argument == argument][:1]
    figure = knob_figure(found, terms(), 0, mover)
    assert sum(len(trace.x) for trace in figure.data) == 60
    assert figure.layout.xaxis.title.text.startswith(argument + unit)
    if unit:
        assert max(max(trace.x) for trace in figure.data) <= 10.0, "in GiB"
    else:
        assert list(figure.layout.xaxis.ticktext) == ["False", "True"]


def test_a_trial_without_the_argument_is_left_out() -> None:
    found = standing(20)
    bare = replace(found.trials[3], parameters={"max_num_seqs": 32})
    mixed = replace(found, trials=(*found.trials[:3], bare, *found.trials[4:]))
    mover = movers(mixed, 2)[0]
    assert sum(len(trace.x) for trace in knob_figure(mixed, terms(), 2, mover).data) == 19


def test_figures_of_many_trials_stay_small() -> None:
    found = standing(3000)
    mover = movers(found, 0)[0]
    assert len(knob_figure(found, terms(), 0, mover).to_json()) < MAX_CHARS


def stress(n: int) -> PhaseMeasurement:
    samples = [
        EngineSample(t * 0.05, name, float(t % 60), float(t % 7), 0.01 * (t % 100), float(5 + t // 100))
        for t in range(n)
        for name in ("chat", "batch")
    ]
    return PhaseMeasurement("stress", (), 1, None, 0.0, 1.0, 1.0, samples=tuple(samples))


def test_a_load_over_time_keeps_its_peaks_and_stays_small() -> None:
    figure = load_figure(stress(5000), "the knee")
    assert figure is not None and len(figure.to_json()) < MAX_CHARS
    assert {trace.name for trace in figure.data} == {"chat", "batch"} and len(figure.data) == 8
    assert all(len(trace.x) <= N_POINTS for trace in figure.data)
    rows = {trace.yaxis: trace for trace in figure.data}
    assert max(rows["y"].y) == 59 and max(rows["y3"].y) == 99 and rows["y4"].y[0] == 0 and max(rows["y4"].y) == 49
    assert sum(bool(trace.showlegend) for trace in figure.data) == 2


def test_what_could_not_be_read_is_left_out() -> None:
    unread = tuple(EngineSample(float(t), "server", 3.0, None, None) for t in range(5))
    figure = load_figure(replace(stress(0), samples=unread), "x")
    assert figure is not None and len(figure.data) == 1
    assert load_figure(stress(0), "x") is None


def test_engine_time_is_counted_by_stage(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "s")
    placement = Placement((Instance("server", Config({}), ("default",)),))

    def keep(trial: int, run: int, purpose: str, **seconds: float) -> None:
        outcome = replace(INFEASIBLE if purpose == "search" else MEASURED, engine_seconds=seconds)
        folder.save_outcome(TrialPlan(trial, run, purpose, placement, (), 0), outcome)

    keep(-1, 0, "calibration", boot=60.0, steady=120.0)
    keep(0, 0, "search", boot=30.0)
    keep(1, 0, "search", boot=30.0, steady=60.0)
    keep(1, 1, "confirmation", steady=90.0)
    records = tuple(recorded(n, {}, None, s) for n, s in enumerate(("baseline", "fast")))
    spent = engine_time(folder, records)
    assert spent == {
        "calibration": {"boot": 60.0, "steady": 120.0}, "baseline": {"boot": 30.0},
        "fast": {"boot": 30.0, "steady": 60.0}, "confirmation": {"steady": 90.0},
    }  # fmt: skip
    figure = time_figure(spent, "time")
    assert figure is not None and list(figure.data[0].y) == ["confirmation", "fast", "baseline", "calibration"]
    assert {trace.name: sum(trace.x) for trace in figure.data} == {"boot": 2.0, "steady": 4.5}
    assert time_figure({"fast": {}}, "nothing") is None
