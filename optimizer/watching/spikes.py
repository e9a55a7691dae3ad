"""Long gaps between tokens as a server's own histogram shows them: do they have the size of a prefill chunk?

A histogram does not say which gap fell beside whose prefill. Size is what is left: a chunk of the token budget over the
rate at which this server prefills.
"""

from __future__ import annotations

from optimizer.engines.vllm.readings import Gains
from optimizer.questions.interference import LONG_FACTOR, MIN_SPIKES, Spikes, chunk_s, explain_spike
from optimizer.questions.situation import Situation
from optimizer.watching.of_watch import ITL

NEAR = 2.5
"""Buckets are twice as wide as low, so a size within this factor is the same size."""


def spikes_of(s: Situation, gains: Gains) -> Spikes:
    itl = gains.histogram(*ITL)
    base_s = s.decode_step_s if itl is None else itl.percentile(50)
    if itl is None or not base_s:
        return Spikes(None, "needs the server's histogram of inter-token latencies, and requests while it is watched")
    n_long = itl.above(LONG_FACTOR * base_s)
    if n_long < MIN_SPIKES:
        told = f"{n_long:.0f} of {itl.n:.0f} gaps are surely above {LONG_FACTOR:g} times the median"
        return Spikes(False, f"{told}: no spikes to explain")
    spike_s = itl.mean_above(LONG_FACTOR * base_s)
    told = f"{n_long:.0f} of {itl.n:.0f} gaps, about {spike_s:.2g} s against {base_s:.2g} s"
    rate, chunk = _prefill_rate(gains), _chunk(s)
    if rate is None or chunk is None:
        return Spikes(None, f"{told}; whether prefills make them needs the token budget and prefill times")
    expected_s = chunk_s(chunk, rate)
    if not spike_s / NEAR <= expected_s <= spike_s * NEAR:
        return Spikes(
            None, f"{told}; a chunk of {chunk:.0f} tokens would take {expected_s:.2g} s, so it is not only that"
        )
    told += ", the size of a prefill chunk (by size only)"
    return explain_spike(spike_s, base_s, s.whole("max_num_batched_tokens"), chunk, rate, told, s.whole("max_num_seqs"))


def _prefill_rate(gains: Gains) -> float | None:
    """Tokens a second while a request prefills, as it sees it: with whatever runs beside it."""
    computed = gains.histogram("request_prefill_kv_computed_tokens")
    took = gains.histogram("request_prefill_time_seconds")
    if computed is None or took is None or not took.total or not computed.total:
        return None
    return computed.total / took.total


def _chunk(s: Situation) -> float | None:
    budget = s.whole("max_num_batched_tokens")
    if budget is None or s.prompts is None:
        return None
    longest = s.prompts.p99 or s.prompts.mean
    return min(budget, longest * (1.0 - (s.cached_share or 0.0)))
