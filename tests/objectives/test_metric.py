from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from objectives.catalogue import markdown_table
from objectives.caveats import caveats, is_itl_blind, itl_kind, main_failure
from objectives.measurement import LOADS, TIME_OUT, EngineCounters, EngineSample, Measurement, RequestRecord
from objectives.metric import (
    METRICS,
    Targets,
    compute_metrics,
    compute_pooled_metrics,
    load_samples,
    tenant_metric,
    tenant_metrics,
)
from objectives.objective import Limit, Objective, score
from objectives.samples import LoadSamples
from objectives.tenancy import isolation_ratio, reference_targets
from tests.measured import failed, measurement, phase, record

DOCS = Path(__file__).resolve().parents[2] / "docs/metrics.md"
OBJECTIVES = (
    Objective("saturation_output_tokens_per_s_per_gpu", "maximize"),
    Objective("steady_ttft_p99_ms", "minimize"),
    Objective("steady_itl_p99_ms", "minimize"),
)
LIMITS = (
    Limit("steady_preemptions_per_request", at_most=0.01),
    Limit("stress_preemptions_per_request", at_most=0.1),
    Limit("steady_failed_share", at_most=0.01),
    Limit("steady_stall_p99_ms", at_most=500),
)


def all_loads(records: list[RequestRecord], **fields: object) -> Measurement:
    return measurement(*(phase(records, load, **fields) for load in LOADS))


CRASHED = [failed(0.1 * i, "connection reset") for i in range(200)]
WITHOUT_TOKENS = [replace(failed(0.1 * i), failure=None) for i in range(200)]
ONE_TOKEN = [record(0.1 * i, 0.1 * i + 0.05, n_preemptions=0) for i in range(400)]
DEGENERATE: dict[str, Measurement] = {
    "no phase": measurement(),
    "no request": all_loads([]),
    "all failed": all_loads(CRASHED),
    "all failed, counters at 0": all_loads(CRASHED, counters={"a": EngineCounters(n_preemptions=0.0)}),
    "answers without a token": all_loads(WITHOUT_TOKENS),
    "every answer one token": all_loads(ONE_TOKEN, counters={"a": EngineCounters(n_preemptions=0.0)}),
    "one request": all_loads([record(0.0, 0.05)]),
    "clock ran backwards": all_loads([record(1.0 + i, 0.5 + i, [-0.1] * 5) for i in range(400)]),
}


@pytest.mark.parametrize("kind", DEGENERATE)
def test_no_degenerate_trial_looks_good(kind: str) -> None:  # cases TOOL-08, OPT-02, OPT-04, EDGE-03, EDGE-06
    metrics = compute_metrics(DEGENERATE[kind])
    card = score(metrics, OBJECTIVES, LIMITS, {"unsustained": 0.0})
    assert card.values is None
    assert not card.is_feasible
    assert all(math.isfinite(v) for v in card.violations.values())


