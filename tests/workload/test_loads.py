"""The three loads keep their meaning for every packaged workload, rate and mix."""

from __future__ import annotations

import numpy as np
import pytest

from optimizer.errors import UserError
from optimizer.workload.arrivals import spread_batches
from optimizer.workload.loads import saturation, steady, stress, stress_rates
from optimizer.workload.mix import merge, mix, renamed
from optimizer.workload.packaged import packaged
from optimizer.workload.prefix import reusable_tokens
from optimizer.workload.reader import open_trace
from optimizer.workload.trace import Trace
from optimizer.workload.window import busiest, choose_windows, peak_over_mean


def load(name: str) -> Trace:
    return spread_batches(open_trace(packaged(name)).trace, 0)[0]


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    both = mix({"chat": load("azure-conv"), "batch": load("azure-code")}, {"chat": 0.6, "batch": 0.4}).trace
    return {"chat": load("azure-conv"), "long": load("mooncake-conversation"), "code": load("azure-code"), "both": both}


@pytest.mark.parametrize("name", ["chat", "long", "code", "both"])
@pytest.mark.parametrize("rate", [0.05, 0.9, 4.0, 15.0])
def test_steady(traces: dict[str, Trace], name: str, rate: float) -> None:
    window = choose_windows(traces[name], 700, n_warmup=120)[0].trace
    plan = steady(window, rate, n_requests=700, n_warmup=120, seed=1)
    assert (plan.n_warmup, plan.n_measured) == (120, 700)
    arrivals = plan.trace.arrival_s
    assert arrivals[120] == 0 and (arrivals[:120] < 0).all()
    assert plan.offered_per_s == pytest.approx(rate, rel=0.1)
    assert plan.trace.content_hash == steady(window, rate, n_requests=700, n_warmup=120, seed=1).trace.content_hash
    shares = [np.bincount(t, minlength=2)[0] / t.size for t in (window.tenant, plan.trace.tenant[120:])]
    assert shares[1] == pytest.approx(shares[0], abs=0.05)
    assert plan.trace.prompt_tokens.mean() == pytest.approx(window.prompt_tokens.mean(), rel=0.1)
    assert plan.max_context_tokens == (plan.trace.prompt_tokens + plan.trace.output_tokens).max()


def test_steady_at_the_recorded_rate_is_the_window_itself(traces: dict[str, Trace]) -> None:
    window = choose_windows(traces["code"], 700, n_warmup=120)[0].trace
    assert window.rate_per_s is not None
    plan = steady(window, window.rate_per_s, n_requests=700, n_warmup=120)
    assert plan.repeated_share == 0
    np.testing.assert_allclose(np.diff(plan.trace.arrival_s)[120:], np.diff(window.arrival_s)[120:], atol=1e-9)


@pytest.mark.parametrize("n", [300, 820, 3000])
def test_saturation_waits_in_order_with_the_same_mix(traces: dict[str, Trace], n: int) -> None:
    window = choose_windows(traces["both"], 700, n_warmup=120)[0].trace
    plan = saturation(window, n_requests=n, n_warmup=20)
    assert plan.n_measured == n and plan.offered_per_s is None
    assert set(plan.trace.arrival_s[20:]) == {0.0} and (plan.trace.arrival_s[:20] < 0).all()
    assert np.mean(plan.trace.tenant == 0) == pytest.approx(np.mean(window.tenant == 0), abs=0.02)
    assert (plan.repeated_share > 0) == (n + 20 > len(window))


def test_saturation_keeps_prefix_reuse(traces: dict[str, Trace]) -> None:
    window = choose_windows(traces["long"], 700, n_warmup=120)[0].trace
    plan = saturation(window, n_requests=len(window))
    reused, recorded = reusable_tokens(plan.trace), reusable_tokens(window)
    assert reused is not None and recorded is not None
    assert reused.sum() / plan.trace.prompt_tokens.sum() == pytest.approx(
        recorded.sum() / window.prompt_tokens.sum(), rel=0.02
    )


