"""The step log: every step once, nothing of the result changed, whole or not there."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from objectives.measurement import PhaseMeasurement
from optimizer.engines.engine import Placement
from optimizer.engines.simulator.step_log import log_path
from optimizer.engines.simulator.steps import read_steps
from optimizer.errors import UserError

sys.path.insert(0, str(Path(__file__).parent))
from simulated import engine, pair, placement, plan, same, trace, with_prefixes

STARVED = {"max_model_len": 2048, "num_gpu_blocks_override": 200}


def replayed(where: Placement, tenants: tuple[str, ...] = ("default",), **fields: str) -> PhaseMeasurement:
    one = engine("A100-80", noise=1.0, **fields)
    one.boot(where, 3)
    return one.replay(plan(with_prefixes(trace(60, 6.0, tenants=tenants, outputs=(50, 200)))))


def test_every_step_is_logged_once_and_nothing_changes(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    plain, logged = replayed(placement(**STARVED)), replayed(placement(**STARVED), step_log=str(path))
    assert same(plain, logged)
    steps = read_steps(path)
    counters = logged.counters["server"]
    assert [s.index for s in steps] == list(range(len(steps)))
    assert len(steps) == counters.n_steps
    ends = [s.end_s for s in steps if s.end_s is not None]
    assert ends == sorted(ends)
    assert sum(s.n_preempted or 0 for s in steps) == counters.n_preemptions
    assert (counters.n_preemptions or 0) > 0
    assert sum(s.n_sampled or 0 for s in steps) == counters.generation_tokens
    assert min(s.n_free_blocks or 0 for s in steps) >= 0
    assert max(s.n_running or 0 for s in steps) <= 64


def test_logged_seconds_are_what_an_idle_card_takes(tmp_path: Path) -> None:
    """Synchronous: steps that follow each other without a pause take exactly their seconds."""
    path = tmp_path / "steps.jsonl"
    replayed(placement(async_scheduling=False), step_log=str(path))
    steps = read_steps(path)
    busy = [(b.end_s or 0) - (a.end_s or 0) - b.seconds for a, b in itertools.pairwise(steps)]
    assert all(pause > -1e-9 for pause in busy)
    assert sum(pause < 1e-9 for pause in busy) > 0.8 * len(busy)


def test_one_file_an_instance(tmp_path: Path) -> None:
    pattern = str(tmp_path / "{load}-{instance}.jsonl")
    phase = replayed(pair("mps"), ("chat", "batch"), step_log=pattern)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["steady-batch.jsonl", "steady-chat.jsonl"]
    for name in ("chat", "batch"):
        assert len(read_steps(log_path(pattern, "steady", name))) == phase.counters[name].n_steps


def test_off_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    replayed(placement())
    assert list(tmp_path.iterdir()) == []


def test_a_load_that_does_not_end_leaves_no_log_and_keeps_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text("older\n")
    one = engine("A100-80", step_log=str(path))
    one.boot(placement(), 0)
    load = plan(trace(10))
    from optimizer.engines.simulator import colocation

    def broken(*_: object) -> float:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(colocation, "_run_alone", broken)
        one.replay(load)
    assert path.read_text() == "older\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"step log .*: No such file or directory; name a file in a folder"):
        replayed(placement(), step_log=str(tmp_path / "none" / "steps.jsonl"))


def test_an_instance_named_like_a_path_stays_in_the_folder() -> None:
    assert log_path("logs/{load}.{instance}", "steady", "../a") == Path("logs/steady.../a".replace("/a", "_a"))
