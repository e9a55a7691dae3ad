"""The answer: which trials stand on the front, which are picked, and the lines under the table."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from objectives.hypervolume import Axes
from objectives.objective import Objective
from optimizer.reporting.answer import Extras, answer_lines, assemble, configs_of, cost_per_million_tokens
from optimizer.reporting.member import Front, FrontMeta
from optimizer.study.calibration import Calibration
from optimizer.study.caps import CapAdvice
from optimizer.study.confirmation import Confirmation
from optimizer.study.rates import RateFigure, Survival
from optimizer.study.trial_record import TrialRecord

TOKENS, TTFT, ITL = "saturation_output_tokens_per_s_per_gpu", "steady_ttft_p99_ms", "steady_itl_p99_ms"
OBJECTIVES = (Objective(TOKENS, "maximize"), Objective(TTFT, "minimize"), Objective(ITL, "minimize"))
REFERENCE = (1000.0, 800.0, 100.0)
AXES = Axes(OBJECTIVES, REFERENCE)
META = FrontMeta(
    study="demo", model="m", gpu="A100-40", engine="simulator", is_simulated=True, objectives=OBJECTIVES,
    workload_hash="abc", rate_per_s=4.8, noise={TOKENS: 0.03, TTFT: 0.05, ITL: 0.03}, reference=0,
)  # fmt: skip
CALIBRATION = Calibration(
    reference="vLLM defaults", capacity_per_s=6.0, rate_per_s=4.8, how="0.80 of the capacity of vLLM defaults",
    is_sustained=True, values=REFERENCE, noise=(0.03, 0.05, 0.03), targets={}, limits=(), metrics={TOKENS: 1000.0},
)  # fmt: skip


def record(
    number: int, *values: float, state: str = "measured", baseline: str = "", **violations: float
) -> TrialRecord:
    metrics = {TOKENS: values[0], "saturation_requests_per_s_per_gpu": values[0] / 166} if values else {}
    return TrialRecord(
        number=number,
        state=state,  # type: ignore[arg-type]
        parameters={"max_num_seqs": 8 * (number + 1)},
        values=values or None,
        violations={"unsustained": -0.03, **violations},
        metrics=metrics,
        reason="",
        failure=None,
        point=None,
        stage="fast",
        attributes={"baseline": baseline} if baseline else {},
    )


TRIALS = (
    record(0, *REFERENCE, baseline="vLLM defaults"),
    record(1, 1300.0, 900.0, 95.0),
    record(2, 1100.0, 300.0, 30.0),
    record(3, 900.0, 700.0, 12.0),
    record(4, 1500.0, 100.0, 10.0, unsustained=0.2),
    record(5, state="infeasible", boot=1.0),
    record(6, state="running"),
)


def front(*confirmations: Confirmation, trials: tuple[TrialRecord, ...] = TRIALS) -> Front:
    return assemble(trials, META, ("server",), AXES, confirmations)


def lines(found: Front, **extras: object) -> list[str]:
    return answer_lines(found, Extras(**{"calibration": CALIBRATION, **extras}))  # type: ignore[arg-type]


def confirmed(trial: int, is_confirmed: bool = True, note: str = "held-out window") -> Confirmation:
    return Confirmation(trial, is_confirmed, note, REFERENCE)


def test_the_front_holds_feasible_trials_that_nothing_beats_and_nothing_that_is_still_running() -> None:
    found = front()
    assert [m.trial for m in found.members] == [1, 2, 3]
    assert [m.trial for m in found.trials] == [0, 1, 2, 3, 4, 5]
    assert found.reference is not None and found.reference.label == "vLLM defaults"


def test_picks_are_named_once_and_the_knee_is_one_of_them() -> None:
    picks = {m.trial: m.picks for m in front().members}
    assert picks[1] == ("throughput",) and "ttft" in picks[2] and picks[3] == ("itl",)
    assert sum("knee" in p for p in picks.values()) == 1


def test_only_confirmed_members_are_picked_where_any_is_confirmed() -> None:
    found = front(confirmed(2), confirmed(1, False, "held-out window: misses a limit"), confirmed(3))
    assert [m.picks for m in found.members if m.trial == 1] == [()]
    assert [m.is_confirmed for m in found.members] == [False, True, True]
    assert "throughput" in next(m.picks for m in found.members if m.trial == 2)
    assert [m.trial for m in found.members] == [1, 2, 3], "what is not confirmed stays, labelled so"


def test_where_none_is_confirmed_picks_are_made_all_the_same() -> None:
    found = front(confirmed(1, False), confirmed(2, False), confirmed(3, False))
    assert {p for m in found.members for p in m.picks} == {"throughput", "ttft", "itl", "knee"}


def test_what_is_not_confirmed_says_why() -> None:
    said = lines(front(confirmed(1, False, "held-out window: it could not be measured again"), confirmed(2)))
    assert "trial 1 is not confirmed: held-out window: it could not be measured again" in said
    assert not any(line.startswith("trial 2 is not") for line in said)


def test_r_and_where_it_comes_from_is_the_first_line() -> None:
    assert lines(front())[0] == "R = 4.8 requests/s (0.80 of the capacity of vLLM defaults)"
    unsustained = replace(CALIBRATION, is_sustained=False)
    assert lines(front(), calibration=unsustained)[0].endswith("; the reference does NOT sustain it")


def test_hypervolume_is_split_into_confirmed_and_not() -> None:
    def figures(found: list[str]) -> list[float]:
        line = next(t for t in found if t.startswith("hypervolume "))
        return [float(x) for x in re.findall(r"\d+\.\d+", line)]

    whole, alone, held = figures(lines(front(*(confirmed(k) for k in (1, 2, 3)))))
    assert whole == held > alone > 0
    whole, _, held = figures(lines(front(confirmed(2))))
    assert whole > held > 0
    said = lines(front(confirmed(1, False), confirmed(2, False), confirmed(3, False)))
    assert figures(said)[2] == 0
    assert "NO member of the front is confirmed: measure it again before you deploy one" in said


def test_a_promise_is_a_rate_and_a_number_of_servers() -> None:
    said = lines(
        front(), survivals=[Survival(2, 5.5, False), Survival(1, 6.0, True)], traffic_per_s=11.2, peak_per_s=20
    )
    assert ("trial 2 keeps the promise up to 5.5 requests/s; the recorded 11.2/s need 3 replicas,"
            " the busiest minute's 20/s 4") in said  # fmt: skip
    assert any(t.startswith("trial 1 keeps the promise up to at least 6 requests/s; ") for t in said)
    one = lines(front(), survivals=[Survival(2, 5.5, False)], traffic_per_s=5.5)
    assert "trial 2 keeps the promise up to 5.5 requests/s; the recorded 5.5/s need 1 replica" in one


def test_cost_is_the_price_of_an_hour_over_its_tokens() -> None:
    assert cost_per_million_tokens(3.6, 1000.0) == pytest.approx(1.0)
    said = lines(front(), gpu_price_per_hour=3.6)
    assert any(
        t.startswith("cost per million output tokens at 3.6 per GPU hour") and "trial 2 0.909" in t for t in said
    )
    assert not any("cost" in t for t in lines(front()))


def test_caps_name_the_argument_and_what_they_turn_away() -> None:
    caps = [CapAdvice(4, "--max-model-len 8192", 0.0123), CapAdvice(4, "--max-num-queued-reqs 90", 0.002, 0.31)]
    said = lines(front(), caps=caps)
    assert "safe with --max-model-len 8192: it turns away 1.23% of the requests (tried on trial 4)" in said
    assert any("--max-num-queued-reqs 90: it turns away 0.20% of the requests, 31% at the peak" in t for t in said)


def test_the_picks_below_and_above_r_are_a_table() -> None:
    rates = [RateFigure(2, s, s * 4.8, {TTFT: 300.0 * s, ITL: None}, s < 1.1) for s in (0.5, 1.0, 1.2)]
    said = "\n".join(lines(front(), rates=rates))
    assert "0.5 R" in said and "1.2 R" in said and "360" in said
    assert [t.split()[-1] for t in said.splitlines() if " R " in t and "requests" not in t] == ["yes", "yes", "no"]


def test_a_load_that_is_now_low_is_said() -> None:
    assert not any("low for this hardware" in t for t in lines(front(trials=(TRIALS[0], TRIALS[2]))))
    strong = front(trials=(TRIALS[0], record(1, 1400.0, 300.0, 30.0)))
    assert any("1.40 x the reference's capacity" in t for t in lines(strong))
    given = replace(CALIBRATION, capacity_per_s=None)
    assert not any("low for this hardware" in t for t in lines(strong, calibration=given))


def test_where_nothing_keeps_up_the_number_of_servers_is_named() -> None:
    drowned = tuple(replace(t, violations={"unsustained": 0.5}) for t in TRIALS if t.values)
    said = lines(front(trials=drowned), calibration=replace(CALIBRATION, rate_per_s=60.0))
    assert any(t.startswith("nothing keeps up with R: trial 4 finishes 9.04 requests/s when saturated, so 60/s need"
                            " about 9 servers like it") for t in said)  # fmt: skip
    assert not any("nothing keeps up" in t for t in lines(front()))


def test_a_study_with_no_front_still_has_an_answer() -> None:  # case OPT-01
    none = front(trials=(record(0, state="infeasible", boot=1.0), record(1, state="broken")))
    assert none.members == () and lines(none) == [lines(none)[0]]


@pytest.mark.parametrize(
    ("parameters", "instances", "expected"),
    [
        ({"max_num_seqs": 8}, ("server",), {"server": {"max_num_seqs": 8}}),
        ({"a.max_num_seqs": 8, "b.max_num_seqs": 9, "a.watermark": 0.1}, ("a", "b"),
         {"a": {"max_num_seqs": 8, "watermark": 0.1}, "b": {"max_num_seqs": 9}}),
    ],
)  # fmt: skip
def test_recorded_arguments_come_back_as_one_config_an_instance(
    parameters: dict[str, float], instances: tuple[str, ...], expected: dict[str, dict[str, float]]
) -> None:
    assert {n: dict(c) for n, c in configs_of(parameters, instances).items()} == expected


def test_what_an_unconfirmed_member_kept_off_takes_its_place_beside_it() -> None:
    """Trial 2 beats trial 7 outright; when trial 2 does not hold, trial 7 is on the front and trial 2 stays, labelled."""
    trials = (*TRIALS, record(7, 1090.0, 320.0, 33.0))
    found = assemble(trials, META, ["server"], AXES, [Confirmation(2, False, "gone", None)])
    on_front = {m.trial: m.is_confirmed for m in found.members}
    assert 7 in on_front and 2 in on_front and not on_front[2]
    assert 7 not in {m.trial for m in assemble(trials, META, ["server"], AXES).members}


def test_served_is_what_was_asked_for_times_what_kept_up() -> None:
    metrics = {"steady_offered_output_tokens_per_s_per_gpu": 800.0, "steady_completions_per_arrivals": 0.5}
    said = lines(front(), rates=[RateFigure(2, 1.2, 5.8, metrics, False)])
    row = next(t for t in said if t.startswith("trial 2"))
    assert re.search(r"1\.2 R +400 ", row) and row.endswith("no")


def test_traffic_above_one_server_is_said() -> None:
    said = lines(front(), traffic_per_s=11.2)
    assert any(t.startswith("the recorded traffic, 11.2 requests/s") and t.endswith("count on 3") for t in said)
    assert not any(t.startswith("the recorded traffic") for t in lines(front(), traffic_per_s=4.0))
