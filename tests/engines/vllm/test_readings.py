from __future__ import annotations

import math

import pytest

from optimizer.engines.vllm.readings import Gains, Histogram, Reading, read_all
from tests.watching.replayed_server import PAGES, with_value

EDGES = (0.01, 0.025, 0.05, math.inf)


def test_counters_are_what_was_gained() -> None:
    gains = Gains(read_all(PAGES[0]), read_all(PAGES[-1]))
    assert gains.total("generation_tokens") == 42606 - 40759
    assert gains.total("request_success", finished_reason="length") == gains.histogram("request_prompt_tokens").n  # type: ignore[union-attr]
    assert gains.total("no_such_counter") is None
    assert gains.http_errors == 0


def test_a_counter_that_fell_counts_on_from_nothing() -> None:
    last = with_value(PAGES[-1], "vllm:generation_tokens_total", 12)
    assert Gains(read_all(PAGES[0]), read_all(last)).total("generation_tokens") == 12


def test_histograms_are_of_what_was_gained_and_sum_over_engines() -> None:
    first, last = read_all(PAGES[0]), read_all(PAGES[-1])
    one = Gains(first, last).histogram("inter_token_latency_seconds")
    others = [read_all(page.replace('engine="0"', 'engine="1"')) for page in (PAGES[0], PAGES[-1])]
    both = Gains(Reading({**first.values, **others[0].values}), Reading({**last.values, **others[1].values}))
    summed, own = (
        both.histogram("inter_token_latency_seconds"),
        both.of_engine("0").histogram("inter_token_latency_seconds"),
    )
    assert one is not None and summed is not None and own is not None
    assert own == one and summed.n > one.n
    assert one.n == pytest.approx(sum(one.counts)) and one.edges[-1] == math.inf
    assert one.mean == pytest.approx(one.total / one.n)


def test_an_engine_that_came_later_is_not_counted_with_its_past() -> None:
    second = read_all(PAGES[-1].replace('engine="0"', 'engine="1"'))
    last = read_all(PAGES[-1])
    gains = Gains(read_all(PAGES[0]), Reading({**last.values, **second.values}))
    assert gains.total("generation_tokens") == 42606 - 40759


@pytest.mark.parametrize("edge", ['le="abc"', 'le="NaN"', 'other="1"'])
def test_a_bucket_without_an_edge_is_left_out(edge: str) -> None:
    page = PAGES[-1].replace('le="0.01"', edge)
    found = Gains(read_all(PAGES[0]), read_all(page)).histogram("inter_token_latency_seconds")
    assert found is not None and 0.01 not in found.edges


def test_a_histogram_of_nothing_but_infinity_is_none() -> None:
    page = "\n".join(x for x in PAGES[-1].splitlines() if "inter_token_latency" not in x or "Inf" in x)
    assert Gains(read_all(""), read_all(page)).histogram("inter_token_latency_seconds") is None


def test_older_names_are_read_where_the_newer_are_not_there() -> None:
    old = PAGES[-1].replace("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")
    gains = Gains(read_all(PAGES[0]), read_all(old))
    assert gains.histogram("inter_token_latency_seconds") is None
    assert gains.histogram("inter_token_latency_seconds", "time_per_output_token_seconds") is not None


def test_a_percentile_lies_in_its_bucket() -> None:
    h = Histogram(EDGES, (50.0, 30.0, 20.0, 0.0), 50 * 0.004 + 30 * 0.0175 + 20 * 0.0375)
    assert h.percentile(50) == pytest.approx(0.004), "the lowest bucket: what the mean leaves for it"
    assert h.percentile(65) == pytest.approx(0.0175) and h.between(65) == (0.01, 0.025)
    assert h.percentile(99) == pytest.approx(0.04875)
    assert h.above(0.025) == 20 and h.mean_above(0.025) == pytest.approx(0.0375)


def test_the_infinite_bucket_is_at_least_its_edge() -> None:
    h = Histogram(EDGES, (0.0, 0.0, 1.0, 9.0), 40.0)
    assert h.percentile(99) == 0.05 and h.between(99) == (0.05, math.inf)


def test_nothing_observed_has_no_percentile() -> None:
    h = Histogram(EDGES, (0.0, 0.0, 0.0, 0.0), 0.0)
    assert h.percentile(50) is None and h.mean is None and h.between(50) is None and h.mean_above(0.0) == 0.0
    with pytest.raises(ValueError, match="nothing was observed"):
        h.draw(0.5)


def test_a_line_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="line 2 of /metrics"):
        read_all("vllm:a 1\nvllm:b{ what\n")
