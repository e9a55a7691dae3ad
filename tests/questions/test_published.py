"""Situations from public reports: the answer that was found there follows from their numbers alone."""

from __future__ import annotations

from typing import Any

import pytest

from optimizer.questions.bound import Point, batch_response, compute_or_bandwidth
from optimizer.questions.demand import parameters_or_workload
from optimizer.questions.diagnosis import diagnose
from optimizer.questions.health import health_of, problems
from optimizer.questions.host import gpu_or_cpu
from optimizer.questions.interference import explain_spike, prefill_interference
from optimizer.questions.peak import steady_or_peak
from optimizer.questions.preemption import preemption_checklist
from optimizer.questions.situation import CpuUse, Gauge, Interference, Lengths, Situation, Tail
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model
from search_spaces.vllm import max_num_seqs


def situation(**known: Any) -> Situation:
    return Situation(**{"source": "report", "span_s": 60.0, "load": "steady"} | known)


def test_flat_throughput_from_four_requests_on() -> None:  # case DIAG-01
    points = [Point(1, 137), Point(4, 520), Point(8, 522), Point(16, 519)]
    answer = compute_or_bandwidth(situation(kernel_resident_share=0.99), points)
    assert answer.verdict == "bandwidth up to 4, compute above" and "knobs move nothing" in answer.text
    assert any("cap admission near 4" in text for text in answer.advice) and not answer.changes
    assert any("spend no trials on max_num_seqs and max_num_batched_tokens" in text for text in answer.advice)
    demand = parameters_or_workload(situation(offered_per_s=16 / 11.8, is_sustained=False), best_per_s=4 / 4.0)
    assert demand.verdict == "workload"


@pytest.mark.parametrize(
    ("rows", "saturates_at"),
    [
        ([(1, 50.0), (2, 98.0), (4, 190.0), (8, 370.0)], None),
        ([(1, 50.0), (2, 51.0)], 1),
        ([(1, 100.0), (8, 700.0), (16, 750.0), (32, 740.0)], 8),
        ([(8, 700.0), (1, 100.0), (16, 1300.0), (64, 1310.0)], 16),
        ([(61, 2432.0), (100, 2768.0), (150, 3165.0), (200, 2963.0), (210, 3139.0)], 150),
        ([(16, 724.0), (43, 1285.0), (44, 1202.0), (61, 1386.0), (86, 1563.0), (120, 1601.0)], 86),
        ([(100, 1000.0), (105, 1040.0)], None),
    ],
)
def test_where_a_response_goes_flat(rows: list[tuple[float, float]], saturates_at: float | None) -> None:
    response = batch_response([Point(*row) for row in rows])
    assert response is not None and response.saturates_at == saturates_at
    assert batch_response([Point(4, 100.0), Point(4, 90.0)]) is None


def test_of_many_points_six_are_shown() -> None:
    points = [Point(n, 100 * min(n, 13)) for n in range(1, 31)]
    response = batch_response(points)
    assert response is not None and response.saturates_at == 12 and response.text.count("tok/s") == 6
    assert all(f" at {n}" in response.text for n in (1, 12, 30)) and "1,200 tok/s" in response.text


def test_saturated_processes_are_named() -> None:  # case DIAG-02
    cpu = {"api_server": CpuUse(1.0, 1.0), "engine_core": CpuUse(0.97, 0.97), "worker": CpuUse(0.35, 0.35)}
    busy = situation(cpu=cpu, kernel_resident_share=0.62, running=Gauge(128, 128), output_tokens_per_s=2900.0)
    answer = gpu_or_cpu(busy)
    assert (answer.verdict, answer.confidence) == ("cpu", "high")
    assert "the API server and EngineCore are at a full core" in answer.text
    assert [(c.name, c.value) for c in answer.changes] == [("api_server_count", 2)]
    assert "more KV memory changes nothing" in answer.text
    engine_only = gpu_or_cpu(situation(cpu=cpu | {"api_server": CpuUse(0.3, 0.3)}))
    assert "EngineCore is at a full core" in engine_only.text and not engine_only.changes and engine_only.advice