@pytest.mark.parametrize("first_s", [math.inf, math.nan])
def test_a_time_that_is_no_number_is_refused_when_recorded(first_s: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        record(0.0, first_s)


@pytest.mark.parametrize("kind", DEGENERATE)
def test_no_latency_is_zero_and_nothing_is_nan(kind: str) -> None:
    for name, value in compute_metrics(DEGENERATE[kind]).items():
        assert value is None or math.isfinite(value), name
        if name.endswith("_ms") and "send_lag" not in name:
            assert value is None or value > 0, name


def test_one_token_answers_have_a_ttft_and_no_itl() -> None:  # case EDGE-03
    metrics = compute_metrics(DEGENERATE["every answer one token"])
    assert metrics["steady_ttft_p99_ms"] == pytest.approx(50)
    for name in ("steady_itl_p99_ms", "steady_tpot_p99_ms", "steady_stall_p99_ms"):
        assert metrics[name] is None
    mixed = compute_metrics(all_loads([*ONE_TOKEN, record(1.0, 1.05, [0.03])]))
    assert mixed["steady_itl_p99_ms"] == pytest.approx(30)
    assert mixed["steady_itl_n"] == 1
    assert mixed["steady_ttft_n"] == 401


def test_all_failed_has_a_failed_share_of_one() -> None:  # case TOOL-08
    metrics = compute_metrics(DEGENERATE["all failed"])
    assert metrics["steady_failed_share"] == 1.0
    assert metrics["steady_ttft_p99_ms"] is None
    assert metrics["saturation_output_tokens_per_s_per_gpu"] is None
    assert main_failure(LoadSamples((DEGENERATE["all failed"].phases["steady"],))) == (
        "200 of 200 requests failed (200x connection reset)"
    )


def test_a_run_with_errors_is_no_evidence_for_a_p99() -> None:  # case TOOL-09
    good = [record(0.1 * i, 0.1 * i + 0.2, [0.02] * 20) for i in range(310)]
    errored = [failed(0.1 * i) for i in range(310, 360)]
    incomplete = [
        record(0.1 * i, 0.1 * i + 0.2, [0.02] * 5, asked_output_tokens=21, failure=TIME_OUT) for i in range(360, 400)
    ]
    metrics = compute_metrics(all_loads([*good, *errored, *incomplete]))
    assert metrics["steady_failed_share"] == pytest.approx(90 / 400)
    assert metrics["steady_ttft_p50_ms"] == pytest.approx(200)
    assert metrics["steady_ttft_p99_ms"] is None
    assert metrics["steady_ttft_n"] == 400
    assert Limit("steady_failed_share", at_most=0.01).violation(metrics["steady_failed_share"]) > 0


def test_failing_the_slow_requests_does_not_improve_a_tail() -> None:
    slow = [record(0.1 * i, 0.1 * i + (5.0 if i % 50 == 0 else 0.1), [0.02] * 10) for i in range(400)]
    shed = [failed(r.scheduled_s) if r.ttft_s and r.ttft_s > 1 else r for r in slow]
    assert compute_metrics(all_loads(slow))["steady_ttft_p99_ms"] == pytest.approx(5000)
    assert compute_metrics(all_loads(shed))["steady_ttft_p99_ms"] is None


def test_preemptions_come_from_counters_summed_over_engines() -> None:  # case PRE-01
    records = [record(0.1 * i, 0.1 * i + 0.2, [0.02] * 5) for i in range(400)]
    counters = {"a": EngineCounters(n_preemptions=30.0), "b": EngineCounters(n_preemptions=19.0)}
    assert compute_metrics(all_loads(records, counters=counters))["steady_preemptions_per_request"] == 49 / 400


@pytest.mark.parametrize("counters", [{}, {"a": EngineCounters()}, {"a": EngineCounters(3.0), "b": EngineCounters()}])
def test_an_unread_preemption_counter_is_unknown_not_zero(counters: dict[str, EngineCounters]) -> None:  # case PRE-01
    records = [record(0.1 * i, 0.1 * i + 0.2, [0.02] * 5) for i in range(400)]
    value = compute_metrics(all_loads(records, counters=counters))["steady_preemptions_per_request"]
    assert value is None
    assert Limit("steady_preemptions_per_request", at_most=0.01).violation(value) > 0


def test_an_engine_without_a_counter_makes_the_rate_unknown() -> None:
    records = [record(0.1 * i, 0.1 * i + 0.2, [0.02] * 5) for i in range(400)]
    seen = tuple(EngineSample(t, name, 1, 0, 0.1) for t in (0.0, 1.0) for name in ("a", "b"))
    m = all_loads(records, counters={"a": EngineCounters(n_preemptions=0.0)}, samples=seen)
    assert compute_metrics(m)["steady_preemptions_per_request"] is None


def test_preemptions_per_request_can_exceed_one_and_companions_stand_beside() -> None:
    records = [
        record(0.1 * i, 0.1 * i + 0.2, [0.02] * 5, n_preemptions=3 * (i % 2), recomputed_tokens=10 * (i % 2))
        for i in range(100)
    ]
    metrics = compute_metrics(all_loads(records, counters={"a": EngineCounters(n_preemptions=150.0)}))
    assert metrics["steady_preemptions_per_request"] == 1.5
    assert metrics["steady_preempted_share"] == 0.5
    assert metrics["steady_recomputed_tokens"] == 500


def test_messages_of_several_tokens() -> None:  # case DIAG-08
    gaps, tokens = [0.040, 0.040, 0.120], np.array([1, 4, 3, 1], np.int32)
    one = record(0.0, 0.1, gaps, tokens_per_message=tokens, asked_output_tokens=9)
    samples = LoadSamples((phase([one, record(1.0, 1.1, gaps, tokens_per_message=tokens, asked_output_tokens=9)]),))
    assert samples.itl_ms.values.tolist() == pytest.approx([40] * 4 + [120] * 2)
    assert samples.itl_per_token_ms.values.tolist() == pytest.approx([10] * 8 + [40 / 3] * 6 + [120] * 2)
    assert samples.tpot_ms.values.tolist() == pytest.approx([25, 25])
    assert itl_kind(samples) != itl_kind(LoadSamples((phase([record(0.0, 0.1, gaps)]),)))
    assert any("one token" in line for line in caveats(measurement(samples.phases[0])))


def test_a_single_message_of_many_tokens_has_no_pace() -> None:
    one = record(0.0, 0.1, tokens_per_message=np.array([50], np.int32), asked_output_tokens=50)
    metrics = compute_metrics(all_loads([one] * 5))
    for name in ("steady_tpot_p99_ms", "steady_itl_p99_ms", "steady_itl_per_token_p99_ms", "steady_stall_p99_ms"):
        assert metrics[name] is None


def test_throughput_counts_tokens_inside_the_window_only() -> None:
    records = [record(-1.0, 0.5 * i, [0.5] * 40) for i in range(20)]
    inside = sum(int(((r.token_times_s > 5) & (r.token_times_s <= 15)).sum()) for r in records)
    p = phase(records, "saturation", counted_from_s=5.0, counted_until_s=15.0, n_gpus=2, was_running_set_full=True)
    metrics = compute_metrics(measurement(p))
    assert metrics["saturation_output_tokens_per_s_per_gpu"] == pytest.approx(inside / 10 / 2)
    makespan = sum(r.token_times_s.size for r in records) / p.end_s / 2
    assert metrics["saturation_output_tokens_per_s_per_gpu"] > makespan
    n_started = sum(5 < r.token_times_s[0] <= 15 for r in records)
    assert metrics["saturation_prompt_tokens_per_s_per_gpu"] == pytest.approx(n_started * 100 / 20)
    assert metrics["saturation_running_set_full"] == 1.0


def test_answers_cut_by_the_end_of_saturation_count_and_lost_ones_do_not() -> None:
    gaps = [1.0] * 9
    cut = record(0.0, 1.0, gaps, asked_output_tokens=100, failure=f"{TIME_OUT} after 10 s")
    lost = record(0.0, 1.0, gaps, asked_output_tokens=100, failure="connection reset")
    p = phase([cut, lost], "saturation", counted_from_s=0.0, counted_until_s=10.0)
    metrics = compute_metrics(measurement(p))
    assert metrics["saturation_output_tokens_per_s_per_gpu"] == 1.0
    assert metrics["saturation_failed_share"] == 1.0
    assert compute_metrics(measurement(replace(p, load="steady")))["steady_failed_share"] == 1.0
    only_cut = compute_metrics(measurement(replace(p, records=(cut,))))
    assert only_cut["saturation_failed_share"] is None


def test_an_empty_window_has_no_throughput() -> None:
    p = phase([record(0.0, 0.1, [0.1] * 5)], "saturation", counted_from_s=3.0, counted_until_s=3.0)
    assert compute_metrics(measurement(p))["saturation_output_tokens_per_s_per_gpu"] is None


def test_blindness_of_pooled_itl() -> None:
    alone = LoadSamples((phase([record(100.0 * i, 100.0 * i, [0.02] * 99) for i in range(50)]),))
    assert is_itl_blind(alone) is True
    busy = LoadSamples((phase([record(0.05 * i, 0.05 * i + 0.01, [0.02] * 99) for i in range(50)]),))
    assert is_itl_blind(busy) is False
    assert is_itl_blind(LoadSamples((phase(ONE_TOKEN),))) is None
    assert any("stall_p99_ms decides" in line for line in caveats(measurement(alone.phases[0])))


def test_stall_sees_what_pooled_itl_does_not() -> None:
    records = [record(float(i), i + 0.1, [0.02] * 500 + [3.0] + [0.02] * 500) for i in range(400)]
    metrics = compute_metrics(all_loads(records))
    assert metrics["steady_itl_p99_ms"] == pytest.approx(20)
    assert metrics["steady_stall_p99_ms"] == pytest.approx(3000)


def two_tenants(batch_first_s: float = 2.0) -> Measurement:
    chat = [record(0.1 * i, 0.1 * i + 0.2, [0.02] * 20, tenant="chat") for i in range(400)]
    batch = [record(0.1 * i, 0.1 * i + batch_first_s, [0.05] * 20, tenant="batch") for i in range(400)]
    return all_loads([*chat, *batch])


TARGETS = {"chat": Targets(ttft_ms=400, itl_ms=40), "batch": Targets(ttft_ms=10_000, itl_ms=100)}


def test_the_worst_tenant_against_its_own_target() -> None:
    metrics = compute_metrics(two_tenants(), TARGETS)
    assert metrics["steady_worst_ttft_ratio"] == pytest.approx(0.5)
    assert metrics["steady_worst_itl_ratio"] == pytest.approx(0.5)
    assert compute_metrics(two_tenants(batch_first_s=20.0), TARGETS)["steady_worst_ttft_ratio"] == pytest.approx(2.0)
    assert metrics["chat:steady_ttft_p99_ms"] == pytest.approx(200)
    assert tenant_metric(two_tenants(), "batch") == pytest.approx(2000)
    assert tenant_metrics(two_tenants(), "batch")["steady_ttft_p99_ms"] == pytest.approx(2000)


def test_a_tenant_without_answers_makes_the_worst_unknown() -> None:
    m = two_tenants()
    steady = m.phases["steady"]
    records = tuple(r if r.tenant == "chat" else failed(r.scheduled_s, tenant="batch") for r in steady.records)
    metrics = compute_metrics(measurement(replace(steady, records=records)), TARGETS)
    assert metrics["steady_worst_ttft_ratio"] is None
    assert metrics["steady_worst_itl_ratio"] is None


@pytest.mark.parametrize("targets", [None, {}, {"chat": Targets(ttft_ms=400)}])
def test_a_tenant_without_a_target_makes_the_worst_unknown(targets: dict[str, Targets] | None) -> None:
    assert compute_metrics(two_tenants(), targets)["steady_worst_ttft_ratio"] is None


def test_a_tenant_of_one_token_answers_has_no_itl_to_be_worst_in() -> None:
    chat = [record(0.1 * i, 0.1 * i + 0.2, [0.02] * 20, tenant="chat") for i in range(400)]
    batch = [record(0.1 * i, 0.1 * i + 2, tenant="batch") for i in range(400)]
    metrics = compute_metrics(all_loads([*chat, *batch]), TARGETS)
    assert metrics["steady_worst_itl_ratio"] == pytest.approx(0.5)


def test_targets_from_the_reference_run_give_it_a_ratio_of_one() -> None:
    m = two_tenants()
    steady = load_samples([m], "steady")
    assert steady is not None
    metrics = compute_metrics(m, reference_targets(steady))
    assert metrics["steady_worst_ttft_ratio"] == pytest.approx(1.0)
    assert reference_targets(steady, {"chat": Targets(ttft_ms=7)})["chat"].ttft_ms == 7


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_target_must_be_a_positive_number(bad: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Targets(ttft_ms=bad)


def test_the_starved_tenant_shows_in_the_smallest_served_share() -> None:
    chat = [record(0.0, 1.0, [0.1] * 99, tenant="chat") for _ in range(10)]
    batch = [record(0.0, 1.0, [0.1] * 9, tenant="batch", asked_output_tokens=100, failure=TIME_OUT) for _ in range(10)]
    p = phase([*chat, *batch], "saturation", counted_from_s=0.0, counted_until_s=12.0)
    assert compute_metrics(measurement(p))["saturation_smallest_served_share"] == pytest.approx(0.1)


def test_isolation_is_busy_over_idle() -> None:
    busy, idle = (LoadSamples((two_tenants(first).phases["steady"],)) for first in (6.0, 2.0))
    assert isolation_ratio(busy, idle, "batch", "ttft_ms") == pytest.approx(3.0)
    assert isolation_ratio(busy, idle, "nobody", "ttft_ms") is None


def test_repeats_pool_samples_and_never_average_percentiles() -> None:
    calm = all_loads([record(0.1 * i, 0.1 * i + 0.1, [0.02] * 5) for i in range(400)])
    rough = all_loads([record(0.1 * i, 0.1 * i + 0.1 + 0.01 * i, [0.02] * 5) for i in range(400)])
    pooled = compute_pooled_metrics([calm, rough])
    both = [1e3 * (r.ttft_s or 0) for m in (calm, rough) for r in m.phases["steady"].records]
    assert pooled["steady_ttft_p99_ms"] == pytest.approx(np.percentile(both, 99))
    single = [compute_metrics(m)["steady_ttft_p99_ms"] or 0 for m in (calm, rough)]
    assert pooled["steady_ttft_p99_ms"] != pytest.approx(np.mean(single), rel=0.01)
    assert pooled["steady_ttft_n"] == 800
    throughput = "saturation_output_tokens_per_s_per_gpu"
    assert min(compute_metrics(m)[throughput] or 0 for m in (calm, rough)) <= (pooled[throughput] or 0)


def test_names_carry_their_load_and_a_unit() -> None:
    for name, metric in METRICS.items():
        assert name == metric.name and name.startswith(f"{metric.load}_")
        assert metric.unit and metric.describe
    assert METRICS["steady_ttft_p99_ms"].direction_hint == "minimize"
    assert METRICS["saturation_output_tokens_per_s_per_gpu"].direction_hint == "maximize"


def test_least_free_memory() -> None:
    records = [record(0.0, 0.1, [0.1])]
    known = measurement(phase(records, "stress", min_free_memory_bytes=5 * 1024**3))
    assert compute_metrics(known)["stress_min_free_memory_bytes"] == 5 * 1024**3
    assert compute_metrics(measurement(phase(records, "stress")))["stress_min_free_memory_bytes"] is None


def test_the_documented_table_is_the_one_in_the_code() -> None:
    text = DOCS.read_text()
    begin, end = "<!-- metrics: begin -->\n", "<!-- metrics: end -->"
    assert text.split(begin)[1].split(end)[0].strip() == markdown_table().strip(), (
        "run `python -m objectives.catalogue docs/metrics.md`"
    )
