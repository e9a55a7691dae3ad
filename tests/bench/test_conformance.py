"""Drawing, shrinking and judging scenarios, without vLLM."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.conformance.drawing import draw, preempts
from bench.conformance.driving import Stuck, Way, prepare, simulate
from bench.conformance.oracle import Oracle
from bench.conformance.scenario import Request, Scenario
from bench.conformance.shrinking import shrink, smaller
from bench.scheduler_conformance import main
from optimizer.cli import run_main
from optimizer.errors import Unavailable
from optimizer.processes import existing, wait_until_ended

ARGUMENTS = {"max_model_len": 128, "max_num_batched_tokens": 64, "max_num_seqs": 8, "watermark": 0.1}


def scenario_of(*requests: Request, **changes: object) -> Scenario:
    return replace(Scenario(ARGUMENTS, 16, 12, False, 16, requests), **changes)


@pytest.mark.parametrize("seed", [0, 1, -7, 123456789])
def test_a_third_of_any_number_preempts(seed: int) -> None:
    n_preempting = 0
    for number in range(24):
        n_preempting += preempts(draw(seed, number))
        assert 3 * n_preempting >= number + 1


def test_a_scenario_depends_on_seed_and_number_alone() -> None:
    assert draw(3, 5) == draw(3, 5)
    assert len({draw(3, n).as_json() for n in range(8)} | {draw(4, n).as_json() for n in range(8)}) == 16


def test_another_process_draws_the_same() -> None:
    code = "from bench.conformance.drawing import draw; print(draw(3, 2).as_json())"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == draw(3, 2).as_json()


def test_every_scenario_is_one_that_vllm_accepts() -> None:
    for number in range(150):
        scenario = draw(11, number)
        a, longest = scenario.arguments, scenario.max_model_len
        assert a["max_num_seqs"] <= a["max_num_batched_tokens"]
        assert a.get("max_num_active_seqs", 1) <= a["max_num_seqs"]
        assert a["long_prefill_token_threshold"] <= longest
        assert a["enable_chunked_prefill"] or a["max_num_batched_tokens"] >= longest
        assert scenario.n_blocks > -(-longest // scenario.block_size)
        assert all(0 < r.prompt < longest and r.output > 0 for r in scenario.requests)
        assert [r.arrival for r in scenario.requests] == sorted(r.arrival for r in scenario.requests)


@pytest.mark.parametrize("number", range(40))
def test_the_three_ways_agree(number: int) -> None:
    scenario = draw(2, number)
    logs = [simulate(scenario, way).log for way in Way]
    assert logs[0] == logs[1] == logs[2]


def test_coasting_is_not_idle() -> None:
    drive = simulate(scenario_of(Request(0, 0, 10, 60), Request(1, 0, 10, 60)), Way.COASTING)
    assert drive.n_coasted > 50


def test_what_can_never_be_scheduled_is_said() -> None:
    arguments = {**ARGUMENTS, "max_num_batched_tokens": 128, "enable_chunked_prefill": False}
    drive = prepare(scenario_of(Request(0, 0, 90, 2), arguments=arguments), Way.STEPWISE)
    drive._change_budget = lambda: None  # type: ignore[method-assign]
    drive._scheduler.budgets = replace(drive._scheduler.budgets, max_num_scheduled_tokens=8)
    with pytest.raises(Stuck):
        drive.run()


def test_shrinking_keeps_what_is_needed_and_drops_the_rest() -> None:
    big = scenario_of(
        *(Request(i, 3 * i, 50 + i, 20, (1, 2, 3)) for i in range(20)), budget_changes={3: 4}, is_async=True
    )

    def is_failing(scenario: Scenario) -> bool:
        return any(r.prompt >= 33 and r.output >= 7 for r in scenario.requests) and scenario.is_async

    small = shrink(big, is_failing).scenario
    (request,) = small.requests
    assert (request.prompt, request.output, request.arrival, request.prefix_ids) == (33, 7, 0, ())
    assert small.is_async
    assert not small.budget_changes
    assert small.arguments["watermark"] == 0.0


def test_shrinking_stops_when_nothing_smaller_fails_or_the_tries_end() -> None:
    scenario = scenario_of(Request(0, 0, 1, 1), arguments={**ARGUMENTS, "watermark": 0.0}, n_blocks=9)
    assert list(smaller(scenario)) == []
    assert shrink(scenario, lambda s: True).n_tries == 0
    assert shrink(draw(1, 0), lambda s: False, max_tries=5).n_tries == 5


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--scenarios", "0"], "--scenarios 0: give at least 1"),
        (["--scenarios", "many"], "--scenarios"),
        (["--seed", "x"], "--seed"),
        (["--scenario", "3"], "--scenario"),
        (["--vllm-python", "/no/such/python"], "--vllm-python /no/such/python"),
    ],
)
def test_bad_arguments_are_one_line(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(main, argv) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.fixture
def dying_python(tmp_path: Path) -> str:
    """A 'Python' that starts a child of its own and dies with a word."""
    path = tmp_path / "python"
    pid = tmp_path / "pid"
    path.write_text(f"#!/bin/sh\nsleep 300 &\necho $! > {pid}\necho out of luck >&2\nexit 7\n")
    path.chmod(0o755)
    return str(path)


def test_a_child_that_dies_is_one_line_and_leaves_nothing(dying_python: str, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"ended with 7 \(out of luck\)"), Oracle(dying_python):
        pass
    pid = int((tmp_path / "pid").read_text())
    assert wait_until_ended(lambda: existing([pid]), 5.0)


def test_arrivals_that_take_the_heads_chunk_down_end_a_coast() -> None:
    """An adaptive threshold gives the head a smaller first chunk with every arrival, until it fits."""
    arguments = {
        "max_model_len": 256,
        "max_num_batched_tokens": 256,
        "max_num_seqs": 64,
        "long_prefill_token_threshold": 16,
        "long_prefill_token_threshold_adaptive": True,
        "scheduler_reserve_full_isl": False,
    }
    crowd = [Request(2 + i, 4 + i, 100, 2) for i in range(10)]
    scenario = scenario_of(Request(0, 0, 200, 50), Request(1, 3, 200, 2), *crowd, arguments=arguments, n_blocks=17)
    stepwise, coasting = simulate(scenario, Way.STEPWISE), simulate(scenario, Way.COASTING)
    assert stepwise.log == coasting.log
    admitted = next(number for number, e in enumerate(stepwise.log) if [1, 0] in e["admitted"])
    assert 4 < admitted < 14
