"""Caps: when no configuration is safe, which abnormal requests break it, and what turning them away would cost.

Tried on the configuration that misses its limits by least: a cap on a request's length (the longest 0.1, 1, 5, 10 %
turned away), then a cap on the queue (vLLM's max_num_queued_reqs, answered with HTTP 503).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from objectives.measurement import LOADS, Load
from objectives.objective import Scorecard
from optimizer.engines.engine import LoadPlan, Placement
from optimizer.study.judge import Judge
from optimizer.study.runs import Runs
from optimizer.study.traffic import Traffic
from optimizer.trial import Measured, Outcome, TrialPlan

LENGTH_SHARES = (0.001, 0.01, 0.05, 0.1)
QUEUE_FACTORS = (1.0, 0.5, 0.25)
"""Queues tried, as shares of the requests that run at once."""
MAX_TURNED_AWAY = 0.2
"""A cap that turns more away does not keep abnormal requests out: the hardware is too small for the load."""
BUSY = "HTTP 503"
"""How vLLM answers a request that its queue has no room for."""
LENGTH_RUN = 40
QUEUE_RUN = 60


@dataclass(frozen=True)
class CapAdvice:
    """A cap under which the configuration keeps every limit."""

    trial: int
    text: str
    """The cap as an argument, e.g. `--max-model-len 8192`."""
    turned_away_share: float
    """Share of the requests it rejects at R."""
    peak_share: float = 0.0
    """The same of the stress load's, where the cap is on the queue."""


@dataclass(frozen=True)
class CapProbe:
    """One trial's servers and the traffic that breaks them."""

    trial: int
    placement: Placement
    running: float | None
    """Requests that ran at once under saturation, all servers together; None where that was not read."""
    traffic: Traffic
    rate_per_s: float
    judge: Judge
    runs: Runs
    seed: int

    def advise(self) -> tuple[CapAdvice, ...]:
        """Every kind of cap that helps, the mildest of each kind. Empty if none does."""
        return tuple(advice for advice in (self._length(), self._queue()) if advice is not None)

    def _length(self) -> CapAdvice | None:
        trace = self.traffic.recorded
        tokens = trace.prompt_tokens.astype(np.int64) + trace.output_tokens
        for k, share in enumerate(LENGTH_SHARES):
            cap = int(np.quantile(tokens, 1 - share))
            turned_away = float((tokens > cap).mean())
            if turned_away == 0.0:
                continue
            loads = self.traffic.without_longer(cap).loads(self.rate_per_s, LOADS)
            what = f"--max-model-len {cap}"
            card = self.judge.score(self._run(LENGTH_RUN + k, self.placement, loads, what))
            if card is not None and card.is_feasible:
                return CapAdvice(self.trial, what, turned_away)
        return None

    def _queue(self) -> CapAdvice | None:
        loads = self.traffic.loads(self.rate_per_s, ("steady", "stress"))
        for k, factor in enumerate(QUEUE_FACTORS):
            capped, what = self._with_queue_cap(factor)
            outcome = self._run(QUEUE_RUN + k, capped, loads, what)
            if not isinstance(outcome, Measured):
                continue
            accepted, turned_away = accepted_of(outcome)
            card = self.judge.score(accepted)
            if card is not None and turned_away["steady"] <= MAX_TURNED_AWAY and _holds(card):
                return CapAdvice(self.trial, what, turned_away["steady"], turned_away["stress"])
        return None

    def _with_queue_cap(self, factor: float) -> tuple[Placement, str]:
        """vLLM counts what runs, too: requests that run at once, and a share of them waiting."""
        instances, texts = [], []
        each = math.inf if self.running is None else self.running / len(self.placement.instances)
        for instance in self.placement.instances:
            cap = max(1, math.ceil((1 + factor) * min(instance.config.int_("max_num_seqs", 256), each)))
            instances.append(replace(instance, config=instance.config.with_(max_num_queued_reqs=cap)))
            texts.append(f"--max-num-queued-reqs {cap}" + (f" ({instance.name})" if self._is_shared else ""))
        return replace(self.placement, instances=tuple(instances)), ", ".join(texts)

    @property
    def _is_shared(self) -> bool:
        return len(self.placement.instances) > 1

    def _run(self, run: int, placement: Placement, loads: Sequence[LoadPlan], what: str) -> Outcome:
        seed = self.seed * 1_000_003 + 900_001 + run
        plan = TrialPlan(self.trial, run, "cap", placement, tuple(loads), seed)
        return self.runs.carry_out([plan], "caps", lambda p, o: f"trial {p.trial} with {what}")[0]


def accepted_of(outcome: Measured) -> tuple[Measured, dict[Load, float]]:
    """The requests that the queue had room for, and the share of each load that it turned away."""
    phases, shares = {}, {}
    for load, phase in outcome.measurement.phases.items():
        kept = tuple(r for r in phase.records if BUSY not in (r.failure or ""))
        shares[load] = 1 - len(kept) / len(phase.records)
        phases[load] = replace(phase, records=kept)
    return replace(outcome, measurement=replace(outcome.measurement, phases=phases)), shares


def _holds(card: Scorecard) -> bool:
    """Every limit of the loads that were run is kept."""
    return all(v <= 0 for n, v in card.violations.items() if not n.rsplit(":", 1)[-1].startswith("saturation_"))