def test_a_resident_kernel_is_no_busy_gpu() -> None:
    answer = gpu_or_cpu(situation(kernel_resident_share=0.99))
    assert answer.verdict == "unknown"


def test_more_sequences_lengthen_steps() -> None:  # case DIAG-05
    few = situation(running=Gauge(14, 16), waiting=Gauge(5, 9), itl_ms=Tail(8.2, 9.0), config={"max_num_seqs": 16},
                    kv_usage=Gauge(0.2, 0.3))  # fmt: skip
    answer = diagnose([few]).answers[4]
    assert answer.verdict == "faster" and [c.name for c in answer.changes] == ["max_num_seqs"]
    assert "cost ITL" in answer.text and "shorter TTFT" in answer.text


def test_a_spike_is_a_chunk_over_a_rate() -> None:  # case DIAG-06
    spikes = explain_spike(5.0, 0.036, 8192, 72_000, prefill_tokens_per_s=2400)
    assert "8192 tokens at 2,400 prefill tokens/s = 3.4 s" in spikes.text and "0.85 s at 2048" in spikes.text
    assert [(c.name, c.value) for c in spikes.changes] == [
        ("max_num_batched_tokens", 2048), ("max_num_batched_tokens", 1024), ("long_prefill_token_threshold", 2048),
    ]  # fmt: skip
    seen = situation(
        interference=Interference(32, 30, 3.5, 0.036), prompts=Lengths(72_000), config={"max_num_batched_tokens": 8192}
    )
    assert prefill_interference(seen).is_prefill is True
    elsewhere = situation(interference=Interference(32, 4, 3.5, 0.036))
    assert prefill_interference(elsewhere).is_prefill is False
    assert prefill_interference(situation()).is_prefill is None


def test_no_card_prefills_faster_than_it_computes() -> None:
    """Of prompts up to 6,472 tokens, those that make the P99 gap of 289 ms on an A100 hold some 3,100."""
    seen = situation(
        model=find_model("Llama-3.1-8B"), gpu=find_gpu("A100-80"), interference=Interference(900, 890, 0.14, 0.024),
        prompts=Lengths(1200, 3500, 6472), itl_ms=Tail(24, 289), config={"max_num_batched_tokens": 23_168},
    )  # fmt: skip
    spikes = prefill_interference(seen)
    assert "a chunk of 3089 tokens at 11,656 prefill tokens/s = 0.26 s" in spikes.text
    assert [(c.name, c.value) for c in spikes.changes] == [("max_num_batched_tokens", 2896)]


def test_concurrency_beyond_the_pool_is_the_workload() -> None:  # case PRE-03
    seen = situation(
        kv_tokens=77_088, totals=Lengths(1030.0), running=Gauge(72, 76), waiting=Gauge(184, 190, 0.0), n_preemptions=480,
        n_finished=5000, n_requests=5000, config={"max_num_seqs": 256}, gpu=find_gpu("A10G"), is_sustained=False,
    )  # fmt: skip
    answer = parameters_or_workload(seen)
    assert answer.verdict == "workload" and "parameters cannot fix it" in answer.text
    assert any("cap admission at about 74 requests at once, or add replicas" in text for text in answer.advice)
    assert [(c.name, c.value) for c in answer.changes] == [("max_num_seqs", 74)]
    lines = {line.name: line.verdict for line in preemption_checklist(seen).lines}
    assert (lines["KV budget too small"] == "cause" and lines["too many sequences"] == "cause") or 76 > 74.8


def test_the_range_of_sequences_ends_near_what_the_pool_holds() -> None:  # case PRE-03
    """A quarter above it, since answers still grow: some 75 requests fit, vLLM's default is 256."""
    top = max(max_num_seqs(round(1.25 * 77_088 / 1030)).values())
    assert isinstance(top, int) and 75 <= top <= 94


def test_preemptions_without_a_counter_are_unknown() -> None:  # case PRE-01
    assert preemption_checklist(situation()).is_preempting is None
    assert "unknown" in preemption_checklist(situation()).text
    seen = situation(n_preemptions=49.0, n_finished=400)
    assert "49, 0.122 per finished request" in preemption_checklist(seen).text


