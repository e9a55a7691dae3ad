"""What only the simulator promises: no short cut changes a result, noise is seeded, too small a card refuses."""

from __future__ import annotations

import hashlib
import itertools
import pickle
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from objectives.measurement import PhaseMeasurement
from optimizer.engines.engine import Instance, Placement, Sharing
from optimizer.engines.simulator.engine import SimulatedEngine, SimulatorSpec
from optimizer.errors import EngineFailed, UserError
from optimizer.workload.trace import Trace
from search_spaces.config import Config
from search_spaces.hardware import GIB, find_gpu

sys.path.insert(0, str(Path(__file__).parent))
import simulated
from simulated import engine, pair, placement, plan, same, trace, with_prefixes


def arguments(rng: random.Random) -> dict[str, Any]:
    """Random, often short of KV blocks."""
    n_tokens = rng.choice([64, 256, 512, 2048, 8192])
    return {
        "max_num_batched_tokens": n_tokens,
        "max_num_seqs": min(n_tokens, rng.choice([4, 16, 64, 256])),
        "max_model_len": 2048,
        "num_gpu_blocks_override": rng.choice([140, 200, 400, 4000]),
        "watermark": rng.choice([0.0, 0.05]),
        "long_prefill_token_threshold": rng.choice([0, 0, 100, 512]),
        "enable_prefix_caching": rng.random() < 0.7,
        "async_scheduling": rng.random() < 0.6,
        "max_num_queued_reqs": rng.choice([None, None, 20]),
    }


@pytest.mark.parametrize("seed", range(16))
def test_jumping_equals_stepping(seed: int) -> None:
    rng = random.Random(seed)
    requests = trace(50, rng.choice([0.5, 10.0, 60.0]), seed)
    if rng.random() < 0.5:
        requests = with_prefixes(requests, seed)
    load = plan(requests, rng.choice(["steady", "saturation"]), 10, rng.choice([1e6, 1e6, 8.0]))
    where = placement(**arguments(rng))
    phases = []
    for is_stepwise in (False, True):
        one = engine(noise=1.0, is_stepwise=is_stepwise)
        one.boot(where, seed)
        phases.append(one.replay(load))
    assert same(*phases)


def test_jumping_equals_stepping_with_attention_windows() -> None:
    load = plan(trace(40, 20.0, 5, prompts=(20, 3000)))
    phases = []
    for is_stepwise in (False, True):
        one = engine("H100-80", "gpt-oss-20b", is_stepwise=is_stepwise)
        one.boot(placement(), 0)
        phases.append(one.replay(load))
    assert same(*phases)


@pytest.mark.parametrize("sharing", ["time-slice", "mps"])
def test_jumping_equals_stepping_on_a_shared_card(sharing: Any) -> None:
    load = plan(trace(50, 40.0, 3, ("chat", "batch")))
    phases = []
    for is_stepwise in (False, True):
        one = engine("A100-80", is_stepwise=is_stepwise)
        one.boot(pair(sharing), 0)
        phases.append(one.replay(load))
    for a, b in zip(phases[0].records, phases[1].records, strict=True):
        np.testing.assert_allclose(a.token_times_s, b.token_times_s, rtol=1e-9)


def fingerprint(phase: PhaseMeasurement) -> str:
    return hashlib.sha256(b"".join(r.token_times_s.tobytes() for r in phase.records)).hexdigest()


def noisy(seed: int, noise: float = 1.0) -> PhaseMeasurement:
    one = engine(noise=noise)
    one.boot(placement(), seed)
    return one.replay(plan(trace()))


def test_noise_is_the_seeds_alone() -> None:
    assert same(noisy(1), noisy(1))
    assert not same(noisy(1), noisy(2))
    assert same(noisy(1, noise=0.0), noisy(2, noise=0.0))
    assert same(noisy(1, noise=False), noisy(2, noise=0.0))


def test_noise_is_the_same_in_another_process() -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; import test_simulated_engine as t; print(t.fingerprint(t.noisy(7)))"
    )
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", code, str(here), str(here.parents[1])], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == fingerprint(noisy(7))


def test_boots_differ_by_a_few_percent() -> None:
    means = [float(np.mean(np.concatenate([r.gaps_s for r in noisy(s).records]))) for s in range(8)]
    spread = np.std(means) / np.mean(means)
    assert 0.005 < spread < 0.05


def test_the_spec_travels() -> None:
    spec = SimulatorSpec(simulated.MODEL, find_gpu("A100-40"))
    assert pickle.loads(pickle.dumps(spec)) == spec


