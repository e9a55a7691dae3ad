"""Rates per GPU, counted inside the phase's window only, by when tokens arrived; never over the makespan.

The window is half open, (from, until]: what arrives at its very first instant was computed before it.
"""

from __future__ import annotations

import numpy as np

from objectives.measurement import PhaseMeasurement, RequestRecord
from objectives.samples import LoadSamples


def output_tokens_per_s_per_gpu(samples: LoadSamples) -> float | None:
    """Output tokens that arrived in the window. A request that was refused or lost contributes none: nobody got its
    answer. One cut by the phase's end does."""
    return _rate(samples, sum(_tokens_in(r, p) for p in samples.phases for r in p.records if _is_served(r)))


def offered_output_tokens_per_s_per_gpu(samples: LoadSamples) -> float | None:
    """Output tokens asked for over the span of the arrivals: what an engine that keeps up serves in the long run. (The
    window's own count misses answers that began before it or end after it.)"""
    asked = seconds = 0.0
    for phase in samples.phases:
        arrivals = [r.scheduled_s for r in phase.records]
        asked += sum(r.asked_output_tokens for r in phase.records)
        seconds += (max(arrivals) - min(arrivals)) * phase.n_gpus if arrivals else 0.0
    return asked / seconds if seconds > 0 else None


def prompt_tokens_per_s_per_gpu(samples: LoadSamples) -> float | None:
    """Prompt tokens, cached ones included, of requests whose first token arrived in the window."""
    return _rate(samples, sum(r.prompt_tokens for r in _started(samples)))


def cached_prompt_tokens_per_s_per_gpu(samples: LoadSamples) -> float | None:
    """The part of the prompt tokens that came from the prefix cache; None if any request's part is unknown."""
    cached = [r.cached_prompt_tokens for r in _started(samples)]
    known = [c for c in cached if c is not None]
    return _rate(samples, sum(known)) if len(known) == len(cached) else None


def cached_prompt_share(samples: LoadSamples) -> float | None:
    """Cached prompt tokens over prompt tokens, over answered requests; None if any is unknown."""
    answered = [r for r in samples.records if r.token_times_s.size]
    known = [r.cached_prompt_tokens for r in answered if r.cached_prompt_tokens is not None]
    n_tokens = sum(r.prompt_tokens for r in answered)
    return sum(known) / n_tokens if n_tokens and len(known) == len(answered) else None


def requests_per_s_per_gpu(samples: LoadSamples) -> float | None:
    """Requests whose last token arrived in the window."""
    done = [(p, r) for p in samples.phases for r in p.records if r.is_finished]
    return _rate(samples, sum(p.counted_from_s < r.token_times_s[-1] <= p.counted_until_s for p, r in done))


def is_running_set_full(samples: LoadSamples) -> float | None:
    """1 if in every run the queue outlasted the filling of the running set, else 0: throughput is a lower bound."""
    known = [p.was_running_set_full for p in samples.phases]
    return None if None in known else float(all(known))


def output_share(samples: LoadSamples) -> float | None:
    """Output tokens done over output tokens asked; below 1 the engine stopped early or failed."""
    asked = sum(r.asked_output_tokens for r in samples.records)
    return sum(r.output_tokens for r in samples.records) / asked if asked else None


def smallest_served_share(samples: LoadSamples) -> float | None:
    """Per tenant, output tokens that arrived by the window's end over tokens asked; the smallest of them."""
    shares = []
    for tenant in samples.tenants:
        pairs = [(r, p) for p in samples.phases for r in p.records if r.tenant == tenant]
        asked = sum(r.asked_output_tokens for r, _ in pairs)
        if asked:
            shares.append(sum(_tokens_until(r, p) for r, p in pairs if _is_served(r)) / asked)
    return min(shares) if shares else None


def _is_served(record: RequestRecord) -> bool:
    return record.failure is None or record.is_timed_out


def _started(samples: LoadSamples) -> list[RequestRecord]:
    answered = [(p, r) for p in samples.phases for r in p.records if r.token_times_s.size and _is_served(r)]
    return [r for p, r in answered if p.counted_from_s < r.token_times_s[0] <= p.counted_until_s]


def _tokens_in(record: RequestRecord, phase: PhaseMeasurement) -> int:
    bounds = (phase.counted_from_s, phase.counted_until_s)
    begin, until = np.searchsorted(record.token_times_s, bounds, side="right")
    if record.tokens_per_message is None:
        return int(until - begin)
    return int(record.tokens_per_message[begin:until].sum())


def _tokens_until(record: RequestRecord, phase: PhaseMeasurement) -> int:
    until = int(np.searchsorted(record.token_times_s, phase.counted_until_s, side="right"))
    return until if record.tokens_per_message is None else int(record.tokens_per_message[:until].sum())


def _rate(samples: LoadSamples, count: int) -> float | None:
    """Per second and GPU; None without a window, or where no request at all was served (nothing was measured then)."""
    widths = [p.counted_until_s - p.counted_from_s for p in samples.phases]
    if not all(w > 0 for w in widths) or not any(_is_served(r) and r.token_times_s.size for r in samples.records):
        return None
    return count / sum(w * p.n_gpus for w, p in zip(widths, samples.phases, strict=True))
