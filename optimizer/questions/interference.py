"""Long prefills that make others wait for their next token: is the ITL spike a chunk's size over the prefill rate?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optimizer.questions.answer import Change
from optimizer.questions.physics import peak_flops
from optimizer.questions.situation import Situation

LONG_FACTOR = 3.0
"""A gap of more than so many times the median is a spike."""
MIN_SPIKES = 5
MOSTLY = 0.5
"""Share of the spikes beside a prefill from which on prefills are what makes them."""
SMALLER = (4, 8)
"""Budgets to try: this fraction of the present one."""
LEAST_BUDGET = 256
MOST_MFU = 0.6
"""Of the card's arithmetic that prefill reaches at most (measured: 0.40 to 0.60)."""


@dataclass(frozen=True, slots=True)
class Spikes:
    """Whether prefills of others make the long gaps."""

    is_prefill: bool | None
    """None: nobody saw single gaps."""
    text: str
    changes: tuple[Change, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"is_prefill": self.is_prefill, "text": self.text, "changes": [c.to_json() for c in self.changes]}


def chunk_s(chunk_tokens: float, prefill_tokens_per_s: float) -> float:
    """How long a step takes that computes such a chunk: the gap it puts between two tokens of everybody else."""
    return chunk_tokens / prefill_tokens_per_s


def prefill_interference(s: Situation) -> Spikes:
    seen = s.interference
    if seen is None:
        return Spikes(None, "needs the gaps of single requests")
    if seen.n_long_gaps < MIN_SPIKES:
        few = (
            f"only {seen.n_long_gaps} gaps"
            if seen.n_long_gaps > 1
            else "a single gap"
            if seen.n_long_gaps
            else "no gap"
        )
        return Spikes(False, f"{few} above {LONG_FACTOR:g} times the median: no spikes to explain")
    base = f"{seen.n_long_gaps} gaps of {seen.long_gap_mean_s:.2g} s on average against {seen.base_gap_s:.2g} s"
    if seen.share < MOSTLY:
        return Spikes(False, f"{base}, only {seen.share:.0%} of them beside another request's prefill")
    spike_s = max(seen.long_gap_mean_s, _tail_s(s))
    chunk, rate = _chunk_and_rate(s, spike_s - seen.base_gap_s)
    return explain_spike(
        spike_s,
        seen.base_gap_s,
        s.whole("max_num_batched_tokens"),
        chunk,
        rate,
        most_seqs=s.whole("max_num_seqs"),
        told=f"{base}, {seen.share:.0%} of them beside another request's prefill",
    )


def _tail_s(s: Situation) -> float:
    """The P99 gap, which is what a smaller chunk is to shorten; 0 where it is not known to the millisecond."""
    if s.itl_ms is None or s.itl_ms.p99 is None or s.itl_ms.is_from_buckets:
        return 0.0
    return s.itl_ms.p99 / 1e3


def _chunk_and_rate(s: Situation, extra_s: float) -> tuple[float | None, float | None]:
    """The longest prompt's chunk took the extra time, unless no card computes so fast: then it was a shorter one."""
    longest, budget, most = _longest_prompt(s), s.whole("max_num_batched_tokens"), _most_tokens_per_s(s)
    if longest is None or budget is None or most is None or extra_s <= 0:
        return longest, None
    chunk = min(budget, longest)
    return (chunk, None) if chunk / extra_s <= most else (most * extra_s, most)


def _most_tokens_per_s(s: Situation) -> float | None:
    if s.model is None or s.gpu is None:
        return None
    return MOST_MFU * s.tensor_parallel_size * peak_flops(s.model, s.gpu) / (2.0 * s.model.n_active_parameters)


def _longest_prompt(s: Situation) -> float | None:
    """It is the long prompts that fill a step, however short the mean is."""
    if s.prompts is None:
        return None
    return s.prompts.longest or s.prompts.p99 or s.prompts.mean


def _fractions(budget: int, chunk: float) -> list[int]:
    """Of the budget; where even the smaller is above the chunk, half of the chunk."""
    found = [budget // k for k in SMALLER]
    return found if found[-1] < chunk else [int(chunk / 2) // 64 * 64]


def explain_spike(
    spike_s: float, base_s: float, budget: int | None, prompt_tokens: float | None = None,
    prefill_tokens_per_s: float | None = None, told: str = "", most_seqs: int | None = None,
) -> Spikes:  # fmt: skip
    """A spike beside a prefill as a chunk over a rate, and what a smaller token budget would make of it.

    `prompt_tokens`: of the long prompts. No budget below `most_seqs` is named: vLLM refuses one."""
    if budget is None:
        return Spikes(True, f"{told}: long prefills make the others wait" if told else "long prefills make others wait")
    chunk = min(budget, prompt_tokens or budget)
    rate = prefill_tokens_per_s or chunk / max(spike_s - base_s, 1e-9)
    smaller = [b for b in _fractions(budget, chunk) if max(LEAST_BUDGET, most_seqs or 0) <= b < chunk]
    predicted = ", ".join(f"{chunk_s(b, rate):.2g} s at {b}" for b in smaller)
    text = (
        (f"{told}: " if told else "")
        + f"the spike is a chunk of {chunk:.0f} tokens at {rate:,.0f} prefill tokens/s = {chunk_s(chunk, rate):.2g} s"
        + (f"; by the same rule {predicted}, and TTFT of long prompts rises" if predicted else "")
    )
    changes = tuple(
        Change(
            "max_num_batched_tokens", b, f"a chunk of {b} tokens holds the others up {chunk_s(b, rate):.2g} s",
            "ITL tail falls, TTFT of long prompts rises",
        )
        for b in smaller
    )  # fmt: skip
    if LEAST_BUDGET <= budget // SMALLER[0] < chunk:
        why = "long prompts are cut smaller while the budget stays for many short ones"
        changes += (Change("long_prefill_token_threshold", budget // SMALLER[0], why, "ITL tail falls"),)
    return Spikes(True, text, changes)
