"""What the simulator counts must add up, as a real server's counters do."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from objectives.measurement import EngineCounters, Load, PhaseMeasurement

sys.path.insert(0, str(Path(__file__).parent))
from simulated import engine, placement, plan, trace, with_prefixes


def replayed(load: Load = "steady", n_warmup: int = 0, time_limit_s: float = 1e6) -> PhaseMeasurement:
    one = engine()
    one.boot(placement(max_model_len=2048, num_gpu_blocks_override=400), 0)
    return one.replay(plan(with_prefixes(trace(60, 10.0)), load, n_warmup, time_limit_s))


def counters(phase: PhaseMeasurement) -> EngineCounters:
    return phase.counters["server"]


@pytest.mark.parametrize("load", ["steady", "saturation", "stress"])
def test_every_counter_that_a_real_server_has_is_filled(load: Load) -> None:
    counted = counters(replayed(load))
    assert [f.name for f in fields(counted) if getattr(counted, f.name) is None] == []


def test_without_warmup_counters_are_the_records_sums() -> None:
    phase = replayed()
    counted, records = counters(phase), phase.records
    assert counted.n_finished == len(records)
    assert counted.generation_tokens == sum(r.output_tokens for r in records)
    assert counted.prompt_tokens == counted.prefix_queries_tokens == sum(r.prompt_tokens for r in records)
    assert counted.cached_prompt_tokens == counted.prefix_hits_tokens
    assert counted.prefix_hits_tokens == sum(r.cached_prompt_tokens or 0 for r in records)


def test_the_servers_ttft_is_queue_prefill_and_front_end() -> None:
    phase = replayed()
    counted = counters(phase)
    assert counted.ttft_mean_s is not None
    client = float(np.mean([r.ttft_s for r in phase.records]))
    assert counted.ttft_mean_s == pytest.approx(client, abs=0.002)
    assert counted.queue_mean_s is not None
    assert counted.prefill_mean_s is not None
    assert 0 <= counted.queue_mean_s + counted.prefill_mean_s < counted.ttft_mean_s


def test_warmup_counts_only_what_it_does_after_time_0() -> None:
    phase = replayed(n_warmup=20)
    tokens = sum(r.output_tokens for r in phase.records)
    assert tokens < (counters(phase).generation_tokens or 0) < tokens + 20 * 200


def test_a_cut_load_counts_what_was_done() -> None:
    phase = replayed(time_limit_s=4.0)
    assert phase.cut_reason
    counted = counters(phase)
    assert 0 < (counted.n_finished or 0) < len(phase.records)
    delivered = sum(r.output_tokens for r in phase.records)
    assert counted.generation_tokens == pytest.approx(delivered, rel=0.02)
