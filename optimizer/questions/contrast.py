"""Why two configurations differ under the same loads: what a step holds, who waits, and where one overtakes the other.

Changes inside the noise are not explained, and gaps between messages of several tokens are not held against gaps
between tokens."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from optimizer.questions.situation import Situation, Tail

NOISE = 0.03
"""Relative change that is taken for none where nobody measured the noise: identical runs of a server differ by 3 to 7 %
of their throughput."""


def contrast(before: Sequence[Situation], after: Sequence[Situation], noise: float = NOISE) -> tuple[str, ...]:
    """One line each, for people; `before` and `after`: the loads of one configuration each, matched by their names,
    without names by their order."""
    pairs = list(_matched(before, after))
    lines = [line for a, b in pairs if a.load in ("steady", None) for line in _lines(a, b, noise)]
    return (*dict.fromkeys(lines), *_crossover(pairs, noise))


def _matched(before: Sequence[Situation], after: Sequence[Situation]) -> Iterator[tuple[Situation, Situation]]:
    for n, a in enumerate(before):
        named = [b for b in after if b.load == a.load]
        if a.load is not None and named:
            yield a, named[0]
        elif a.load is None and n < len(after):
            yield a, after[n]


def _lines(a: Situation, b: Situation, noise: float) -> Iterator[str]:
    yield from _steps(a, b, noise)
    yield from _queue(a, b, noise)
    if a.n_preemptions is not None and b.n_preemptions is not None and a.n_preemptions != b.n_preemptions:
        yield f"preemptions {a.n_preemptions:.0f} -> {b.n_preemptions:.0f}"
    if (a.itl_note is None) != (b.itl_note is None):
        yield _kinds(a, b)


def _steps(a: Situation, b: Situation, noise: float) -> Iterator[str]:
    """More sequences a step make it longer. Only gaps of the same kind are compared."""
    if a.running is None or b.running is None or (a.itl_note is None) != (b.itl_note is None):
        return
    ran = f"{a.running.mean:.3g} -> {b.running.mean:.3g} requests run on average"
    more, longer = _change(a.running.mean, b.running.mean), _change(_mean(a.itl_ms), _mean(b.itl_ms))
    gaps = f"ITL {_mean(a.itl_ms) or 0:.3g} -> {_mean(b.itl_ms) or 0:.3g} ms"
    if more is None or longer is None or max(abs(more), abs(longer)) <= noise:
        return
    if more > noise and longer > noise:
        yield f"{ran}: more sequences a step make each step longer ({gaps})"
    elif more < -noise and longer < -noise:
        yield f"{ran}: fewer sequences a step make each step shorter ({gaps})"
    elif abs(longer) > noise:
        yield f"{gaps}, though {ran}: not the batch's size makes the difference"


def _queue(a: Situation, b: Situation, noise: float) -> Iterator[str]:
    change = _change(_p99(a.ttft_ms), _p99(b.ttft_ms))
    if change is None or abs(change) <= noise:
        return
    first = f"P99 TTFT {_p99(a.ttft_ms) or 0:.4g} -> {_p99(b.ttft_ms) or 0:.4g} ms"
    if a.waiting is None or b.waiting is None:
        yield first
        return
    waits = f"{a.waiting.mean:.3g} -> {b.waiting.mean:.3g} requests wait on average"
    is_queue = (b.waiting.mean - a.waiting.mean) * change > 0
    yield f"{first}: {waits}" if is_queue else f"{first}, though {waits}: the queue is not what makes it"


def _kinds(a: Situation, b: Situation) -> str:
    """Per token both can be held against each other, where both are known."""
    tails = [s.itl_per_token_ms if s.itl_note else s.itl_ms for s in (a, b)]
    each = [_p99(t) for t in tails]
    told = "" if None in each else f"; per token P99 {each[0]:.3g} -> {each[1]:.3g} ms"
    return f"ITL is not compared: one sends several tokens a message and the other one{told}"


def _crossover(pairs: Sequence[tuple[Situation, Situation]], noise: float) -> Iterator[str]:
    """Where the speed of one request changes hands between two loads, as it does with speculative decoding."""
    known = sorted((_n(a, b), change) for a, b in pairs if (change := _change(_speed(a), _speed(b))) is not None)
    known = [(n, change) for n, change in known if abs(change) > noise and n > 0]
    for (n_low, low), (n_high, high) in itertools.pairwise(known):
        if low * high < 0:
            share = abs(math.log1p(low)) / (abs(math.log1p(low)) + abs(math.log1p(high)))
            at = n_low * (n_high / n_low) ** share
            held = next((b.tokens_per_message for _, b in pairs if b.itl_note), None)
            accepted = "" if held is None else f" ({held:.2g} tokens a message)"
            yield (
                f"tokens/s of one request {low:+.0%} at {n_low:.3g} running and {high:+.0%} at {n_high:.3g}: it pays"
                f" {'below' if low > 0 else 'above'} about {at:.2g} requests at once only{accepted}"
            )


def _n(a: Situation, b: Situation) -> float:
    both = [s.running.mean for s in (a, b) if s.running is not None]
    return sum(both) / len(both) if both else 0.0


def _speed(s: Situation) -> float | None:
    if s.running is None or not s.running.mean or s.output_tokens_per_s is None:
        return None
    return s.output_tokens_per_s / s.running.mean


def _mean(tail: Tail | None) -> float | None:
    return None if tail is None else tail.mean if tail.mean is not None else tail.p50


def _p99(tail: Tail | None) -> float | None:
    return None if tail is None else tail.p99


def _change(a: float | None, b: float | None) -> float | None:
    return None if not a or b is None else b / a - 1
