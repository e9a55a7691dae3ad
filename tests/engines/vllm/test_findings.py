from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from objectives.measurement import (
    ClientReport,
    DeviceSample,
    EngineCounters,
    EngineSample,
    PhaseMeasurement,
    ProcessSample,
    RequestRecord,
)
from optimizer.engines.engine import LoadPlan
from optimizer.engines.vllm.client_findings import client_findings
from optimizer.engines.vllm.findings import cache_findings, fault_of, findings_of, own_hit_share, work_findings
from optimizer.engines.vllm.machine_findings import capacity_findings, device_findings, leak_findings
from optimizer.workload.trace import Trace
from tests.measured import failed, phase, record

GIB = 1024**3
KEPT_UP = ClientReport(
    n_processes=1, send_lag_p99_ms=2.0, read_lag_p99_ms=1.0, cores=0.3, n_messages=100_000, fault=None
)


def plan(n: int = 4, prefix_ids: list[int] | None = None, n_warmup: int = 0) -> LoadPlan:
    ids = None if prefix_ids is None else np.array(prefix_ids, np.int64)
    trace = Trace(
        arrival_s=np.arange(n, dtype=np.float64) - n_warmup,
        prompt_tokens=np.full(n, 100, np.int32),
        output_tokens=np.full(n, 2, np.int32),
        tenant=np.zeros(n, np.int16),
        prefix_ids=ids,
        prefix_start=None if ids is None else np.arange(n + 1, dtype=np.int64),
        prefix_block_tokens=0 if ids is None else 512,
    )
    return LoadPlan(load="steady", trace=trace, n_warmup=n_warmup, offered_per_s=1.0, time_limit_s=60.0)


def open_for(n: int, until_s: float, every_s: float = 0.0, sent_every_s: float | None = None) -> list[RequestRecord]:
    """n requests that stay open until then, due `every_s` apart and sent as late as `sent_every_s` makes them."""
    late = every_s if sent_every_s is None else sent_every_s
    return [record(i * every_s, until_s - 1, [1.0], sent_s=i * late) for i in range(n)]


def gauges(n_seconds: int, running: float, waiting: float, instance: str = "a") -> tuple[EngineSample, ...]:
    return tuple(EngineSample(float(t), instance, running, waiting, 0.5) for t in range(1, n_seconds + 1))


# ---- client ----------------------------------------------------------------------------------------------------------


def test_a_client_that_is_the_bottleneck_invalidates_the_trial() -> None:  # case DIAG-14
    records = open_for(128, 60.0, every_s=1 / 20, sent_every_s=1 / 11.2)
    report = replace(KEPT_UP, cores=1.0)
    measured = phase(
        records, samples=gauges(12, 40, 0), counted_from_s=0.0, counted_until_s=12.0, offered_per_s=20.0, client=report
    )
    found = list(client_findings(measured))
    assert [f.severity for f in found] == ["invalid", "invalid", "note"]
    assert found[0].text == "11.2 requests per second were sent where 20 were due: the client did not keep up"
    assert "requests were open at the client, the servers knew 40" in found[1].text
    assert "1.00 of its one core" in found[2].text
    fault = fault_of(measured, plan())
    assert fault is not None
    assert (fault.kind, fault.phase, fault.is_config_fault) == ("client", "steady", False)


def test_the_clients_own_verdict_counts() -> None:  # case DIAG-14
    report = replace(KEPT_UP, fault="sends were 310 ms late in the 99th percentile")
    [found] = client_findings(phase(open_for(20, 30.0, every_s=0.5), client=report))
    assert (found.severity, found.text) == ("invalid", report.fault)


def test_client_and_servers_that_agree_are_no_finding() -> None:
    two = gauges(20, 25, 5, "a") + gauges(20, 20, 10, "b")
    measured = phase(open_for(60, 40.0), samples=two, counted_from_s=0.0, counted_until_s=30.0, client=KEPT_UP)
    assert list(client_findings(measured)) == []


def test_an_overloaded_server_is_no_slow_client() -> None:
    """The queue grows, the sends are on time: that is the configuration's doing."""
    records = [record(t / 10, 30 + t / 10, [0.1]) for t in range(200)]
    samples = tuple(EngineSample(float(t), "a", 16.0, max(10.0 * t - 16, 0), 0.9) for t in range(1, 20))
    assert list(client_findings(phase(records, samples=samples, client=KEPT_UP))) == []


def test_a_front_out_of_cpu_is_the_servers_own_slowness() -> None:
    front = tuple(ProcessSample(float(t), "a", "api_server", 5, 1.0, 0.98, 10**8) for t in range(1, 20))
    measured = phase(
        open_for(100, 40.0), samples=gauges(20, 30, 0), processes=front, counted_from_s=0.0, counted_until_s=30.0
    )
    [found] = client_findings(measured)
    assert (found.severity, found.kind) == ("note", "api_server")


