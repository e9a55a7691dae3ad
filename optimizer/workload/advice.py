"""What a trace's character means for tuning, in a few plain lines."""

from __future__ import annotations

from optimizer.workload.character import Character
from optimizer.workload.window import MIN_REQUESTS

MIN_N_P99 = 368
"""Requests for which a distribution-free 95 % interval of a P99 exists (0.99^n < 2.5 %)."""
BURSTY_CV, CALM_CV = 1.5, 1.2
LONG_TAIL = 8.0
"""P99 over P50 of prompts from which one prefill holds up many decodes."""


def advise(character: Character) -> tuple[str, ...]:
    """Most important first."""
    lines = [_size(character), _arrivals(character), _balance(character), _lengths(character), _reuse(character)]
    if 0.1 < character.one_token_share < 1:
        lines.append(f"{character.one_token_share:.0%} of the answers are 1 token: they count for TTFT, not for ITL.")
    return tuple(line for line in lines if line)


def _size(c: Character) -> str:
    if c.n_gaps == 0:
        return "Every answer is 1 token: there is no inter-token latency to tune."
    if c.n_requests < MIN_REQUESTS:
        n = c.n_requests
        return f"Too short to tune on (n={n}, at least {MIN_REQUESTS}): fit for a smoke run, or repeat it with jitter."
    if c.n_requests < MIN_N_P99:
        return f"n={c.n_requests}: a P99 needs {MIN_N_P99} for a 95 % interval; P95 is what can be told."
    return ""


def _arrivals(c: Character) -> str:
    if c.gap_cv is None or c.gap_cv_spread is None:
        return "No arrival pattern (all at once, or too few requests): latencies need a rate of your own."
    batches = (
        f"Recorded in batches of {c.batch_spacing_s:.3g} s, to be spread before replay. " if c.batch_spacing_s else ""
    )
    peak = c.peak_over_mean.get("10 s")
    shape = f"CV {c.gap_cv_spread:.2f}" + ("" if peak is None else f", the busiest 10 s carry {peak:.1f} x the mean")
    if c.gap_cv_spread > BURSTY_CV:
        return f"{batches}Bursty ({shape}): choose windows by offered load; the stress load decides what is safe."
    if c.gap_cv_spread < CALM_CV:
        return f"{batches}Close to Poisson ({shape}): a window at the mean load stands for the whole."
    return f"{batches}Somewhat bursty ({shape}): keep the stress load."


def _balance(c: Character) -> str:
    ratio = c.prompt_tokens.mean / c.output_tokens.mean
    if ratio >= 20:
        return f"Prefill-heavy ({ratio:.0f} prompt tokens an output token): max_num_batched_tokens trades TTFT for ITL."
    if ratio <= 1:
        return (
            f"Decode-heavy ({1 / ratio:.1f} output tokens a prompt token): max_num_seqs and KV memory set throughput."
        )
    return f"Mixed ({ratio:.1f} prompt tokens an output token): token budget and sequence limit both matter."


def _lengths(c: Character) -> str:
    ratio = c.prompt_tokens.p99 / max(c.prompt_tokens.p50, 1.0)
    needed = f"the longest request needs a context of {c.total_tokens.max:,.0f} tokens"
    if ratio >= LONG_TAIL:
        tail = f"Long tail (P99 prompt {ratio:.0f} x the median; {needed})"
        return f"{tail}: long prefills stall decodes, watch stall_p99_ms."
    return f"Prompt lengths are even (P99 {ratio:.1f} x the median); {needed}."


def _reuse(c: Character) -> str:
    r = c.prefix_reuse
    if r is None:
        return "No prefix ids: what prefix caching is worth cannot be told from this trace."
    (small, low), *_, (large, high) = r.by_cache.items()
    depends = "grows with the cache, so KV memory counts twice" if high > 1.5 * low else "hardly depends on cache size"
    return (
        f"Prefix reuse {r.endless:.1%} at best ({small} tokens of cache {low:.1%}, {large} {high:.1%}): it {depends}."
    )
