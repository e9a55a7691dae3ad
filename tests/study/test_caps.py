"""Caps on the simulator: where abnormal requests break every configuration, the cap that helps and what it costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from objectives.objective import Limit
from optimizer.study.caps import LENGTH_SHARES, MAX_TURNED_AWAY, QUEUE_FACTORS, CapProbe
from optimizer.study.events import RunFinished
from optimizer.study.judge import Judge
from optimizer.study.setup import Setup
from tests.small_study import Bench, azure_rows, bench, small_setup, traffic, with_arguments

GIANTS = 5


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    """600 short requests and, all over them, five of 11,000 tokens that push everybody out of a small cache."""
    folder = tmp_path_factory.mktemp("giants")
    arrival, prompt, output = traffic(600, prompt=300, output=40, spread=0.3)
    prompt[np.linspace(20, 580, GIANTS).astype(int)] = 11_000
    (folder / "giants.csv").write_text(azure_rows(arrival, prompt, output))
    return small_setup(folder, ("trace: azure-conv", f"trace: {folder / 'giants.csv'}"))


def judge_of(setup: Setup, *limits: Limit) -> Judge:
    return Judge(setup.profile.objectives, limits, {})


def details(made: Bench) -> list[str]:
    return [e.detail for e in made.events if isinstance(e, RunFinished)]


def advice(made: Bench, judge: Judge, rate: float, seqs: int = 256) -> dict[str, float]:
    placement = with_arguments(made.setup.references[0].placement, max_num_seqs=seqs)
    found = CapProbe(3, placement, None, made.setup.traffic, rate, judge, made.runs, seed=0).advise()
    assert all(a.trial == 3 for a in found)
    return {a.text: a.turned_away_share for a in found}


def test_the_mildest_length_cap_that_helps_and_the_share_it_rejects(setup: Setup, tmp_path: Path) -> None:
    judge = judge_of(setup, Limit("steady_stall_p99_ms", at_most=700.0), Limit("stress_failed_share", at_most=0.0))
    made = bench(tmp_path, setup)
    found = advice(made, judge, rate=2.0)
    text, share = next((t, s) for t, s in found.items() if t.startswith("--max-model-len"))
    tokens = setup.traffic.recorded.prompt_tokens + setup.traffic.recorded.output_tokens
    assert share == pytest.approx(float((tokens > int(text.split()[1])).mean()))
    assert GIANTS / 600 <= share <= 0.05
    assert details(made)[0].startswith("trial 3 with --max-model-len ")


@pytest.fixture(scope="module")
def bursts(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    """Short requests at a calm rate, and every minute twenty at once."""
    folder = tmp_path_factory.mktemp("bursts")
    arrival, prompt, output = traffic(600, rate_per_s=1.5, prompt=300, output=40, spread=0.3)
    starts = np.arange(40, 400, 60.0)
    arrival[:120] = np.repeat(starts, 20) + np.tile(np.arange(20) * 0.01, starts.size)
    order = np.argsort(arrival)
    (folder / "bursts.csv").write_text(azure_rows(arrival[order], prompt[order], output[order]))
    return small_setup(folder, ("trace: azure-conv", f"trace: {folder / 'bursts.csv'}"))


def test_a_queue_cap_helps_against_bursts_and_costs_what_it_refuses(bursts: Setup, tmp_path: Path) -> None:
    judge = judge_of(bursts, Limit("steady_ttft_p99_ms", at_most=3_000.0))
    found = advice(bench(tmp_path, bursts), judge, rate=1.8, seqs=8)
    text, share = next((t, s) for t, s in found.items() if t.startswith("--max-num-queued-reqs"))
    assert 8 < int(text.split()[1]) <= 16
    assert 0 < share <= MAX_TURNED_AWAY


def test_turning_most_requests_away_is_no_advice(setup: Setup, tmp_path: Path) -> None:
    judge = judge_of(setup, Limit("steady_ttft_p99_ms", at_most=60_000.0))
    assert not any("queued" in text for text in advice(bench(tmp_path, setup), judge, rate=60.0))


def test_where_no_cap_helps_none_is_advised(setup: Setup, tmp_path: Path) -> None:
    made = bench(tmp_path, setup)
    assert advice(made, judge_of(setup, Limit("steady_ttft_p99_ms", at_most=0.001)), rate=2.0) == {}
    assert 4 <= len(details(made)) <= len(LENGTH_SHARES) + len(QUEUE_FACTORS)


def test_a_resume_repeats_no_try(setup: Setup, tmp_path: Path) -> None:
    judge = judge_of(setup, Limit("steady_ttft_p99_ms", at_most=0.001))
    first = bench(tmp_path, setup)
    advice(first, judge, 2.0)
    first.folder.release()
    later = bench(tmp_path, setup)
    advice(later, judge, 2.0)
    assert later.runs.n_kept == 0