def test_max_model_len_is_ruled_out_by_mechanism_unless_one_request_hardly_fits() -> None:
    usual = situation(n_preemptions=9.0, n_finished=10, kv_tokens=40_000, totals=Lengths(900, 1500, 2000),
                      config={"max_model_len": 32_768})  # fmt: skip
    line = preemption_checklist(usual).lines[4]
    assert line.verdict == "not the cause" and "ruled out by mechanism" in line.text
    tight = situation(n_preemptions=9.0, n_finished=10, kv_tokens=40_000, totals=Lengths(900, 1500, 30_000),
                      config={"max_model_len": 32_768})  # fmt: skip
    assert preemption_checklist(tight).lines[4].verdict == "cause"


def test_the_checklist_keeps_its_order() -> None:
    names = [line.name for line in preemption_checklist(situation()).lines]
    assert names == [
        "KV budget too small", "too many sequences", "lengths beyond expectation", "token budget too large",
        "max_model_len far above the workload",
    ]  # fmt: skip


def test_creeping_memory_is_neither_peak_nor_overload() -> None:  # case OOM-15
    creeping = situation(memory_trend="not steady: about +0.2 GiB/min, OOM in ~40 min at this rate")
    answer = steady_or_peak([creeping])
    assert answer.verdict == "creeping" and "soak" in answer.advice[0]
    assert health_of(creeping) == "degraded"


def test_a_request_longer_than_everything_is_no_matter_of_knobs() -> None:
    fits_pool = situation(totals=Lengths(900, 4000, 9000), kv_tokens=50_000, config={"max_model_len": 8192})
    answer = parameters_or_workload(fits_pool)
    assert answer.verdict == "extreme requests" and [(c.name, c.value) for c in answer.changes] == [
        ("max_model_len", 9000)
    ]
    beyond = parameters_or_workload(situation(totals=Lengths(900, 4000, 90_000), kv_tokens=50_000))
    assert beyond.verdict == "extreme requests" and not beyond.changes and beyond.advice


def test_a_silent_engine_is_broken() -> None:  # case DIAG-16
    stuck = situation(running=Gauge(2, 2), waiting=Gauge(3, 3), output_tokens_per_s=0.0, span_s=120.0)
    assert health_of(stuck) == "broken" and "no token in 120 s with 2 requests running" in problems(stuck)[0]


def test_little_is_known_little_is_said() -> None:
    """Nothing known: five unknowns, not called healthy, nothing to change."""
    told = diagnose([situation()])
    assert [a.verdict for a in told.answers] == ["unknown"] * 5 and told.health == "unknown"
    assert told.answers[2].confidence == "unknown" and not told.changes
    assert told.to_json()["questions"][0]["confidence"] == "unknown"


def test_physics_of_a_known_card() -> None:
    """Llama-3.1-8B on an A100: 15 GB of weights at 2039 GB/s are at least 7.4 ms."""
    seen = situation(
        model=find_model("Llama-3.1-8B"), gpu=find_gpu("A100-80"), running=Gauge(8, 8), itl_ms=Tail(11.0, 14.0),
        kv_tokens=400_000, kv_usage=Gauge(0.02, 0.03), prompts=Lengths(900), outputs=Lengths(100),
    )  # fmt: skip
    answer = compute_or_bandwidth(seen)
    assert answer.verdict == "decode bandwidth, prefill compute" and "7." in answer.evidence[0]
    slow = compute_or_bandwidth(situation(**{**vars_of(seen), "itl_ms": Tail(60.0, 70.0)}))
    assert slow.verdict.startswith("decode neither") and slow.confidence == "high"
    host = gpu_or_cpu(situation(**{**vars_of(seen), "itl_ms": Tail(60.0, 70.0), "config": {"enforce_eager": True}}))
    assert host.verdict == "cpu" and [c.name for c in host.changes] == ["enforce_eager"]


def vars_of(s: Situation) -> dict[str, Any]:
    return {name: getattr(s, name) for name in s.__dataclass_fields__}
