"""Each objective against the argument that moves it most, for optuna-dashboard.

"Most" is the share of the variance of the objective's ranks between the argument's levels, less what as many levels
explain by chance (epsilon squared). It looks at one argument at a time: what only two together do, it does not see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from optimizer.study.board_plots import groups, label_of, layout, short, styled_axis, value_range
from optimizer.study.board_text import LEAST_TRIALS, Standing
from optimizer.study.terms import Terms
from optimizer.study.trial_record import TrialRecord
from search_spaces.parameter import Value

LEAST_SHARE = 0.05
MAX_LEVELS = 6
"""Finer arguments (bytes of KV cache) are cut into as many groups of equal size."""
GIB = 2**30


@dataclass(frozen=True)
class Mover:
    """An argument and what it explains of one objective, alone."""

    argument: str
    share: float
    """0..1 of the variance of ranks."""


def movers(standing: Standing, objective: int) -> list[Mover]:
    """Arguments that explain anything of it, the strongest first. Empty with too few trials to tell."""
    measured = standing.proposed
    if len(measured) < LEAST_TRIALS:
        return []
    ranks = _ranks([(t.values or ())[objective] for t in measured])
    names = dict.fromkeys(name for t in measured for name in t.parameters)
    found = [Mover(name, _explained([t.parameters.get(name) for t in measured], ranks)) for name in names]
    return sorted((m for m in found if m.share >= LEAST_SHARE), key=lambda m: -m.share)


def knob_figure(standing: Standing, terms: Terms, objective: int, mover: Mover, label: str = "") -> go.Figure:
    """Every measured trial: the argument's value across, the objective up."""
    figure = go.Figure()
    scale = _Scale.of([t.parameters.get(mover.argument) for t in standing.trials if t.values is not None])
    for name, trials, marker in groups(standing):
        known = [t for t in trials if t.parameters.get(mover.argument) is not None]
        figure.add_trace(
            go.Scatter(
                x=[scale.place(t.parameters[mover.argument]) for t in known],
                y=[float(f"{(t.values or ())[objective]:.5g}") for t in known],
                name=name,
                mode="markers",
                marker=marker,
                hovertext=[_hover(t, standing, objective, mover) for t in known],
                hoverinfo="text",
            )
        )
    title = f"What moves {short(terms.labels[objective])}{label}"
    across = f"{mover.argument}{scale.unit}: explains {mover.share:.0%} of its ranks alone"
    up = value_range([(t.values or ())[objective] for t in _shown(standing)])
    figure.update_layout(
        **layout(title),
        xaxis=styled_axis(across, scale.axis),
        yaxis=styled_axis(terms.labels[objective], up),
    )
    return figure


def _hover(trial: TrialRecord, standing: Standing, objective: int, mover: Mover) -> str:
    value = (trial.values or ())[objective]
    return f"trial {label_of(trial, standing)}<br>{trial.parameters[mover.argument]}: {value:.4g}"


def _shown(standing: Standing) -> Sequence[TrialRecord]:
    """The feasible points decide what the axis shows, as in the other plots."""
    return standing.feasible or [t for t in standing.trials if t.values is not None]


@dataclass(frozen=True)
class _Scale:
    """Where values of an argument stand: numbers by size, few of them evenly; words in their order."""

    axis: dict[str, Any]
    unit: str
    divisor: float
    places: Mapping[Value, float] | None

    @classmethod
    def of(cls, values: Sequence[Value | None]) -> _Scale:
        known = sorted({v for v in values if v is not None}, key=lambda v: (isinstance(v, str), v))
        is_number = all(isinstance(v, int | float) and not isinstance(v, bool) for v in known)
        is_bytes = is_number and bool(known) and float(known[-1]) >= GIB
        if is_number and len(known) > 2 * MAX_LEVELS:
            return cls({}, ", GiB" if is_bytes else "", GIB if is_bytes else 1.0, None)
        texts = [f"{float(v) / GIB:.3g}" if is_bytes else str(v) for v in known]
        ticks = {"tickvals": list(range(len(known))), "ticktext": texts}
        return cls(ticks, ", GiB" if is_bytes else "", 1.0, {v: float(i) for i, v in enumerate(known)})

    def place(self, value: Value) -> float:
        return self.places[value] if self.places is not None else float(f"{float(value or 0.0) / self.divisor:.4g}")


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Ties share their mean rank."""
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2.0)[inverse]


def _explained(values: Sequence[Value | None], ranks: NDArray[np.float64]) -> float:
    levels = _levels(values)
    n, n_levels = len(ranks), len(set(levels.tolist()))
    total = float(((ranks - ranks.mean()) ** 2).sum())
    if not 1 < n_levels < n or total == 0:
        return 0.0
    within = sum(
        float(((own - own.mean()) ** 2).sum()) for k in set(levels.tolist()) if (own := ranks[levels == k]).size
    )
    return max(1.0 - (within / (n - n_levels)) / (total / (n - 1)), 0.0)


def _levels(values: Sequence[Value | None]) -> NDArray[np.int64]:
    distinct = {v: i for i, v in enumerate(dict.fromkeys(values))}
    if len(distinct) <= MAX_LEVELS or not all(isinstance(v, int | float) for v in values):
        return np.array([distinct[v] for v in values], np.int64)
    numbers = np.array(values, np.float64)
    edges = np.quantile(numbers, np.linspace(0, 1, MAX_LEVELS + 1)[1:-1])
    return np.searchsorted(edges, numbers, side="right").astype(np.int64)