def refused(where: Placement, gpu: str = "A100-40", model: str = "Llama-3.1-8B") -> EngineFailed:
    with pytest.raises(EngineFailed) as caught:
        engine(gpu, model).boot(where, 0)
    assert caught.value.is_config_fault
    assert caught.value.violation > 0
    return caught.value


def test_weights_that_exceed_the_card() -> None:
    error = refused(placement(), "RTX-4090-24", "Qwen3-32B")
    assert (error.kind, error.phase) == ("weights", "load")


def test_no_room_for_one_request() -> None:
    error = refused(placement(max_model_len=131072, gpu_memory_utilization=0.9), "RTX-4090-24")
    assert (error.kind, error.phase) == ("kv_capacity", "kv_alloc")
    assert "estimated maximum model length is" in error.cause
    length = int(error.cause.split("estimated maximum model length is")[1].strip(" )"))
    assert 8192 < length < 131072


def test_the_repair_hint_boots() -> None:
    error = refused(placement(max_model_len=131072), "RTX-4090-24")
    length = int(error.cause.split("estimated maximum model length is")[1].strip(" )"))
    engine("RTX-4090-24").boot(placement(max_model_len=length), 0)


def test_too_few_blocks_by_override() -> None:
    assert refused(placement(num_gpu_blocks_override=10)).kind == "kv_capacity"


def test_kv_bytes_beyond_the_card() -> None:
    error = refused(placement(kv_cache_memory_bytes=30 * GIB))
    assert error.kind == "runtime_peak"
    assert error.phase in ("profile", "kv_alloc", "graph_capture")


def test_more_missing_is_worse() -> None:
    little = refused(placement(kv_cache_memory_bytes=25 * GIB))
    much = refused(placement(kv_cache_memory_bytes=60 * GIB))
    assert 0 < little.violation < much.violation


def test_stress_finds_a_peak_that_boot_does_not() -> None:
    one = engine()
    free = one.boot(placement(kv_cache_memory_bytes=8 * GIB), 0).free_memory_bytes
    assert free is not None
    tight = placement(kv_cache_memory_bytes=8 * GIB + free - 32 * 1024**2)
    one.boot(tight, 0)
    assert one.replay(plan(trace())).min_free_memory_bytes == pytest.approx(32 * 1024**2, abs=2)
    with pytest.raises(EngineFailed) as caught:
        one.replay(plan(trace(), "stress"))
    assert (caught.value.kind, caught.value.phase, caught.value.is_config_fault) == ("runtime_peak", "stress", True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_num_seqs": 4096}, "must be greater than or equal to max_num_seqs (4096)"),
        ({"max_num_active_seqs": 65}, "max_num_active_seqs (65) cannot be greater"),
        ({"long_prefill_token_threshold": 5000}, "long_prefill_token_threshold (5000) cannot be greater"),
        ({"enable_chunked_prefill": False}, "max_num_batched_tokens (2048) is smaller than max_model_len (4096)"),
        ({"max_model_len": 10_000_000}, "User-specified max_model_len (10000000) is greater"),
        ({"watermark": 1.0}, "watermark"),
        ({"gpu_memory_utilization": 1.2}, "gpu_memory_utilization"),
        ({"tensor_parallel_size": 3}, "must be divisible by tensor parallel size (3)"),
        ({"max_num_seqs": 2.5}, "max_num_seqs: expected a whole number, got 2.5"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching: expected true or false"),
        ({"kv_cache_dtype": "nvfp4"}, "kv_cache_dtype 'nvfp4' is not modelled"),
        ({"scheduling_policy": "priority"}, "scheduling_policy must be fcfs"),
    ],
)
def test_arguments_that_vllm_refuses(changes: dict[str, Any], message: str) -> None:
    error = refused(placement(**changes))
    assert error.kind == "arguments"
    assert message in error.cause


def test_arguments_without_effect_are_named() -> None:
    report = engine().boot(placement(api_server_count=4), 0)
    assert report.facts["ignored_arguments"] == ["api_server_count"]


def test_defaults_are_vllms_for_the_card() -> None:
    where = Placement((Instance("server", Config({"max_model_len": 4096}), ("default",)),))
    one = engine("H100-80")
    one.boot(where, 0)
    assert one.replay(plan(trace(10))).cut_reason is None


def test_two_servers_whose_weights_fit_once() -> None:
    error = refused(pair(), "RTX-4090-24")
    assert error.kind == "weights"


