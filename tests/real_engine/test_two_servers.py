"""Two servers that share a machine: started one after another, told apart, and how well they are kept apart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from objectives.metric import load_samples
from objectives.tenancy import isolation_ratio
from optimizer.engines.build import RealEngineSpec
from optimizer.engines.engine import Instance, LoadPlan, Placement, Sharing
from optimizer.engines.vllm.engine import VllmEngine
from optimizer.engines.vllm.spec import VllmSpec
from optimizer.trial import TrialPlan
from optimizer.workload.mix import merge
from optimizer.workload.trace import Trace
from tests.real_engine.conftest import SMALL
from tests.real_engine.loads import measured, plan, trace

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]

N_REQUESTS, SPAN_S = 40, 6.0


@pytest.fixture(scope="module")
def engine(vllm_python: str, tiny_model: Path) -> Iterator[VllmEngine]:
    made = RealEngineSpec(VllmSpec(str(tiny_model), 512, vllm_python, n_gpus=0)).build()
    assert isinstance(made, VllmEngine)
    yield made
    made.stop()


def placement(sharing: Sharing) -> Placement:
    return Placement(tuple(Instance(name, SMALL, (name,)) for name in ("chat", "batch")), sharing)


def alone() -> LoadPlan:
    own = trace(N_REQUESTS, SPAN_S, output=(16, 24))
    return plan(named(own, "chat"))


def beside_a_queue() -> LoadPlan:
    """The same requests of `chat`, while all of `batch` wait from the start and outlast it."""
    queue = named(trace(900, 0.0, prompt=(60, 120), output=(40, 60)), "batch").at(np.full(900, -0.5))
    both = merge({"batch": queue, "chat": alone().trace})
    return LoadPlan("steady", both, int((both.arrival_s < 0).sum()), None, SPAN_S + 6.0)


def named(of: Trace, tenant: str) -> Trace:
    return Trace(of.arrival_s, of.prompt_tokens, of.output_tokens, of.tenant, (tenant,))


def ratio(engine: VllmEngine, sharing: Sharing) -> float:
    """Median ITL of `chat` beside a saturated neighbour over the same beside an idle one."""
    samples = []
    for k, load in enumerate((beside_a_queue(), alone())):
        outcome = measured(TrialPlan(0, k, "isolation", placement(sharing), (load,), 0), engine)
        found = load_samples([outcome.measurement], "steady")
        assert found is not None
        samples.append(found)
    value = isolation_ratio(samples[0], samples[1], "chat", "itl_ms", 50)
    assert value is not None
    return value


@pytest.mark.quiet
def test_a_trial_of_two_servers_and_what_shared_cores_cost(engine: VllmEngine) -> None:
    apart = ratio(engine, "mig")
    servers = engine.servers
    assert [len(s.spec.cores) for s in servers] == [1, 1] and servers[0].spec.cores != servers[1].spec.cores
    shared = ratio(engine, "time-slice")
    assert engine.servers[0].spec.cores == engine.servers[1].spec.cores
    print(f"isolation ratio of the median ITL: cores of their own {apart:.2f}, shared cores {shared:.2f}")
    assert shared > apart


def test_both_tenants_get_their_answers_from_their_own_server(engine: VllmEngine) -> None:
    chat, batch = trace(20, 2.0), trace(24, 2.0, prompt=(60, 120))
    both = merge({"chat": named(chat, "chat"), "batch": named(batch, "batch")})
    report = engine.boot(placement("time-slice"), 0)
    assert report.kv_tokens == {"chat": 32_768, "batch": 32_768}
    engine.reset()
    phase = engine.replay(plan(both))
    assert all(r.failure is None for r in phase.records)
    assert {name: c.n_finished for name, c in phase.counters.items()} == {"chat": 20, "batch": 24}
    assert {s.instance for s in phase.samples} == {"chat", "batch"}