@pytest.mark.parametrize("name", ["chat", "long", "code", "both"])
@pytest.mark.parametrize("rate", [0.05, 2.0, 9.0])
def test_stress_is_the_peak_of_all_tenants_with_the_longest_prompts(
    traces: dict[str, Trace], name: str, rate: float
) -> None:
    trace = traces[name]
    window = choose_windows(trace, 700, n_warmup=120)[0].trace
    plan = stress(window, rate, n_requests=150, n_warmup=50, recorded=trace)
    assert plan.n_warmup == 50 and plan.n_measured == pytest.approx(150, abs=1)
    measured = plan.trace.take(slice(50, None))
    assert measured.arrival_s[0] == 0 and (plan.trace.arrival_s[:50] < 0).all()
    peak = peak_over_mean(trace, 10.0)
    assert peak is not None and plan.offered_per_s is not None
    assert plan.offered_per_s >= 0.99 * peak * rate
    for tenant in np.unique(trace.tenant):
        own = trace.tenant == tenant
        assert measured.prompt_tokens[measured.tenant == tenant].max() == trace.prompt_tokens[own].max()
    assert measured.prompt_tokens.mean() > trace.prompt_tokens.mean()


def test_stress_rates_add_up_to_at_least_the_common_peak(traces: dict[str, Trace]) -> None:
    peak = peak_over_mean(traces["both"], 10.0)
    assert peak is not None
    assert sum(stress_rates(traces["both"], 1.0).values()) >= peak


def test_stress_without_warm_up_or_with_one_request(traces: dict[str, Trace]) -> None:
    assert stress(traces["chat"], 1.0, n_requests=20, n_warmup=0).n_measured == 20
    one = traces["chat"].take([0])
    plan = stress(one, 1.0, n_requests=20, n_warmup=5)
    assert plan.n_measured == 20 and (plan.trace.arrival_s[:5] < 0).all()
    assert steady(one, 1.0, n_requests=50, n_warmup=5).n_measured == 50
    assert saturation(one, n_requests=50).repeated_share == pytest.approx(0.98)


def test_mix_makes_the_shares_and_lets_peaks_coincide(traces: dict[str, Trace]) -> None:
    mixed = mix({"chat": load("azure-conv"), "batch": load("azure-code")}, {"chat": 0.6, "batch": 0.4})
    trace = mixed.trace
    assert trace.tenants == ("chat", "batch")
    assert np.mean(trace.tenant == 0) == pytest.approx(0.6, abs=0.01)
    peaks = [busiest(trace.take(np.flatnonzero(trace.tenant == k)), 10.0)[0] for k in (0, 1)]
    assert abs(peaks[0] - peaks[1]) < 10
    assert (
        trace.content_hash
        == mix(
            {"chat": load("azure-conv"), "batch": load("azure-code")}, {"chat": 0.6, "batch": 0.4}
        ).trace.content_hash
    )


def test_mix_repeats_rows_only_when_more_are_asked_for() -> None:
    part = load("azure-conv").take(slice(0, 100))
    assert len(mix({"a": part, "b": part}).trace) <= 200
    more = mix({"a": part, "b": part}, n_requests=500)
    assert len(more.trace) == pytest.approx(500, rel=0.1) and any("repeated" in n for n in more.notices)


# case EDGE-11
def test_ids_of_different_files_do_not_meet() -> None:
    long = load("mooncake-conversation").take(slice(0, 200))
    merged = merge({"a": long, "b": long})
    assert merged.prefix_start is not None and merged.prefix_ids is not None
    owner = np.repeat(merged.tenant, np.diff(merged.prefix_start))
    assert np.intersect1d(merged.prefix_ids[owner == 0], merged.prefix_ids[owner == 1]).size == 0
    session = np.arange(3, dtype=np.int64)
    small = Trace(np.arange(3.0), np.ones(3, np.int32), np.ones(3, np.int32), np.zeros(3, np.int16), session=session)
    both = merge({"a": small, "b": renamed(small, "x")})
    assert both.session is not None and np.unique(both.session).size == 6
    assert both.tenants == ("a", "b")


@pytest.mark.parametrize(
    "shares", [{"a": 0.0, "b": 1.0}, {"a": -1.0, "b": 1.0}, {"b": 1.0}, {"a": float("nan"), "b": 1.0}]
)
def test_impossible_shares_name_the_tenant(shares: dict[str, float]) -> None:
    part = load("azure-conv").take(slice(0, 10))
    with pytest.raises(UserError, match="tenant a"):
        mix({"a": part, "b": part}, shares)
    with pytest.raises(UserError, match="tenant a"):
        mix({"a": part.take([]), "b": part})