def test_requests_of_others_on_the_server_are_seen() -> None:
    measured = phase(open_for(10, 40.0), samples=gauges(30, 60, 0), counted_from_s=0.0, counted_until_s=30.0)
    [found] = client_findings(measured)
    assert (found.severity, found.kind) == ("disturbed", "neighbour")


def test_seconds_in_which_a_server_was_not_read_say_nothing() -> None:
    blind = tuple(EngineSample(float(t), "b", None, None, None) for t in range(1, 30))
    samples = gauges(30, 1, 0, "a") + blind
    assert list(client_findings(phase(open_for(50, 40.0), samples=samples, counted_until_s=30.0))) == []


def test_failures_whose_end_is_unknown_are_not_held_against_the_client() -> None:
    records = [failed(0.0, "HTTP 503") for _ in range(100)]
    measured = phase(records, samples=gauges(20, 0, 0), counted_until_s=20.0, end_s=20.0)
    assert list(client_findings(measured)) == []


def test_failures_whose_end_is_unknown_may_be_what_the_server_still_has() -> None:
    records = [failed(0.0, "connection lost") for _ in range(60)]
    assert list(client_findings(phase(records, samples=gauges(20, 16, 44), counted_until_s=20.0, end_s=20.0))) == []


def test_gauges_of_an_engine_in_a_long_step_are_two_seconds_old() -> None:
    records = [record(t / 20, 60.0, [0.1]) for t in range(200)]
    stale = tuple(EngineSample(float(t), "a", 16.0, max(20.0 * (t - 2) - 16, 0), 0.9) for t in range(1, 12))
    assert list(client_findings(phase(records, samples=stale, client=KEPT_UP))) == []


# ---- cache -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hits", "is_valid"), [(0, True), (118_000, False), (119_500, False)])
def test_hits_on_a_workload_without_reuse_invalidate_the_run(hits: int, is_valid: bool) -> None:  # case TOOL-12
    counters = {"a": EngineCounters(prefix_queries_tokens=120_000, prefix_hits_tokens=hits)}
    measured = phase([record(0.0, 0.1, [0.1])], counters=counters)
    found = list(cache_findings(measured, own_hit_share(plan())))
    assert (found == []) is is_valid
    fault = fault_of(measured, plan())
    assert (fault is None) is is_valid
    assert fault is None or fault.kind == "cache"


def test_the_traces_own_reuse_is_allowed() -> None:  # case TOOL-12
    repeating = plan(8, prefix_ids=[1, 1, 1, 1, 2, 2, 2, 2], n_warmup=2)
    assert own_hit_share(repeating) == pytest.approx(5 / 6)
    counters = {"a": EngineCounters(prefix_queries_tokens=600, prefix_hits_tokens=500)}
    assert list(cache_findings(phase([], counters=counters), own_hit_share(repeating))) == []
    assert list(cache_findings(phase([], counters=counters), 0.5)) != []


@pytest.mark.parametrize("hits", [None, 100.0])
def test_unread_counters_accuse_nobody(hits: float | None) -> None:
    counters = {"a": EngineCounters(prefix_queries_tokens=None, prefix_hits_tokens=hits), "b": EngineCounters()}
    assert list(cache_findings(phase([], counters=counters), 0.0)) == []


# ---- work ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", [None, "short output: 1 of 1024 tokens"])
def test_answers_of_one_token_are_other_work(failure: str | None) -> None:  # case TOOL-13
    records = [record(float(i), i + 0.1, asked_output_tokens=1024, failure=failure) for i in range(4)]
    [found] = work_findings(phase(records))
    assert (found.severity, found.kind) == ("invalid", "work")
    assert found.text.startswith("0.000977 of the output tokens asked for")
    fault = fault_of(phase(records), plan())
    assert fault is not None
    assert fault.kind == "work"


@pytest.mark.parametrize(("n_done", "is_valid"), [(94, False), (95, True), (100, True), (105, True), (106, False)])
def test_the_band_of_the_same_work(n_done: int, is_valid: bool) -> None:  # case TOOL-13
    records = [record(0.0, 0.1, [0.01] * (n_done - 1), asked_output_tokens=100) for _ in range(3)]
    assert (list(work_findings(phase(records))) == []) is is_valid


def test_requests_that_failed_are_failures_and_not_other_work() -> None:
    records = [record(0.0, 0.1, [0.1]), failed(1.0, "timeout"), failed(1.0, "HTTP 503"), failed(2.0, "connection lost")]
    assert list(work_findings(phase(records))) == []
    assert list(work_findings(phase([]))) == []


# ---- machine ---------------------------------------------------------------------------------------------------------


