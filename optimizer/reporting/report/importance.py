"""Which knobs decided an objective, by Optuna's PED-ANOVA, beside what shuffled results would give.

PED-ANOVA compares where the best trials lie with where all lie, knob by knob. With few trials a knob without any effect
gets some importance too: what chance gives is measured by shuffling the results, and shown.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from optimizer.reporting.report.chart import COLOURS, Chart, axis, layout
from optimizer.reporting.report.table import Table, short_knob
from optimizer.reporting.report.words import capital, name_of
from optimizer.study.board_text import LEAST_TRIALS

if TYPE_CHECKING:
    import optuna

MOST_TRIALS = 500
TOP_SHARE = 0.25
N_SHUFFLES = 20
CHANCE = 95.0
"""Percentile of what shuffled results give that a knob has to exceed."""


@dataclass(frozen=True)
class Importance:
    """Of each knob for each objective; raw divergences, comparable within one objective only."""

    knobs: tuple[str, ...]
    metrics: tuple[str, ...]
    shares: NDArray[np.float64]
    """(n_knobs, n_objectives) of the objective's sum"""
    chance: NDArray[np.float64]
    """The same for shuffled results."""
    n_trials: int

    @property
    def order(self) -> tuple[str, ...]:
        """Most important first, over all objectives."""
        best = (self.shares - self.chance).max(axis=1)
        return tuple(self.knobs[i] for i in np.argsort(-best, kind="stable"))

    @property
    def deciding(self) -> dict[str, list[str]]:
        """metric -> knobs beyond chance, most important first."""
        found = {}
        for j, metric in enumerate(self.metrics):
            order = np.argsort(-self.shares[:, j], kind="stable")
            found[metric] = [self.knobs[i] for i in order if self.shares[i, j] > self.chance[i, j]]
        return found


def importance_of(table: Table) -> Importance | None:
    """None with too few trials to tell anything."""
    if len(table) < LEAST_TRIALS or not table.knobs:
        return None
    rows = slice(max(len(table) - MOST_TRIALS, 0), None)
    levels = table.levels[rows]
    columns = [table.column(j)[rows] for j in range(len(table.objectives))]
    found = [_of_objective(table, levels, column) for column in columns]
    shares, chance = (np.array([f[k] for f in found]).T for k in (0, 1))
    names, metrics = tuple(k.name for k in table.knobs), tuple(o.metric for o in table.objectives)
    return Importance(names, metrics, shares, chance, len(levels))


def _of_objective(
    table: Table, levels: NDArray[np.int64], column: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator

    study, evaluator = _study(table, levels), PedAnovaImportanceEvaluator(target_quantile=TOP_SHARE)
    rng = np.random.default_rng(0)

    def divergences(values: NDArray[np.float64]) -> NDArray[np.float64]:
        found = evaluator.evaluate(study, target=lambda trial: float(values[trial.number]))
        return np.array([max(found.get(k.name, 0.0), 0.0) for k in table.knobs])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.simplefilter("ignore", UserWarning)  # that low is good: so it is here
        own = divergences(column)
        shuffled = np.array([divergences(rng.permutation(column)) for _ in range(N_SHUFFLES)])
    total = own.sum() or 1.0
    return own / total, np.percentile(shuffled, CHANCE, axis=0) / total


def _study(table: Table, levels: NDArray[np.int64]) -> optuna.Study:
    """A study in memory: every knob as its position on its grid; what is measured comes by number."""
    import optuna
    from optuna.distributions import IntDistribution

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    grids = {k.name: IntDistribution(0, len(k.levels) - 1) for k in table.knobs}
    study = optuna.create_study(direction="minimize", sampler=optuna.samplers.RandomSampler(seed=0))
    trials = [
        optuna.create_trial(
            params={name: int(level) for name, level in zip(grids, row, strict=True)},
            distributions=dict(grids),
            value=0.0,
        )
        for row in levels
    ]
    study.add_trials(trials)
    return study


def importance_chart(found: Importance) -> Chart:
    """Bars; pale where shuffled results give as much."""
    order = [found.knobs.index(name) for name in found.order][::-1]
    names = [short_knob(found.knobs[i]) for i in order]
    data: list[dict[str, Any]] = [_bars(found, j, order, names) for j in reversed(range(len(found.metrics)))]
    shown = layout(
        barmode="group", xaxis=axis("share, %", rangemode="tozero"),
        yaxis=axis(""), margin={"l": 60, "r": 14, "t": 60, "b": 46}, bargap=0.25,
        legend={**layout()["legend"], "traceorder": "reversed"},
    )  # fmt: skip
    note = "Pale bars may be chance: shuffled results give as much."
    height = 130 + len(order) * (16 + 13 * len(found.metrics))
    return Chart("importance", "Which knobs decide", {"data": data, "layout": shown}, note, height, is_wide=True)


def _bars(found: Importance, j: int, order: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    is_beyond = found.shares[:, j] > found.chance[:, j]
    return {
        "type": "bar", "orientation": "h", "name": capital(name_of(found.metrics[j])), "y": list(names),
        "x": [100 * found.shares[i, j] for i in order], "customdata": [100 * found.chance[i, j] for i in order],
        "marker": {"color": COLOURS[j % len(COLOURS)], "opacity": [0.9 if is_beyond[i] else 0.25 for i in order]},
        "hovertemplate": "%{y}: %{x:.1f} %, chance up to %{customdata:.1f} %<extra>%{fullData.name}</extra>",
    }  # fmt: skip


def importance_sentences(found: Importance | None, table: Table) -> list[str]:
    if found is None:
        n = len(table)
        return [
            f"The search measured {n} trial{'s' if n != 1 else ''}: which knob decides cannot be told with fewer than"
            f" {LEAST_TRIALS}. The charts below show what was tried, and no more."
        ]
    texts = []
    for metric, knobs in found.deciding.items():
        said = ", ".join(map(short_knob, knobs[:3])) if knobs else "no knob that stands out from chance"
        texts.append(f"{capital(name_of(metric))} is decided by {said}.")
    return texts
