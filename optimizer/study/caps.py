"""Caps: when no configuration is safe, which abnormal requests break it, and what turning them away would cost.

Tried on the configuration that misses its limits by least: a cap on a request's length (the longest 0.1, 1, 5, 10 %
turned away), then a cap on the queue (vLLM's max_num_queued_reqs, answered with HTTP 503).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from objectives.measurement import Load
from objectives.objective import Scorecard
from optimizer.engines.engine import LoadPlan, Placement
from optimizer.study.judge import Judge
from optimizer.study.runs import Runs
from optimizer.study.traffic import Traffic
from optimizer.trial import TrialPlan

LENGTH_SHARES = (0.001, 0.01, 0.05, 0.1)
QUEUE_FACTORS = (4.0, 1.0, 0.25)
"""Queue caps tried, as multiples of max_num_seqs."""
LENGTH_RUN = 40
QUEUE_RUN = 60
LOADS: tuple[Load, ...] = ("steady", "stress", "saturation")


@dataclass(frozen=True)
class CapAdvice:
    """A cap under which the configuration keeps every limit."""

    trial: int
    text: str
    """The cap as an argument, e.g. `--max-model-len 8192`."""
    turned_away_share: float
    """Share of the requests it rejects."""


def advise_caps(
    trial: int, placement: Placement, traffic: Traffic, rate_per_s: float, judge: Judge, runs: Runs, seed: int
) -> tuple[CapAdvice, ...]:
    """Every kind of cap that helps, the mildest of each kind. Empty if none does."""
    found = [
        _length(trial, placement, traffic, rate_per_s, judge, runs, seed),
        _queue(trial, placement, traffic, rate_per_s, judge, runs, seed),
    ]
    return tuple(advice for advice in found if advice is not None)


def _length(
    trial: int, placement: Placement, traffic: Traffic, rate: float, judge: Judge, runs: Runs, seed: int
) -> CapAdvice | None:
    trace = traffic.recorded
    tokens = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
    for k, share in enumerate(LENGTH_SHARES):
        cap = int(np.quantile(tokens, 1 - share))
        turned_away = float((tokens > cap).mean())
        if turned_away == 0.0:
            continue
        shorter = traffic.without_longer(cap)
        card = _run(trial, LENGTH_RUN + k, placement, shorter.loads(rate, LOADS), judge, runs, seed)
        if card is not None and card.is_feasible:
            return CapAdvice(trial, f"--max-model-len {cap}", turned_away)
    return None


def _queue(
    trial: int, placement: Placement, traffic: Traffic, rate: float, judge: Judge, runs: Runs, seed: int
) -> CapAdvice | None:
    for k, factor in enumerate(QUEUE_FACTORS):
        capped, texts = _with_queue_cap(placement, factor)
        loads = traffic.loads(rate, ("steady", "stress"))
        card = _run(trial, QUEUE_RUN + k, capped, loads, judge, runs, seed)
        if card is not None and _holds_but_for_refusals(card):
            shares = [card.metrics.get(f"{load}_failed_share") for load in ("steady", "stress")]
            return CapAdvice(trial, ", ".join(texts), max((s for s in shares if s is not None), default=0.0))
    return None


def _with_queue_cap(placement: Placement, factor: float) -> tuple[Placement, Sequence[str]]:
    caps = {i.name: max(1, round(factor * i.config.int_("max_num_seqs", 256))) for i in placement.instances}
    instances = tuple(
        replace(i, config=i.config.with_(max_num_queued_reqs=i.config.int_("max_num_seqs", 256) + caps[i.name]))
        for i in placement.instances
    )
    texts = [f"--max-num-queued-reqs {i.config.int_('max_num_queued_reqs')} ({i.name})" for i in instances]
    return replace(placement, instances=instances), texts


def _holds_but_for_refusals(card: Scorecard) -> bool:
    """Every limit of the loads that were run is kept, but for requests that the cap itself refused."""
    relevant: Mapping[str, float] = {
        n: v for n, v in card.violations.items() if "failed" not in n and not n.startswith("saturation_")
    }
    return bool(relevant) and all(v <= 0 for v in relevant.values())


def _run(
    trial: int, run: int, placement: Placement, loads: tuple[LoadPlan, ...], judge: Judge, runs: Runs, seed: int
) -> Scorecard | None:
    plan = TrialPlan(trial, run, "cap", placement, loads, seed * 1_000_003 + 900_001 + run)
    return judge.score(runs.carry_out([plan], "caps", lambda p, o: f"trial {p.trial}")[0])
