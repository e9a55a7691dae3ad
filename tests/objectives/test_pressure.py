"""Queue, KV usage and prefix hits of a load: the same figures for a simulated and for a real trial."""

from __future__ import annotations

import numpy as np
import pytest

from objectives.measurement import EngineCounters, EngineSample, Measurement, PhaseMeasurement, RequestRecord
from objectives.metric import METRICS, compute_metrics


def measured(
    samples: tuple[EngineSample, ...] = (), counters: dict[str, EngineCounters] | None = None
) -> dict[str, float | None]:
    record = RequestRecord(0, "t", 0.0, 0.0, 10, 2, np.array([1.0, 2.0]))
    phase = PhaseMeasurement("steady", (record,), 1, 1.0, 0.0, 10.0, 10.0, samples=samples, counters=counters or {})
    return compute_metrics(Measurement({"steady": phase}, True, "test"))


def sample(time_s: float, instance: str, waiting: float | None, usage: float | None) -> EngineSample:
    return EngineSample(time_s, instance, 1.0, waiting, usage)


def test_of_two_instances_the_worse_one_counts() -> None:
    figures = measured((sample(1, "a", 3, 0.2), sample(2, "a", 5, 0.4), sample(1, "b", 9, 0.1), sample(2, "b", 0, 0.9)))
    assert figures["steady_waiting_max"] == 9
    assert figures["steady_kv_usage_mean"] == pytest.approx(0.5)
    assert figures["steady_kv_usage_max"] == 0.9


def test_an_unread_gauge_is_missing() -> None:
    figures = measured((sample(1, "a", None, None), sample(2, "a", 5, 0.4)))
    assert figures["steady_waiting_max"] is None
    assert figures["steady_kv_usage_mean"] is None
    assert measured()["steady_kv_usage_mean"] is None


def test_prefix_hits_over_all_engines() -> None:
    a = EngineCounters(prefix_queries_tokens=100, prefix_hits_tokens=40)
    b = EngineCounters(prefix_queries_tokens=300, prefix_hits_tokens=0)
    assert measured(counters={"a": a, "b": b})["steady_prefix_hit_share"] == pytest.approx(0.1)
    assert measured(counters={"a": a, "b": EngineCounters()})["steady_prefix_hit_share"] is None
    assert (
        measured(counters={"a": EngineCounters(prefix_queries_tokens=0, prefix_hits_tokens=0)})[
            "steady_prefix_hit_share"
        ]
        is None
    )
    assert measured()["steady_prefix_hit_share"] is None


def test_the_outputs_asked_for_exist_per_load() -> None:
    for kind, loads in (("ttft", ("steady", "stress")), ("itl", ("steady", "saturation", "stress"))):
        for load in loads:
            assert {f"{load}_{kind}_p{q}_ms" for q in (50, 90, 99)} <= set(METRICS)
    for name in ("prefix_hit_share", "kv_usage_mean", "kv_usage_max", "waiting_max", "preemptions_per_request"):
        assert {f"{load}_{name}" for load in ("steady", "saturation", "stress")} <= set(METRICS)
