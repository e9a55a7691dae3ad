"""Configurations held against each other: published rows."""

from __future__ import annotations

from objectives.objective import Limit, Objective
from optimizer.questions.contrast import contrast
from optimizer.questions.situation import Gauge, Situation, Tail
from optimizer.questions.tradeoff import Candidate, fastest_or_steadiest
from tests.questions.situations import bare

OBJECTIVES = (
    Objective("saturation_output_tokens_per_s_per_gpu", "maximize"),
    Objective("steady_ttft_p99_ms", "minimize"),
    Objective("steady_itl_p99_ms", "minimize"),
)
ROWS = {
    "watermark 0": (1065, 11_582.0, 25.51, 40.62),
    "watermark 0.02": (400, 12_134.0, 26.49, 18.8),
    "watermark 0.05": (187, 12_167.0, 28.94, 17.7),
    "watermark 0.1": (168, 11_835.0, 31.02, 17.57),
}
LIMIT = Limit("stress_preemptions_per_request", at_most=1.0)


def candidates(floors: bool = False) -> list[Candidate]:
    found = []
    for name, (n, *values) in ROWS.items():
        is_missed = LIMIT.violation(n / 450) > 0
        found.append(Candidate(name, tuple(values), (f"{LIMIT.text} ({n / 450:.3g})",) if is_missed else ()))
    return found


def test_a_watermark_trades_throughput_for_itl() -> None:  # case PRE-02
    answer = fastest_or_steadiest(candidates(), OBJECTIVES)
    assert answer.verdict == "balanced"
    assert "watermark 0.1 against watermark 0.05" in answer.text and "-2.7%" in answer.text
    assert [line.split(" against")[0] for line in answer.evidence[:2]] == ["watermark 0.02", "watermark 0.1"]
    assert answer.evidence[2] == "watermark 0 misses stress_preemptions_per_request <= 1 (2.37)"


def test_differences_inside_the_noise_are_none() -> None:  # case DIAG-12
    answer = fastest_or_steadiest(candidates(), OBJECTIVES, (0.03, 0.1, 0.1))
    assert "no measurable difference" in " ".join(answer.evidence)
    same = [Candidate("a", (36.0, 5.0, 5.0)), Candidate("b", (37.0, 5.0, 5.0))]
    assert fastest_or_steadiest(same, OBJECTIVES, (0.028, 0.028, 0.028)).verdict == "one for all"


def test_without_a_second_feasible_one_only_the_reference_is_compared_with() -> None:
    assert fastest_or_steadiest(candidates()[:1], OBJECTIVES).verdict == "unknown"
    two = candidates()[:2]
    alone = fastest_or_steadiest(two, OBJECTIVES)
    assert (alone.verdict, alone.confidence) == ("unknown", "unknown") and "nothing to compare with" in alone.text
    held = fastest_or_steadiest(two, OBJECTIVES, reference=two[0])
    assert held.verdict == "unknown" and "watermark 0.02 against watermark 0" in held.text
    assert "P99 ITL, ms (steady): -53.7%" in held.text and "saturation_output" not in held.text


def load(name: str, running: float, tokens_per_s: float, **figures: object) -> Situation:
    return bare(load=name, running=Gauge(running, running), output_tokens_per_s=tokens_per_s, **figures)


def test_more_sequences_a_step_explain_a_longer_itl_and_a_shorter_ttft() -> None:  # case DIAG-05
    few = load("steady", 13.2, 1600, itl_ms=Tail(8.2, 9, 8.235), ttft_ms=Tail(300, 900), waiting=Gauge(6, 20))
    more = load("steady", 15.1, 1600, itl_ms=Tail(9.3, 11, 9.417), ttft_ms=Tail(90, 240), waiting=Gauge(0.2, 3))
    steps, queue = contrast([few], [more])
    assert (
        steps
        == "13.2 -> 15.1 requests run on average: more sequences a step make each step longer (ITL 8.23 -> 9.42 ms)"
    )
    assert queue == "P99 TTFT 900 -> 240 ms: 6 -> 0.2 requests wait on average"
    assert contrast([few], [few]) == ()


def test_gaps_of_several_tokens_are_not_held_against_gaps_of_one() -> None:  # case DIAG-08
    plain = load("steady", 8, 400, itl_ms=Tail(19, 30, 20))
    drafted = load(
        "steady", 8, 500, itl_ms=Tail(40, 120, 50), tokens_per_message=8 / 3, itl_per_token_ms=Tail(13, 120, 25)
    )
    [line] = contrast([plain], [drafted])
    assert line == (
        "ITL is not compared: one sends several tokens a message and the other one; per token P99 30 -> 120 ms"
    )
    assert drafted.itl_note is not None and "per message of 2.7 tokens" in drafted.itl_note


def test_speculation_pays_below_a_number_of_requests_only() -> None:  # case DIAG-09
    plain = [load("steady", 1, 52), load("saturation", 8, 8 * 51.4)]
    drafted = [load("steady", 1, 108, tokens_per_message=3.2), load("saturation", 8, 8 * 39.6, tokens_per_message=3.2)]
    lines = contrast(plain, drafted)
    assert any("it pays below about 4.6 requests at once only (3.2 tokens a message)" in line for line in lines), lines


def test_the_fastest_that_loses_one_latency_still_buys_it() -> None:
    """Best in throughput and in ITL, beaten in TTFT: something is given up."""
    rows = [Candidate("a", (100.0, 900.0, 10.0)), Candidate("b", (90.0, 600.0, 20.0))]
    found = fastest_or_steadiest(rows, OBJECTIVES, (0.03, 0.03, 0.03))
    assert found.verdict == "balanced" and "b against a" in found.text
