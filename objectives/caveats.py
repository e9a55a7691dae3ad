"""What a reader of a run's figures must be told: one line each, only where it applies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from objectives.measurement import LOADS, Measurement
from objectives.metric import load_samples
from objectives.samples import LoadSamples
from objectives.statistics import MIN_N_P95, MIN_N_P99

MIN_TOUCHED_SHARE = 0.02
"""Fewer gaps than this touching a prefill: the pooled P99 ITL cannot see what prefills do to streams."""


def caveats(measurement: Measurement) -> tuple[str, ...]:
    """Findings of one run, load by load."""
    found: list[str] = []
    for load in LOADS:
        samples = load_samples([measurement], load)
        if samples is not None:
            found += [f"{load}: {line}" for line in _lines(samples)]
    return tuple(found)


def is_itl_blind(samples: LoadSamples) -> bool | None:
    """True if fewer than 2 % of gaps touch a prefill; None without gaps."""
    share = samples.prefill_touched_share
    return None if share is None else share < MIN_TOUCHED_SHARE


def itl_kind(samples: LoadSamples) -> str:
    """What a gap is a gap between. Figures of different kinds are never compared."""
    return "messages of several tokens" if samples.has_several_tokens else "single tokens"


def main_failure(samples: LoadSamples) -> str | None:
    """The commonest reason for failure, with its count; None if every request was answered."""
    reasons = Counter((r.failure or "no token came").split("\n")[0][:200] for r in samples.judged if not r.is_finished)
    if not reasons:
        return None
    reason, n = reasons.most_common(1)[0]
    n_failed = sum(reasons.values())
    return f"{n_failed} of {len(samples.judged)} requests failed ({n}x {reason})"


def _lines(samples: LoadSamples) -> Iterator[str]:
    load = samples.phases[0].load
    if failure := main_failure(samples):
        yield failure
    for reason in dict.fromkeys(p.cut_reason for p in samples.phases if p.cut_reason):
        yield f"cut before it drained: {reason}"
    if samples.has_several_tokens:
        share = samples.several_tokens_share or 0.0
        yield f"{share:.0%} of messages carry other than one token: ITL is per message, read the per-token figures too"
    yield from dict.fromkeys(note for p in samples.phases for note in p.notes)
    if load == "saturation" and any(p.was_running_set_full is False for p in samples.phases):
        yield "the queue emptied before any limit was reached: throughput is a lower bound"
    if load == "steady":
        yield from _steady_lines(samples)


def _steady_lines(samples: LoadSamples) -> Iterator[str]:
    for judged in samples.sustainments:
        if judged is None:
            yield "arrivals span no time, so whether the rate is sustained is unknown"
        elif not judged.is_sustained:
            yield judged.text
    if is_itl_blind(samples):
        share = samples.prefill_touched_share or 0.0
        yield f"P99 ITL is blind to freezes ({share:.1%} of gaps touch a prefill): stall_p99_ms decides"
    n = samples.ttft_ms.n
    if n < MIN_N_P95:
        yield f"n = {n} requests: tails are single requests, read the max of {n}"
    elif n < MIN_N_P99:
        yield f"n = {n} requests: a P99 TTFT has no upper bound below n = {MIN_N_P99}, read P95"