def test_a_throttled_card_is_marked_with_its_clocks() -> None:  # case GPU-04
    devices = (
        DeviceSample(1.0, "GPU-1", GIB, GIB, sm_clock_mhz=1965, temperature_c=45),
        DeviceSample(2.0, "GPU-1", GIB, GIB, sm_clock_mhz=1815, temperature_c=83, throttle_reasons=("sw_thermal",)),
    )
    [found] = device_findings(phase([], devices=devices))
    assert (found.severity, found.kind) == ("disturbed", "throttled")
    assert found.text == ("GPU-1: throttled (sw_thermal) in 50% of 2 readings, SM clock 1965 to 1815 MHz, up to 83 °C")


def test_a_moment_of_heat_and_a_power_limit_are_only_told() -> None:
    devices = [DeviceSample(float(t), "GPU-1", GIB, GIB, throttle_reasons=("sw_power_cap",)) for t in range(40)]
    devices[7] = replace(devices[7], throttle_reasons=("hw_thermal",))
    assert [f.severity for f in device_findings(phase([], devices=tuple(devices)))] == ["note", "note"]


def test_a_shared_card_is_marked_with_who_was_there() -> None:  # case GPU-04
    devices = tuple(DeviceSample(float(t), "GPU-1", GIB, GIB, foreign_pids=(70,) if t > 5 else ()) for t in range(10))
    [found] = device_findings(phase([], devices=devices))
    assert (found.severity, found.kind) == ("disturbed", "neighbour")
    assert "70" in found.text


def test_a_quiet_card_is_no_finding() -> None:
    devices = tuple(DeviceSample(float(t), "GPU-1", GIB, GIB, 0.96, 1965, 60, 500) for t in range(100))
    assert findings_of(phase([], devices=devices), plan(), {}) == ()


def test_memory_that_creeps_is_not_steady() -> None:  # case OOM-15
    used = [70.1, 70.1, 70.2, 70.4, 70.6, 70.8, 71.0, 71.2, 71.4, 71.6]
    devices = tuple(
        DeviceSample(60.0 * i, "GPU-1", int(gib * GIB), int((80 - gib) * GIB)) for i, gib in enumerate(used)
    )
    [found] = leak_findings(phase([], devices=devices))
    assert "not steady: about +0.2 GiB/min, OOM in ~42 min at this rate" in found.text
    assert "soak run" in found.text


@pytest.mark.parametrize("shape", ["flat", "noisy", "step", "warm-up", "falling", "short"])
def test_memory_that_does_not_creep_is_no_leak(shape: str) -> None:
    t = np.arange(0.0, 600.0)
    noise = np.random.default_rng(3).normal(0, 30 * 1024**2, t.size)
    used = {
        "flat": np.full(t.size, 70.0 * GIB),
        "noisy": 70.0 * GIB + noise,
        "step": np.where(t < 400, 70.0, 71.0) * GIB,
        "warm-up": (70 + np.minimum(t / 100, 1.0)) * GIB,
        "falling": (70 - t / 100) * GIB,
        "short": (70 + t / 10) * GIB,
    }[shape]
    n = 40 if shape == "short" else t.size
    devices = [DeviceSample(float(s), "GPU-1", int(u), int(10 * GIB)) for s, u in zip(t[:n], used[:n], strict=True)]
    assert list(leak_findings(phase([], devices=tuple(devices)))) == []


def test_the_hosts_memory_is_not_the_servers() -> None:
    devices = tuple(DeviceSample(float(t), "host", t * GIB, None) for t in range(100))
    assert list(leak_findings(phase([], devices=devices))) == []


def test_more_requests_than_the_cache_holds_is_said_with_a_number() -> None:  # case PRE-03
    records = [record(0.0, 99.0, [1.0], prompt_tokens=1000, asked_output_tokens=30) for _ in range(256)]
    samples = gauges(90, 72, 184)
    measured = phase(records, samples=samples, counted_from_s=0.0, counted_until_s=90.0)
    [found] = capacity_findings(measured, {"a": 77_088})
    assert found.severity == "note"
    assert "77088 KV tokens hold about 75 of its 1030 tokens each" in found.text
    assert "parameters cannot fix that; admit at most about 75 at once, or add replicas" in found.text
    assert list(capacity_findings(measured, {"a": 770_880})) == []
    assert list(capacity_findings(replace(measured, load="saturation"), {"a": 77_088})) == []


def test_what_a_simulator_measured_has_no_findings() -> None:
    measured: PhaseMeasurement = phase([record(float(i), i + 0.1, [0.02]) for i in range(50)])
    assert findings_of(measured, plan(), {"a": 1000}) == ()
    assert fault_of(measured, plan()) is None


def test_the_gravest_comes_first() -> None:
    devices = tuple(DeviceSample(float(t), "GPU-1", GIB, GIB, foreign_pids=(70,)) for t in range(10))
    report = replace(KEPT_UP, fault="late", cores=0.99)
    found = findings_of(phase([], devices=devices, client=report), plan(), {})
    assert [f.severity for f in found] == ["invalid", "disturbed", "note"]
