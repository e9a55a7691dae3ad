"""Two servers on one card: they must disturb each other, and only while both have work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from objectives.measurement import PhaseMeasurement
from optimizer.errors import UserError
from optimizer.workload.trace import Trace

sys.path.insert(0, str(Path(__file__).parent))
from simulated import engine, gaps, p99, pair, placement, plan, trace

TENANTS = ("chat", "batch")


def only(of: Trace, tenant: str) -> Trace:
    return of.take(np.flatnonzero(of.tenant == TENANTS.index(tenant)))


def merged(a: Trace, b: Trace) -> Trace:
    order = np.argsort(np.concatenate([a.arrival_s, b.arrival_s]), kind="stable")
    return Trace(
        arrival_s=np.concatenate([a.arrival_s, b.arrival_s])[order],
        prompt_tokens=np.concatenate([a.prompt_tokens, b.prompt_tokens])[order],
        output_tokens=np.concatenate([a.output_tokens, b.output_tokens])[order],
        tenant=np.concatenate([a.tenant, b.tenant])[order],
        tenants=TENANTS,
    )


def replayed(of: Trace, sharing: Any) -> PhaseMeasurement:
    one = engine("A100-80")
    one.boot(pair(sharing), 0)
    return one.replay(plan(of))


def chat_and_flood() -> tuple[Trace, Trace]:
    chat = only(trace(80, 20.0, 1, TENANTS), "chat")
    flood = only(trace(700, 0.5, 2, TENANTS), "batch")
    flood = flood.shifted(chat.arrival_s[0] - flood.arrival_s[0])
    return chat, merged(chat, flood)


@pytest.mark.parametrize("sharing", ["time-slice", "mps"])
def test_a_saturated_neighbour_is_felt(sharing: Any) -> None:
    chat, both = chat_and_flood()
    idle, loaded = replayed(chat, sharing), replayed(both, sharing)
    assert p99(gaps(loaded, "chat")) > 1.3 * p99(gaps(idle, "chat"))


@pytest.mark.parametrize("sharing", ["time-slice", "mps"])
def test_an_idle_neighbour_is_not_felt(sharing: Any) -> None:
    chat, _ = chat_and_flood()
    shared = replayed(chat, sharing)
    one = engine("A100-80")
    where = placement(kv_cache_memory_bytes=pair().instances[0].config.int_("kv_cache_memory_bytes"))
    one.boot(where, 0)
    alone = one.replay(plan(Trace(chat.arrival_s, chat.prompt_tokens, chat.output_tokens, chat.tenant)))
    for a, b in zip(shared.records, alone.records, strict=True):
        np.testing.assert_allclose(a.token_times_s, b.token_times_s, rtol=1e-9)


def test_time_slicing_never_overlaps_and_mps_is_never_slower() -> None:
    _, both = chat_and_flood()
    sliced, overlapped = replayed(both, "time-slice"), replayed(both, "mps")
    assert overlapped.end_s <= sliced.end_s * 1.02
    steps = sum(c.n_steps or 0 for c in sliced.counters.values())
    assert steps > 0


def test_two_equal_servers_under_time_slicing_take_twice_as_long() -> None:
    one = only(trace(60, 0.01, 4, TENANTS), "chat")
    twin = Trace(one.arrival_s, one.prompt_tokens, one.output_tokens, 1 - one.tenant, tenants=TENANTS)
    alone, together = replayed(one, "time-slice"), replayed(merged(one, twin), "time-slice")
    assert together.end_s == pytest.approx(2 * alone.end_s, rel=0.02)


def test_each_instance_has_its_own_counters_and_samples() -> None:
    _, both = chat_and_flood()
    phase = replayed(both, "time-slice")
    assert set(phase.counters) == set(TENANTS)
    assert {s.instance for s in phase.samples} == set(TENANTS)
    assert all(r.failure is None for r in phase.records)


def test_a_tenant_that_nobody_serves() -> None:
    one = engine("A100-80")
    one.boot(pair(), 0)
    with pytest.raises(UserError, match="no instance serves tenant 'default'"):
        one.replay(plan(trace(5)))
