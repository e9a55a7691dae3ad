"""Long gaps seen in histograms only, and a load made from histograms."""

from __future__ import annotations

import math

import pytest

from optimizer.engines.vllm.readings import Gains, Key, Reading, read_all
from optimizer.questions.situation import Gauge, Lengths, Situation
from optimizer.watching.spikes import spikes_of
from optimizer.watching.typical import typical_load
from tests.watching.replayed_server import PAGES

ITL_EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, math.inf)


def histogram(name: str, counts: dict[float, float], total: float) -> dict[Key, float]:
    """`counts`: upper edge -> observations."""
    found: dict[Key, float] = {(f"vllm:{name}_sum", frozenset()): total}
    for edge in (*ITL_EDGES, *[e for e in counts if e not in ITL_EDGES]):
        text = "+Inf" if math.isinf(edge) else str(edge)
        below = sum(n for e, n in counts.items() if e <= edge)
        found[f"vllm:{name}_bucket", frozenset({("le", text)})] = below
    return found


def gains(spike_edge: float, n_spikes: int, prefill_s: float) -> Gains:
    """1,000 gaps of 20 ms and some long ones; 100 prompts of 8,192 computed tokens took `prefill_s` each."""
    values = histogram("inter_token_latency_seconds", {0.025: 1000, spike_edge: n_spikes}, 20.0 + n_spikes * spike_edge)
    values |= histogram("request_prefill_kv_computed_tokens", {10_000.0: 100}, 819_200.0)
    values |= histogram("request_prefill_time_seconds", {math.inf: 100}, 100 * prefill_s)
    return Gains(Reading({}), Reading(values))


def situation(budget: int | None = 8192) -> Situation:
    config = {} if budget is None else {"max_num_batched_tokens": budget}
    return Situation(
        source="s", span_s=60.0, config=config, prompts=Lengths(8192, 8192), running=Gauge(8, 12), offered_per_s=2.0
    )


def test_gaps_of_the_size_of_a_chunk_are_prefills() -> None:  # case DIAG-06
    found = spikes_of(situation(), gains(0.5, 60, 0.45))
    assert found.is_prefill is True and "the size of a prefill chunk (by size only)" in found.text
    assert {c.name for c in found.changes} == {"max_num_batched_tokens", "long_prefill_token_threshold"}


def test_gaps_far_from_that_size_are_not_called_so() -> None:
    found = spikes_of(situation(), gains(2.5, 60, 0.2))
    assert found.is_prefill is None and "so it is not only that" in found.text


@pytest.mark.parametrize(
    ("budget", "n_spikes", "verdict", "words"),
    [(None, 60, None, "needs the token budget"), (8192, 2, False, "no spikes to explain")],
)
def test_too_little_is_said(budget: int | None, n_spikes: int, verdict: bool | None, words: str) -> None:
    found = spikes_of(situation(budget), gains(0.5, n_spikes, 0.45))
    assert found.is_prefill is verdict and words in found.text


def test_no_requests_no_verdict() -> None:
    empty = Gains(read_all(PAGES[0]), read_all(PAGES[0]))
    assert spikes_of(situation(), empty).is_prefill is None


def test_a_typical_load_has_the_rate_and_lengths_that_were_seen() -> None:
    seen = Gains(read_all(PAGES[0]), read_all(PAGES[-1]))
    load = typical_load(situation(), seen, 1)
    prompts = seen.histogram("request_prompt_tokens")
    assert load is not None and prompts is not None and prompts.mean is not None
    assert len(load.records) == 120 and load.end_s == pytest.approx(60.0, rel=0.25)
    drawn = sum(r.prompt_tokens for r in load.records) / len(load.records)
    assert drawn == pytest.approx(prompts.mean, rel=0.25)
    assert typical_load(situation(), Gains(read_all(PAGES[0]), read_all(PAGES[0])), 1) is None
