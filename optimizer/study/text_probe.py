"""Picks measured once more as text: prompts of words through the chat endpoint, with the server's own sampling.

Token ids with `ignore_eos` make lengths exact and comparable; production sends text, samples, and stops where the model
stops. What that changes is shown beside the figures, and never enters them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from objectives.metric import Targets, compute_metrics
from optimizer.engines.engine import LoadPlan, Placement
from optimizer.study.runs import Runs
from optimizer.trial import Measured, Outcome, TrialPlan

TEXT_RUN = 70
FIGURES = ("steady_ttft_p50_ms", "steady_itl_p50_ms", "steady_failed_share", "steady_output_tokens_per_s_per_gpu")


@dataclass(frozen=True)
class TextFigure:
    """One trial as tokens and as text, at the same arrivals."""

    trial: int
    as_tokens: Mapping[str, float | None]
    as_text: Mapping[str, float | None]
    reason: str = ""
    """Why there are no figures as text; empty if there are."""


@dataclass(frozen=True)
class TextProbe:
    """`steady` is the study's steady load at R."""

    steady: LoadPlan
    targets: Mapping[str, Targets]
    seed: int
    runs: Runs

    def measure(self, members: Sequence[tuple[int, Placement, Mapping[str, float | None]]]) -> tuple[TextFigure, ...]:
        """`members`: (trial, servers, metrics of its trial). One run each."""
        load = replace(self.steady, style="chat")
        plans = [
            TrialPlan(trial, TEXT_RUN, "text", placement, (load,), self.seed * 1_000_003 + 900_007 + trial)
            for trial, placement, _ in members
        ]
        outcomes = self.runs.carry_out(plans, "text", lambda plan, o: f"trial {plan.trial} as text")
        return tuple(
            self._figure(trial, metrics, outcome)
            for (trial, _, metrics), outcome in zip(members, outcomes, strict=True)
        )

    def _figure(self, trial: int, metrics: Mapping[str, float | None], outcome: Outcome) -> TextFigure:
        tokens = {name: metrics.get(name) for name in FIGURES}
        if not isinstance(outcome, Measured):
            return TextFigure(trial, tokens, {}, str(getattr(outcome, "cause", type(outcome).__name__)))
        text = compute_metrics(outcome.measurement, self.targets)
        return TextFigure(trial, tokens, {name: text.get(name) for name in FIGURES})
