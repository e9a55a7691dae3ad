"""One suite over every Engine: what a trial may rely on, whatever runs underneath."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from objectives.measurement import Load, PhaseMeasurement
from optimizer.engines.build import RealEngineSpec
from optimizer.engines.engine import Engine, Instance, LoadPlan, Placement
from optimizer.engines.simulator.engine import SimulatedEngine, SimulatorSpec
from optimizer.engines.vllm.spec import VllmSpec
from optimizer.errors import EngineFailed
from optimizer.workload.trace import Trace
from search_spaces.config import Config
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model
from tests.real_engine.tiny_model import write_tiny_model


def simulator() -> Engine:
    return SimulatedEngine(SimulatorSpec(find_model("Llama-3.1-8B"), find_gpu("A100-40")))


REAL = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """vLLM on a CPU, kept for the whole module: a boot takes half a minute, and only other arguments need another."""
    model = write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")
    made = RealEngineSpec(VllmSpec(str(model), 512, request.getfixturevalue("vllm_python"), n_gpus=0)).build()
    yield made
    made.stop()


@pytest.fixture(params=["simulator", pytest.param("vllm", marks=REAL)])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Add an engine here; it must pass as it is."""
    if request.param == "vllm":
        yield request.getfixturevalue("real")
        return
    made = simulator()
    yield made
    made.stop()


BASE = {
    "max_num_batched_tokens": 1024, "max_num_seqs": 16, "max_model_len": 2048, "kv_cache_memory_bytes": 512 * 1024**2,
    "block_size": 32, "enforce_eager": True,
}  # fmt: skip


def placement(**arguments: Any) -> Placement:
    return Placement((Instance("server", Config(BASE | arguments), ("default",)),))


def trace(prompts: list[int], outputs: list[int], arrivals: list[float] | None = None) -> Trace:
    n = len(prompts)
    return Trace(
        arrival_s=np.array(arrivals if arrivals is not None else np.arange(n) * 0.05),
        prompt_tokens=np.array(prompts, np.int32),
        output_tokens=np.array(outputs, np.int32),
        tenant=np.zeros(n, np.int16),
    )


def plan(of: Trace, load: Load = "steady", n_warmup: int = 0, time_limit_s: float = 120.0) -> LoadPlan:
    return LoadPlan(load, of, n_warmup, of.rate_per_s, time_limit_s)


def skip_boots(engine: Engine, where: str) -> None:
    """Two more boots of a real engine would show what is shown elsewhere."""
    if not engine.is_simulated:
        pytest.skip(f"boots are dear; shown by {where}")


def replay(engine: Engine, of: LoadPlan) -> PhaseMeasurement:
    """On emptied caches, as a trial does."""
    engine.reset()
    return engine.replay(of)


def mixed(n: int = 24) -> Trace:
    rng = np.random.default_rng(0)
    return trace(rng.integers(1, 600, n).tolist(), rng.integers(1, 60, n).tolist())


def test_identity_is_the_same_before_and_after_boot(engine: Engine) -> None:
    before = engine.identity
    engine.boot(placement(), 0)
    assert engine.identity == before
    assert before


def test_boot_reports_what_it_resolved(engine: Engine) -> None:
    engine.stop()
    report = engine.boot(placement(), 0)
    assert set(report.kv_tokens) == set(report.kv_blocks) == {"server"}
    assert report.kv_tokens["server"] >= 2048
    assert sum(report.seconds.values()) > 0
    assert report.free_memory_bytes is None or report.free_memory_bytes >= 0


def test_every_token_asked_for_arrives_once_and_in_order(engine: Engine) -> None:
    engine.boot(placement(), 0)
    of = mixed()
    phase = replay(engine, plan(of))
    assert [r.request_id for r in phase.records] == list(range(len(of)))
    for record in phase.records:
        assert record.failure is None
        assert record.output_tokens == record.asked_output_tokens == of.output_tokens[record.request_id]
        assert record.prompt_tokens == of.prompt_tokens[record.request_id]
        assert np.all(np.diff(record.token_times_s) >= 0), "a late reader finds two messages at once"
        assert record.ttft_s is not None
        assert record.ttft_s > 0
        assert record.sent_s >= record.scheduled_s - 1e-6
    assert phase.end_s >= max(float(r.token_times_s[-1]) for r in phase.records) - 1e-9
    assert phase.cut_reason is None


def test_one_token_answers(engine: Engine) -> None:
    engine.boot(placement(), 0)
    phase = replay(engine, plan(trace([1, 17, 500], [1, 1, 1])))
    assert [r.output_tokens for r in phase.records] == [1, 1, 1]
    assert all(r.gaps_s.size == 0 and r.failure is None for r in phase.records)


def test_warmup_rows_are_replayed_but_not_recorded(engine: Engine) -> None:
    engine.boot(placement(), 0)
    of = mixed(20)
    phase = replay(engine, plan(of.shifted(-float(of.arrival_s[8])), n_warmup=8))
    assert [r.request_id for r in phase.records] == list(range(8, 20))
    assert min(r.scheduled_s for r in phase.records) == pytest.approx(0.0)
    assert phase.counted_from_s == pytest.approx(0.0)
    counters = phase.counters["server"]
    assert counters.prompt_tokens is None or counters.prompt_tokens < of.prompt_tokens.sum()


