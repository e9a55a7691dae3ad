from __future__ import annotations

import pytest

from objectives.adequacy import SampleSizes, adapt, tail_percent
from objectives.objective import Limit, Objective
from objectives.slo import parse_slo


@pytest.mark.parametrize(
    ("text", "metric", "bound", "is_upper"),
    [
        ("ttft_p99_ms<=500", "steady_ttft_p99_ms", 500, True),
        (" ttft_p99_ms <= 5e2 ", "steady_ttft_p99_ms", 500, True),
        ("ttft_p99_ms≤500", "steady_ttft_p99_ms", 500, True),
        ("steady_itl_p95_ms<=40.5", "steady_itl_p95_ms", 40.5, True),
        ("stress_failed_share<=0", "stress_failed_share", 0, True),
        ("saturation_output_tokens_per_s_per_gpu>=1000", "saturation_output_tokens_per_s_per_gpu", 1000, False),
        ("running_set_full>=1", "saturation_running_set_full", 1, False),
        ("chat:ttft_p99_ms<=500", "chat:steady_ttft_p99_ms", 500, True),
        ("my tenant: steady_e2e_p99_ms <= 9000", "my tenant:steady_e2e_p99_ms", 9000, True),
    ],
)
def test_a_promise_becomes_a_limit(text: str, metric: str, bound: float, is_upper: bool) -> None:
    limit = parse_slo(text)
    assert (limit.metric, limit.bound, limit.at_most is not None) == (metric, bound, is_upper)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ttft_p99<=500", "did you mean .*ttft_p99_ms"),
        ("ttft_p99_s<=0.5", "no metric 'ttft_p99_s'"),
        ("nonsense<=5", "docs/metrics.md"),
        ("ttft_p99_ms<=500ms", "'500ms' is not a number; the unit is in the metric's name"),
        ("ttft_p99_ms<=nan", "not a number"),
        ("ttft_p99_ms<=inf", "not a number"),
        ("ttft_p99_ms<=", "not a number"),
        ("ttft_p99_ms<=-5", "below 0"),
        ("ttft_p99_ms>=500", "lower is better, write <="),
        ("output_tokens_per_s_per_gpu<=500", "higher is better, write >="),
        ("ttft_p99_ms<500", "write metric<=number"),
        ("ttft_p99_ms==500", "write metric<=number"),
        ("ttft_p99_ms", "write metric<=number"),
        ("", "write metric<=number"),
        ("other:ttft_p99_ms<=500", "no tenant 'other'; this workload has batch, chat"),
    ],
)
def test_a_promise_that_cannot_be_held_is_one_clear_line(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        parse_slo(text, tenants=("chat", "batch"))
    assert "\n" not in str(error.value) and repr(text) in str(error.value)


OBJECTIVES = (Objective("steady_ttft_p99_ms", "minimize"), Objective("steady_itl_p99_ms", "minimize"))
LIMITS = (Limit("steady_stall_p99_ms", at_most=100), Limit("chat:steady_ttft_p99_ms", at_most=100))


def sizes(n: int, gaps: int = 100_000) -> SampleSizes:
    return SampleSizes({"chat": n}, {"chat": gaps}, {"chat": n if gaps else 0})


def test_enough_samples_change_nothing() -> None:
    kept = adapt(OBJECTIVES, LIMITS, sizes(368))
    assert (kept.objectives, kept.limits, kept.notes) == (OBJECTIVES, LIMITS, ())


def test_below_368_a_p99_is_called_and_computed_as_p95() -> None:
    kept = adapt(OBJECTIVES, LIMITS, sizes(367))
    assert [o.metric for o in kept.objectives] == ["steady_ttft_p95_ms", "steady_itl_p99_ms"]
    assert [x.metric for x in kept.limits] == ["steady_stall_p95_ms", "chat:steady_ttft_p95_ms"]
    assert kept.notes[0].startswith("steady_ttft_p99_ms: n = 367 is below 368")


def test_the_smallest_tenant_decides_for_the_worst_of_them() -> None:
    two = SampleSizes({"a": 1000, "b": 100}, {"a": 10_000, "b": 10_000}, {"a": 1000, "b": 100})
    worst = (Objective("steady_worst_ttft_ratio", "minimize"), Objective("steady_worst_itl_ratio", "minimize"))
    assert [o.metric for o in adapt(worst, (), two).objectives] == [
        "steady_worst_ttft_p95_ratio",
        "steady_worst_itl_ratio",
    ]


@pytest.mark.parametrize("n", [0, 1, 5, 71])
def test_a_handful_of_requests_is_no_study(n: int) -> None:  # case EDGE-06
    with pytest.raises(ValueError, match=f"the window gives {n} samples"):
        adapt(OBJECTIVES, LIMITS, sizes(n))


def test_an_itl_objective_over_one_token_answers_is_refused() -> None:  # case EDGE-03
    with pytest.raises(ValueError, match="every answer asked for has one token"):
        adapt(OBJECTIVES, LIMITS, sizes(1000, gaps=0))


@pytest.mark.parametrize(("n", "percent"), [(10_000, 99), (368, 99), (367, 95), (72, 95), (71, None), (0, None)])
def test_tail_percent(n: int, percent: int | None) -> None:
    assert tail_percent(n) == percent
