"""Preemption, failure and pressure: what the limits hold on to. Unknown is None, never 0.

vLLM's V1 scheduler logs no preemption (0.32 v1/core/sched/scheduler.py `_preempt_request`); only its periodic
statistics line, if it is on, has a count of its own interval. The rate comes from counters and never from a log.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from objectives.measurement import EngineSample, PhaseMeasurement
from objectives.samples import LoadSamples


def preemptions_per_request(samples: LoadSamples) -> float | None:
    """Increase of the preemption counters of all engines over finished requests. It can exceed 1.

    None if any engine's counter is unread or nothing finished. Without counters (one tenant's view), from the
    requests' own counts if every one of them is known."""
    n = [_n_preemptions(phase) for phase in samples.phases]
    known = [v for v in n if v is not None]
    return sum(known) / samples.n_finished if len(known) == len(n) and samples.n_finished else None


def _n_preemptions(phase: PhaseMeasurement) -> float | None:
    if not phase.counters:
        own = [r.n_preemptions for r in phase.records]
        return float(sum(v for v in own if v is not None)) if own and None not in own else None
    if not {s.instance for s in phase.samples} <= set(phase.counters):
        return None
    counts = [c.n_preemptions for c in phase.counters.values()]
    return None if None in counts else float(sum(v for v in counts if v is not None))


def preempted_share(samples: LoadSamples) -> float | None:
    """Share of requests preempted at least once; None if any request's count is unknown."""
    counts = [r.n_preemptions for r in samples.records]
    known = [c for c in counts if c is not None]
    return sum(c > 0 for c in known) / len(known) if known and len(known) == len(counts) else None


def recomputed_tokens(samples: LoadSamples) -> float | None:
    """Tokens computed again after preemption, all requests together; None if any request's is unknown."""
    counts = [r.recomputed_tokens for r in samples.records]
    known = [c for c in counts if c is not None]
    return float(sum(known)) if known and len(known) == len(counts) else None


def failed_share(samples: LoadSamples) -> float | None:
    """Requests not answered whole, over requests; answers cut by the end of a saturation phase are left out."""
    n = len(samples.judged)
    n_finished = samples.n_finished
    return (n - n_finished) / n if n else None


def min_free_memory_bytes(samples: LoadSamples) -> float | None:
    """Least free device memory in any run; None if it could not be read in one."""
    known = [p.min_free_memory_bytes for p in samples.phases]
    return None if None in known else float(min(v for v in known if v is not None))


def prefix_hit_share(samples: LoadSamples) -> float | None:
    """Tokens found in the prefix cache over tokens looked up, all engines and runs; None if any engine's is unread."""
    counters = [c for p in samples.phases for c in p.counters.values()]
    queries, hits = [c.prefix_queries_tokens for c in counters], [c.prefix_hits_tokens for c in counters]
    if None in queries or None in hits:
        return None
    n_queries = sum(q for q in queries if q is not None)
    return sum(h for h in hits if h is not None) / n_queries if n_queries else None


Gauge = Callable[[EngineSample], float | None]


def gauge_mean(samples: LoadSamples, gauge: Gauge) -> float | None:
    """Mean over the window of one gauge, summed over instances; None if a reading is missing."""
    total = 0.0
    for readings in _by_instance(samples, gauge):
        if not readings or None in readings:
            return None
        total += float(np.mean([r for r in readings if r is not None]))
    return total if any(p.samples for p in samples.phases) else None


def gauge_worst_mean(samples: LoadSamples, gauge: Gauge) -> float | None:
    """Mean over the window of one gauge on the instance where that is highest; None if a reading is missing."""
    readings = _by_instance(samples, gauge)
    if not readings or any(not own or None in own for own in readings):
        return None
    return max(float(np.mean([r for r in own if r is not None])) for own in readings)


def gauge_max(samples: LoadSamples, gauge: Gauge) -> float | None:
    """Highest reading of any instance; None if a reading is missing."""
    readings = [r for instance in _by_instance(samples, gauge) for r in instance]
    return None if not readings or None in readings else float(max(r for r in readings if r is not None))


def _by_instance(samples: LoadSamples, gauge: Gauge) -> list[list[float | None]]:
    inside = [
        s for p in samples.phases for s in p.samples if p.counted_from_s <= s.time_s <= max(p.counted_until_s, p.end_s)
    ]
    return [[gauge(s) for s in inside if s.instance == name] for name in dict.fromkeys(s.instance for s in inside)]
