"""Two servers on one card: they must disturb each other, and only while both have work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from objectives.measurement import PhaseMeasurement
from optimizer.engines.engine import Instance, Placement
from optimizer.engines.simulator.steps import read_steps
from optimizer.errors import UserError
from optimizer.workload.trace import Trace
from search_spaces.config import Config
from search_spaces.hardware import GIB

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


@pytest.mark.parametrize("sharing", ["time-slice", "mps"])
def test_a_burst_of_the_neighbour_is_felt_while_it_lasts(sharing: Any) -> None:
    chat = only(trace(120, 60.0, 1, TENANTS, outputs=(20, 60)), "chat")
    burst = only(trace(160, 0.5, 2, TENANTS), "batch").shifted(20.0)
    alone, disturbed = replayed(chat, sharing), replayed(merged(chat, burst), sharing)
    last = max(r.token_times_s[-1] for r in disturbed.records if r.tenant == "batch")
    for figure in (ttfts, longest_gaps):
        quiet, inside = figure(alone, 20.0, last), figure(disturbed, 20.0, last)
        assert p99(inside) > (1.3 if sharing == "time-slice" else 1.15) * p99(quiet)
    for begin, end in ((0.0, 15.0), (last + 5.0, 60.0)):
        np.testing.assert_allclose(ttfts(disturbed, begin, end), ttfts(alone, begin, end), rtol=0.25)


def ttfts(phase: PhaseMeasurement, begin_s: float, end_s: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Of the chats that arrive between."""
    return np.array([r.ttft_s for r in phase.records if r.tenant == "chat" and begin_s <= r.scheduled_s < end_s])


def longest_gaps(phase: PhaseMeasurement, begin_s: float, end_s: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    records = [r for r in phase.records if r.tenant == "chat" and begin_s <= r.scheduled_s < end_s]
    return np.array([r.gaps_s.max() for r in records])


def test_the_larger_the_burst_the_worse_for_the_other() -> None:
    chat = only(trace(120, 30.0, 1, TENANTS, outputs=(20, 60)), "chat")
    bursts = [only(trace(n, 0.5, 2, TENANTS), "batch").shifted(10.0) for n in (20, 80, 320)]
    tails = [p99(ttfts(replayed(merged(chat, b), "mps"), 10.0, 30.0)) for b in bursts]
    assert tails[0] < 1.05 * tails[1] and tails[1] < tails[2]
    assert tails[-1] > 1.3 * tails[0]


def floods() -> tuple[Trace, Trace]:
    """Work that is all there at the start, so that no card idles."""
    return only(trace(200, 1e-3, 5, TENANTS), "chat"), only(trace(200, 1e-3, 6, TENANTS), "batch")


def test_overlap_lies_between_taking_turns_and_cards_of_their_own() -> None:
    one, other = floods()
    n_tokens = [int(part.output_tokens.sum()) for part in (one, other)]
    isolated = sum(n / replayed(part, "mps").end_s for n, part in zip(n_tokens, (one, other), strict=True))
    sliced, overlapped = (sum(n_tokens) / replayed(merged(one, other), how).end_s for how in ("time-slice", "mps"))
    assert sliced < overlapped < isolated
    turns_s = sum(replayed(part, "time-slice").end_s for part in (one, other))
    assert replayed(merged(one, other), "time-slice").end_s == pytest.approx(turns_s, rel=0.03)


@pytest.mark.parametrize("sharing", ["time-slice", "mps"])
def test_the_card_never_does_more_than_it_can(sharing: Any, tmp_path: Path) -> None:
    """At every moment: the work of all steps ended so far is at most the card's time so far. Under MPS that holds for
    compute and for bandwidth, and some time both are needed by more than one."""
    one = engine("A100-80", step_log=str(tmp_path / "{instance}"))
    one.boot(pair(sharing), 0)
    one.replay(plan(merged(*floods())))
    ended: list[tuple[float, float, float, float]] = []
    for number, name in enumerate(TENANTS):
        model = one._step_times[number]
        for step in read_steps(tmp_path / name):
            compute, bandwidth = model.demand(
                step.n_prefill_tokens + step.n_decodes, step.n_prefill_tokens, step.seconds
            )
            ended.append((step.end_s or 0.0, step.seconds, compute * step.seconds, bandwidth * step.seconds))
    ended.sort()
    time_s, *work = np.array(ended).T
    seconds, compute_s, bandwidth_s = (np.cumsum(w) for w in work)
    if sharing == "time-slice":
        assert np.all(seconds <= time_s + 1e-6)
        assert seconds[-1] > 0.95 * time_s[-1]
    else:
        assert np.all(compute_s <= time_s + 1e-6)
        assert np.all(bandwidth_s <= time_s + 1e-6)
        assert seconds[-1] > 1.02 * time_s[-1], "nothing overlapped"


def test_four_servers_with_work_for_one_are_one_server() -> None:
    fields = {**pair().instances[0].config, "kv_cache_memory_bytes": 4 * GIB, "max_num_seqs": 32}
    names = ("chat", "b", "c", "d")
    four = Placement(tuple(Instance(n, Config(fields), (n,)) for n in names), "mps")
    requests = trace(40, 10.0, 3)
    owned = Trace(requests.arrival_s, requests.prompt_tokens, requests.output_tokens, requests.tenant, names)
    phases = []
    for where, load in ((four, owned), (placement(**fields), requests)):
        one = engine("H200-141")
        one.boot(where, 0)
        phases.append(one.replay(plan(load)))
    for a, b in zip(phases[0].records, phases[1].records, strict=True):
        np.testing.assert_allclose(a.token_times_s, b.token_times_s, rtol=1e-9)


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
