"""What a load's raw data say against its own figures: disturbed machines, clients behind, warm caches, other work.

Pure functions over a PhaseMeasurement. Nothing here judges a configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from objectives.measurement import PhaseMeasurement
from optimizer.engines.engine import LoadPlan
from optimizer.engines.vllm.client_findings import client_findings
from optimizer.engines.vllm.finding import Finding
from optimizer.engines.vllm.machine_findings import capacity_findings, device_findings, leak_findings
from optimizer.errors import EngineFailed
from optimizer.workload.prefix import reusable_tokens

__all__ = ["Finding", "cache_findings", "fault_of", "findings_of", "own_hit_share", "work_findings", "work_ratio"]

HIT_SHARE_TOLERANCE = 0.05
"""Hits of warm-up requests that end in the window, and of blocks smaller than the trace's, stay below this."""
WORK_RATIO = (0.95, 1.05)
"""Tokens done over tokens asked that still count as the same work."""
OTHER_LENGTH = ("short output", "long output")
"""How the client calls answers that ended by themselves at another length (`replay.failures`)."""


def findings_of(phase: PhaseMeasurement, plan: LoadPlan, kv_tokens: Mapping[str, int]) -> tuple[Finding, ...]:
    """Everything, the gravest first. `kv_tokens`: instance -> KV capacity."""
    found = [
        *client_findings(phase),
        *cache_findings(phase, own_hit_share(plan)),
        *work_findings(phase),
        *device_findings(phase),
        *leak_findings(phase),
        *capacity_findings(phase, kv_tokens),
    ]
    return tuple(sorted(found, key=lambda f: f.rank))


def fault_of(phase: PhaseMeasurement, plan: LoadPlan) -> EngineFailed | None:
    """The error that makes a run Broken because its figures are worth nothing; None if they are worth something."""
    invalid = [f for f in findings_of(phase, plan, {}) if f.severity == "invalid"]
    if not invalid:
        return None
    first = invalid[0]
    evidence = [f.text for f in invalid]
    return EngineFailed(first.kind, phase.load, first.text, is_config_fault=False, evidence=evidence)


def own_hit_share(plan: LoadPlan) -> float:
    """Share of the measured rows' prompt tokens that an endless cache, empty before the warm-up, would hold: the most
    that the workload itself can hit. 0 for a trace without block ids, whose prompts have nothing in common."""
    reusable, measured = reusable_tokens(plan.trace), slice(plan.n_warmup, None)
    asked = int(plan.trace.prompt_tokens[measured].sum())
    return 0.0 if reusable is None or not asked else float(reusable[measured].sum()) / asked


def cache_findings(phase: PhaseMeasurement, expected_hit_share: float) -> Iterator[Finding]:
    """More prefix hits than the workload has: the cache knew these prompts from somewhere else."""
    queries = [c.prefix_queries_tokens for c in phase.counters.values()]
    hits = [c.prefix_hits_tokens for c in phase.counters.values()]
    n_queries, n_hits = sum(q for q in queries if q is not None), sum(h for h in hits if h is not None)
    if None in queries or None in hits or not n_queries:
        return
    if n_hits / n_queries > expected_hit_share + HIT_SHARE_TOLERANCE:
        yield Finding(
            "invalid",
            "cache",
            f"{n_hits / n_queries:.0%} of the prompt tokens were in the prefix cache, the workload itself repeats"
            f" {expected_hit_share:.0%}: the cache was warm from earlier loads; empty it between them",
        )


def work_ratio(phase: PhaseMeasurement) -> float | None:
    """Output tokens done over asked, of the requests whose answers ended by themselves; None without any."""
    answered = [r for r in phase.records if r.failure is None or r.failure.startswith(OTHER_LENGTH)]
    asked = sum(r.asked_output_tokens for r in answered)
    return sum(r.output_tokens for r in answered) / asked if asked else None


def work_findings(phase: PhaseMeasurement) -> Iterator[Finding]:
    ratio = work_ratio(phase)
    if ratio is not None and not WORK_RATIO[0] <= ratio <= WORK_RATIO[1]:
        yield Finding(
            "invalid",
            "work",
            f"{ratio:.3g} of the output tokens asked for were done, so this is other work than was asked:"
            " does the server honour ignore_eos and max_tokens, and is its context long enough?",
        )