def test_a_prompt_beyond_max_model_len_fails_alone(engine: Engine) -> None:
    engine.boot(placement(), 0)
    phase = replay(engine, plan(trace([100, 2048, 5000, 100], [5, 5, 5, 5])))
    failures = [r.failure for r in phase.records]
    assert failures[0] is None
    assert failures[3] is None
    assert all(f is not None and f.startswith("HTTP 400") for f in failures[1:3])
    assert all(r.output_tokens == 0 for r in phase.records[1:3])


def test_an_answer_cut_by_max_model_len_is_not_a_success(engine: Engine) -> None:
    engine.boot(placement(), 0)
    record, *others = replay(engine, plan(trace([2000] + [50] * 20, [100] * 21))).records
    assert record.output_tokens == 48
    assert record.failure is not None
    assert "48 of 100" in record.failure
    assert all(r.failure is None for r in others)


def test_only_refused_requests(engine: Engine) -> None:
    engine.boot(placement(), 0)
    phase = replay(engine, plan(trace([4000, 4000], [5, 5])))
    assert all(r.failure and not r.output_tokens for r in phase.records)


def test_loads_do_not_leak_into_each_other(engine: Engine) -> None:
    engine.boot(placement(), 0)
    first = replay(engine, plan(mixed()))
    second = replay(engine, plan(mixed()))
    for a, b in zip(first.records, second.records, strict=True):
        assert a.cached_prompt_tokens == b.cached_prompt_tokens


def test_samples_and_counters(engine: Engine) -> None:
    engine.boot(placement(), 0)
    of = mixed(60)
    phase = replay(engine, plan(of))
    assert phase.samples
    assert all(s.kv_usage is None or 0 <= s.kv_usage <= 1 for s in phase.samples)
    assert all(a.time_s <= b.time_s for a, b in itertools.pairwise(phase.samples))
    counters = phase.counters["server"]
    assert counters.prompt_tokens in (None, of.prompt_tokens.sum())
    assert [s.n_running for s in engine.sample()] in ([0], [None])


def test_a_full_queue_turns_requests_away(engine: Engine) -> None:
    engine.boot(placement(max_num_queued_reqs=5), 0)
    phase = replay(engine, plan(trace([200] * 20, [50] * 20, [0.0] * 20)))
    refused = [r for r in phase.records if r.failure]
    assert len(refused) == 15
    assert all("503" in (r.failure or "") or "cannot accept new requests" in (r.failure or "") for r in refused)


def test_the_time_limit_cuts(engine: Engine) -> None:
    engine.boot(placement(max_num_seqs=4), 0)
    phase = replay(engine, plan(trace([300] * 40, [100] * 40, [0.0] * 40), time_limit_s=4.0))
    assert phase.cut_reason
    assert phase.end_s == pytest.approx(4.0, abs=0.5)
    late = [r for r in phase.records if r.failure]
    assert late
    assert all(r.failure == "timeout" for r in late)
    assert all(t <= 4.5 for r in phase.records for t in r.token_times_s[-1:])
    assert any(r.failure is None for r in phase.records)


def test_saturation_counts_between_full_and_empty(engine: Engine) -> None:
    engine.boot(placement(max_num_seqs=4), 0)
    phase = replay(engine, plan(trace([300] * 30, [40] * 30, [0.0] * 30), "saturation"))
    assert phase.was_running_set_full is True
    assert 0 <= phase.counted_from_s < phase.counted_until_s < phase.end_s


def test_two_servers_share_a_card(engine: Engine) -> None:
    skip_boots(engine, "tests/real_engine/test_two_servers.py")
    config = Config(BASE | {"max_num_seqs": 8})
    pair = Placement(tuple(Instance(n, config, (n,)) for n in ("a", "b")), "time-slice")
    report = engine.boot(pair, 0)
    assert set(report.kv_tokens) == {"a", "b"}
    of = mixed(20)
    of = Trace(of.arrival_s, of.prompt_tokens, of.output_tokens, np.arange(20, dtype=np.int16) % 2, ("a", "b"))
    phase = replay(engine, plan(of))
    assert phase.tenants == ("a", "b")
    assert all(r.failure is None for r in phase.records)
    assert set(phase.counters) == {"a", "b"}


def test_a_configuration_that_cannot_boot_is_the_configurations_fault(engine: Engine) -> None:
    with pytest.raises(EngineFailed) as caught:
        engine.boot(placement(max_num_seqs=4096), 0)
    assert caught.value.is_config_fault
    engine.boot(placement(), 0)  # nothing was left behind


def test_nothing_works_before_boot_or_after_stop(engine: Engine) -> None:
    engine.stop()
    with pytest.raises(EngineFailed) as caught:
        engine.replay(plan(mixed()))
    assert not caught.value.is_config_fault
    engine.boot(placement(), 0)
    engine.stop()
    engine.stop()
    with pytest.raises(EngineFailed):
        engine.sample()


def test_a_second_boot_replaces_the_first(engine: Engine) -> None:
    skip_boots(engine, "the tests above, which boot other arguments in turn")
    small = engine.boot(placement(kv_cache_memory_bytes=1024**3), 0)
    large = engine.boot(placement(kv_cache_memory_bytes=2 * 1024**3), 0)
    assert large.kv_tokens["server"] > small.kv_tokens["server"]
