"""The speed bench: its cases are what they say, its bars are judged, its children answer. No times are compared."""

from __future__ import annotations

import pytest

from bench import simulator_speed
from bench.speed.cases import find_case
from optimizer.errors import UserError


@pytest.mark.parametrize(("name", "n_requests"), [("rtx-4090", 300), ("azure", 2000), ("mps-2", 2000), ("mps-4", 2000)])
def test_cases_replay_what_they_name(name: str, n_requests: int) -> None:
    case = find_case(name)
    trace = case.requests(None)
    assert len(trace) == n_requests
    owners = {t for i in case.placement().instances for t in i.tenants}
    assert set(trace.tenants) == owners
    assert case.engine().boot(case.placement(), 0).kv_blocks


def test_the_rtx_4090_run_has_the_real_runs_blocks() -> None:
    case = find_case("rtx-4090")
    assert case.engine().boot(case.placement(), 0).kv_blocks == {"server": 2588}


def test_a_child_measures_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulator_speed.main(["--case", "rtx-4090", "--repeats", "1"]) in (0, 1)
    out = capsys.readouterr().out
    assert "the RTX 4090 run, 300 requests" in out
    assert "< 0.3 s: " in out
    assert "pip install vidur==0.0.26" in out


def test_a_bar_is_missed_by_time_or_by_memory() -> None:
    case = find_case("mooncake")
    cost = simulator_speed.Cost([19.0, 25.0], 900.0, 100.0, 10.0)
    assert simulator_speed._judge(case, cost) == (True, "< 20 s and < 1024 MB: met")
    for missed in (simulator_speed.Cost([21.0], 900.0, 1.0, 1.0), simulator_speed.Cost([1.0], 2000.0, 1.0, 1.0)):
        assert simulator_speed._judge(case, missed)[0] is False


def test_the_whole_mooncake_trace_is_asked_for_in_one_line() -> None:
    with pytest.raises(UserError, match=r"--mooncake FILE: github.com/kvcache-ai/Mooncake"):
        find_case("mooncake").requests(None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--case", "nope"], "nope: no such case; expected one of rtx-4090, azure"),
        (["--case", "rtx-4090", "--repeats", "0"], "--repeats 0: give at least 1"),
        (["--case", "rtx-4090", "--repeats", "1", "--other-python", "/no/python"], "/no/python: No such file"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError) as caught:
        simulator_speed.main(arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