def test_sharing_that_cannot_be_simulated() -> None:
    sharings: tuple[tuple[Sharing, str], ...] = (("mig", "is not simulated"), ("exclusive", "cannot share"))
    for sharing, message in sharings:
        with pytest.raises(UserError, match=message):
            engine("A100-80").boot(pair(sharing), 0)


def test_saturation_window() -> None:
    one = engine()
    one.boot(placement(max_num_seqs=16), 0)
    phase = one.replay(plan(trace(80), "saturation"))
    assert phase.was_running_set_full is True
    assert 0.0 <= phase.counted_from_s < phase.counted_until_s < phase.end_s
    inside = [s for s in phase.samples if phase.counted_from_s < s.time_s < phase.counted_until_s]
    assert inside
    assert all(s.n_waiting and s.n_running and s.n_running >= 14 for s in inside), "a seat is free until the next step"
    assert np.median([s.n_running or 0 for s in inside]) == 16


def test_a_queue_that_empties_before_anything_is_full_is_said() -> None:
    one = engine()
    one.boot(placement(max_num_seqs=256), 0)
    phase = one.replay(plan(trace(20), "saturation"))
    assert phase.was_running_set_full is False
    assert phase.counted_until_s > phase.counted_from_s


def test_a_starved_cache_preempts_and_says_what_it_recomputed() -> None:
    one = engine()
    one.boot(placement(max_model_len=2048, num_gpu_blocks_override=200), 0)
    phase = one.replay(plan(trace(40, 1.0, outputs=(100, 400))))
    victims = [r for r in phase.records if r.n_preemptions]
    assert victims
    assert all(r.failure is None for r in phase.records)
    assert phase.counters["server"].n_preemptions == sum(r.n_preemptions or 0 for r in phase.records)
    assert any(r.recomputed_tokens for r in victims)
    assert not any(r.recomputed_tokens for r in phase.records if not r.n_preemptions)


def test_prefix_caching_shortens_prefills() -> None:
    load = plan(with_prefixes(trace(60, 20.0, prompts=(600, 1500))))
    ttft = {}
    for is_on in (True, False):
        one = engine()
        one.boot(placement(enable_prefix_caching=is_on), 0)
        phase = one.replay(load)
        ttft[is_on] = np.mean([r.ttft_s for r in phase.records])
        cached = phase.counters["server"].cached_prompt_tokens
        assert cached is not None
        assert (cached > 0) == is_on
    assert ttft[True] < ttft[False]


def test_live_changes() -> None:
    one = engine()
    one.boot(placement(max_num_seqs=64, kv_cache_memory_bytes=8 * GIB), 0)
    wide = one.replay(plan(trace(80), "saturation"))
    one.configure(placement(max_num_seqs=4, kv_cache_memory_bytes=8 * GIB))
    narrow = one.replay(plan(trace(80), "saturation"))
    assert max(s.n_running or 0 for s in narrow.samples) == 4
    assert narrow.end_s > wide.end_s
    for changes in ({"max_num_seqs": 128}, {"kv_cache_memory_bytes": 9 * GIB}, {"block_size": 32}):
        with pytest.raises(EngineFailed) as caught:
            one.configure(placement(**({"max_num_seqs": 64, "kv_cache_memory_bytes": 8 * GIB} | changes)))
        assert not caught.value.is_config_fault


def test_samples_are_capped() -> None:
    one = engine()
    one.boot(placement(), 0)
    phase = one.replay(plan(trace(60, 3000.0)))
    assert 150 <= len(phase.samples) <= 400
    times = [s.time_s for s in phase.samples]
    assert all(a < b for a, b in itertools.pairwise(times))


def test_the_result_is_labelled() -> None:
    one: SimulatedEngine = engine()
    assert one.is_simulated
    assert one.identity.startswith("simulator ")
    assert "vLLM 0.32" in one.identity


def test_a_closed_loop_sends_the_next_request_when_one_is_answered() -> None:
    of = trace(n=40, span_s=1.0)
    of = of.at(np.zeros(len(of)))
    phase = replay_closed(of, n_clients=4)
    ends = np.array([r.token_times_s[-1] for r in phase.records])
    starts = np.array([r.scheduled_s for r in phase.records])
    assert all(r.failure is None for r in phase.records)
    assert np.all(starts[:4] == 0.0)
    assert np.allclose(np.sort(ends)[: len(of) - 4], starts[4:])
    assert max(s.n_running + s.n_waiting for s in phase.samples) <= 4


def replay_closed(of: Trace, n_clients: int) -> PhaseMeasurement:
    simulated = engine(n_clients=n_clients)
    simulated.boot(placement(), seed=0)
    return simulated.replay(plan(of))
