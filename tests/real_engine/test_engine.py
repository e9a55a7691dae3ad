"""The real engine as a trial sees it: booted, loaded, emptied, kept, killed and frozen in the middle of a load."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from optimizer.engines.build import AttachedEngineSpec, RealEngineSpec
from optimizer.engines.engine import Engine
from optimizer.engines.vllm.engine import VllmEngine
from optimizer.engines.vllm.http import metrics_text
from optimizer.engines.vllm.spec import AttachSpec, VllmSpec
from optimizer.errors import EngineFailed, UserError
from optimizer.processes import is_alive
from optimizer.trial import Broken, TrialPlan, run_trial
from search_spaces.config import Config
from tests.real_engine.conftest import SMALL
from tests.real_engine.loads import measured, one_server, plan, saturated, trace

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

VOCABULARY = 512
HANG_AFTER_S = 5.0
PLACEMENT = one_server(SMALL)


@pytest.fixture(scope="module")
def engine(vllm_python: str, tiny_model: Path) -> Iterator[VllmEngine]:
    """Keeps its server from test to test, as a worker does."""
    made = RealEngineSpec(
        VllmSpec(str(tiny_model), VOCABULARY, vllm_python, n_gpus=0, hang_after_s=HANG_AFTER_S)
    ).build()
    assert isinstance(made, VllmEngine)
    yield made
    made.stop()


def pids(engine: VllmEngine) -> tuple[int, ...]:
    return tuple(pid for server in engine.servers for pid in server.pids)


def test_a_boot_is_recorded_and_kept(engine: VllmEngine) -> None:
    before = engine.identity
    report = engine.boot(PLACEMENT, 0)
    assert engine.identity == before and before.startswith("vLLM 0.32")
    assert report.kv_tokens == {"server": 32_768} and report.kv_blocks == {"server": 1024}
    assert sum(report.seconds.values()) > 1
    facts = json.loads(json.dumps(report.facts))
    assert facts["servers"]["server"]["resolved"]["scheduler_config"]["max_num_seqs"] == 16
    running = pids(engine)
    again = engine.boot(PLACEMENT, 1)
    assert again.facts["reused"] and not again.seconds and pids(engine) == running
    assert engine.holds(PLACEMENT) and not engine.holds(one_server(Config({**SMALL, "max_num_seqs": 8})))


def test_steady_and_saturated_loads(engine: VllmEngine) -> None:
    engine.boot(PLACEMENT, 0)
    of = trace(60, 4.0)
    engine.reset()
    steady = engine.replay(plan(of))
    assert [r.output_tokens for r in steady.records] == of.output_tokens.tolist()
    assert [r.prompt_tokens for r in steady.records] == of.prompt_tokens.tolist()
    assert all(r.failure is None and r.sent_s >= r.scheduled_s - 1e-3 for r in steady.records)
    counters = steady.counters["server"]
    assert counters.generation_tokens == of.output_tokens.sum() and counters.n_finished == len(of)
    assert counters.n_preemptions == 0 and counters.prompt_tokens == of.prompt_tokens.sum()
    assert steady.client is not None and (steady.client.fault is None or "late" in steady.client.fault)
    assert {s.role for s in steady.processes} >= {"api_server", "engine_core", "worker", "client"}
    assert steady.min_free_memory_bytes and steady.devices[0].device == "host"
    engine.reset()
    full = engine.replay(saturated(of))
    assert full.was_running_set_full is True
    assert 0 < full.counted_from_s < full.counted_until_s < full.end_s
    assert max(s.n_running or 0 for s in full.samples) <= 16


def test_the_cache_is_as_cold_before_every_load(engine: VllmEngine) -> None:  # case TOOL-12
    engine.boot(PLACEMENT, 0)
    found = []
    for _ in range(2):
        engine.reset()
        phase = engine.replay(plan(trace(30, 1.0)))
        found.append([r.cached_prompt_tokens for r in phase.records])
    assert found[0] == found[1] == [0] * 30


def test_text_with_the_servers_own_sampling(engine: VllmEngine) -> None:
    engine.boot(PLACEMENT, 0)
    engine.reset()
    phase = engine.replay(replace(plan(trace(20, 1.0)), style="chat"))
    answered = [r for r in phase.records if r.token_times_s.size]
    assert len(answered) >= 18
    assert all(r.output_tokens <= r.asked_output_tokens for r in answered)


def test_an_attached_server_is_measured_and_left_alone(engine: VllmEngine) -> None:
    engine.boot(PLACEMENT, 0)
    running, url = pids(engine), engine.servers[0].url
    attached = AttachedEngineSpec(AttachSpec((("", url),), VOCABULARY)).build()
    assert "attached" in attached.identity
    report = attached.boot(PLACEMENT, 0)
    assert report.kv_tokens == {"server": 32_768}
    attached.reset()
    phase = attached.replay(plan(trace(20, 1.0)))
    assert all(r.failure is None for r in phase.records)
    attached.stop()
    assert pids(engine) == running and engine.holds(PLACEMENT)


def test_an_attached_server_that_others_use_is_refused(engine: VllmEngine) -> None:
    engine.boot(PLACEMENT, 0)
    engine.reset()
    url = engine.servers[0].url
    others = threading.Thread(target=lambda: engine.replay(plan(trace(40, 8.0))))
    others.start()
    try:
        time.sleep(2.0)
        with pytest.raises(UserError, match=r"others run there.*--attach-anyway"):
            AttachedEngineSpec(AttachSpec((("", url),), VOCABULARY)).build().boot(PLACEMENT, 0)
        insisting = AttachedEngineSpec(AttachSpec((("", url),), VOCABULARY, is_insisting=True)).build()
        assert insisting.boot(PLACEMENT, 0).kv_tokens == {"server": 32_768}
    finally:
        others.join()


def during(engine: Engine, act: Callable[[], None]) -> EngineFailed:
    """The failure of a load in which `act` happens after two seconds."""
    engine.reset()
    timer = threading.Timer(2.0, act)
    timer.start()
    with pytest.raises(EngineFailed) as caught:
        engine.replay(plan(trace(400, 40.0, output=(20, 40)), time_limit_s=60.0))
    timer.join()
    return caught.value


def engine_core(engine: VllmEngine) -> psutil.Process:
    found = [p for pid in pids(engine) if "EngineCor" in (p := psutil.Process(pid)).name()]
    return found[0]


def test_an_engine_killed_in_the_middle_is_nobodys_configuration(engine: VllmEngine) -> None:  # case PROC-01
    engine.boot(PLACEMENT, 0)
    running = [psutil.Process(pid) for pid in pids(engine)]
    victim = engine_core(engine)
    begin_s = time.monotonic()
    failure = during(engine, lambda: os.kill(victim.pid, signal.SIGKILL))
    assert time.monotonic() - begin_s < 30
    assert failure.kind == "killed" and failure.phase == "serving" and not failure.is_config_fault
    assert not engine.holds(PLACEMENT)
    engine.stop()
    assert not [p for p in running if is_alive(p)]
    assert "EngineCore" in engine.logs()["server"]


def test_a_frozen_engine_is_a_hang_whatever_health_says(engine: VllmEngine) -> None:  # case DIAG-16
    """As a trial: Broken, its log kept, nothing left; and the slot goes on with the next."""
    engine.boot(PLACEMENT, 0)
    running = [psutil.Process(pid) for pid in pids(engine)]
    victim = engine_core(engine)
    timer = threading.Timer(2.0, lambda: os.kill(victim.pid, signal.SIGSTOP))
    timer.start()
    load = plan(trace(400, 40.0, output=(20, 40)), time_limit_s=90.0)
    outcome = run_trial(TrialPlan(0, 0, "search", PLACEMENT, (load,), 0), engine)
    timer.join()
    assert isinstance(outcome, Broken) and outcome.kind == "hang", outcome
    assert "no token for" in outcome.cause and "stopped" in " ".join(outcome.evidence)
    assert "Application startup complete" in outcome.logs["server"]
    assert "Fatal Python error: Aborted" in outcome.logs["server"], "the stacks of those that were not stopped"
    assert 'File "' in outcome.logs["server"].partition("Fatal Python error: Aborted")[2]
    assert any("what its threads were at" in text for text in outcome.evidence)
    assert not [p for p in running if is_alive(p)]


def test_preemptions_are_those_of_the_requests(engine: VllmEngine) -> None:  # case PRE-01
    """16 requests of up to 320 tokens in 39 blocks of 32; and the worker goes on after the hang before."""
    config = Config({**SMALL, "max_model_len": 512, "num_gpu_blocks_override": 40})
    of = trace(16, 0.0, prompt=(60, 65), output=(200, 256))
    outcome = measured(TrialPlan(1, 0, "search", one_server(config), (saturated(of),), 0), engine)
    phase = outcome.measurement.phases["saturation"]
    n_preemptions = phase.counters["server"].n_preemptions
    assert n_preemptions and n_preemptions > 0
    text = metrics_text(engine.servers[0].url) or ""
    summed = sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(SUM_OVER_REQUESTS))
    assert summed == n_preemptions
    assert np.all([r.is_finished for r in phase.records])


SUM_OVER_REQUESTS = "vllm:request_num_preemptions_sum"
