"""Do two knobs depend on each other? What is left of an objective once each knob's own effect is taken out.

A model with a straight and a curved effect of every knob is fitted by least squares; what it leaves over is held
against the product of each pair. Shuffled leftovers say how much chance alone would give the best of so many pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimizer.reporting.report.chart import Chart, axis, layout
from optimizer.reporting.report.table import Knob, Table, short_knob
from optimizer.reporting.report.words import capital, name_of, reading

PER_TERM = 2
"""Trials needed for each number that the model fits, at least."""
LEAST_TRIALS = 40
LEAST_SHARE = 0.02
"""Of the variance: an interaction below it is not worth a word, however sure it is."""
LEAST_IN_MAP = 8
"""Trials below which a map of two knobs shows nothing but holes."""
N_SHUFFLES = 200
LEAST_NORM = 1e-6
"""A product that both knobs' own effects explain whole stays nothing."""
SHOWN = 3


@dataclass(frozen=True)
class Interaction:
    """Two knobs whose effects on an objective do not add up."""

    metric: str
    knobs: tuple[str, str]
    share: float
    """Of the objective's variance over the trials, beyond both knobs' own effects."""
    is_beyond_chance: bool
    """And large enough to matter."""


def n_needed(table: Table) -> int:
    return max(LEAST_TRIALS, PER_TERM * (2 * len(table.knobs) + 1))


def interactions_of(table: Table) -> list[Interaction] | None:
    """The strongest of each objective; None with too few trials."""
    if len(table) < n_needed(table) or len(table.knobs) < 2:
        return None
    found = [i for j in range(len(table.objectives)) for i in _of_objective(table, j)]
    return sorted(found, key=lambda i: (not i.is_beyond_chance, -i.share))


def _of_objective(table: Table, j: int) -> list[Interaction]:
    column = table.column(j)
    spread = float(column.var())
    if not spread > 0:
        return []
    levels = _centred(table.levels)
    own = np.column_stack([np.ones(len(column)), levels, levels**2])
    left = column - own @ np.linalg.lstsq(own, column, rcond=None)[0]
    pairs = list(combinations(range(levels.shape[1]), 2))
    products = np.column_stack([levels[:, a] * levels[:, b] for a, b in pairs])
    products -= own @ np.linalg.lstsq(own, products, rcond=None)[0]
    products /= np.maximum(np.sqrt((products**2).sum(axis=0)), LEAST_NORM)
    explained = _explained(products, left)
    rng = np.random.default_rng(0)
    chance = np.percentile([_explained(products, rng.permutation(left)).max() for _ in range(N_SHUFFLES)], 95)
    i = int(np.argmax(explained))
    share, names = float(explained[i] / (spread * len(column))), [table.knobs[k].name for k in pairs[i]]
    is_beyond = bool(explained[i] > chance and share >= LEAST_SHARE)
    return [Interaction(table.objectives[j].metric, (names[0], names[1]), share, is_beyond)]


def _centred(levels: NDArray[np.int64]) -> NDArray[np.float64]:
    values = levels.astype(np.float64)
    spread = values.std(axis=0)
    return np.asarray((values - values.mean(axis=0)) / np.where(spread > 0, spread, 1.0))


def _explained(products: NDArray[np.float64], left: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum of squares that each product, of length 1, alone takes out of what is left."""
    return np.asarray((products.T @ left) ** 2)


def interaction_sentences(found: Sequence[Interaction] | None, table: Table) -> list[str]:
    if found is None:
        if len(table.knobs) < 2:
            return ["Only one knob was searched: there is nothing for it to depend on."]
        n = f"{len(table)} trial{'s' if len(table) != 1 else ''}"
        told = " The map below shows measured means, and no more." if len(table) >= LEAST_IN_MAP else ""
        return [
            f"Whether knobs depend on each other cannot be told from {n}: {n_needed(table)} are needed for"
            f" {len(table.knobs)} knobs.{told}"
        ]
    return [_sentence(i) for i in found]


def _sentence(i: Interaction) -> str:
    a, b = map(short_knob, i.knobs)
    if not i.is_beyond_chance:
        return f"{capital(name_of(i.metric))}: no pair of knobs stands out from chance; their effects add up."
    return (
        f"{capital(name_of(i.metric))}: the best {a} depends on {b}; together they move {100 * i.share:.0f} % of its"
        " variance that neither moves alone."
    )


def pair_chart(table: Table, knobs: tuple[str, str], j: int) -> Chart:
    """What was measured at each combination of two knobs: the mean over whatever else was set."""
    a, b = (next(k for k in table.knobs if k.name == name) for name in knobs)
    columns = [table.levels[:, table.knobs.index(k)] for k in (a, b)]
    cells, counts = _cells(columns, table.values[:, j], (len(a.levels), len(b.levels)))
    metric, direction = table.objectives[j].metric, table.objectives[j].direction
    data: list[dict[str, Any]] = [{
        "type": "heatmap", "z": [[None if np.isnan(v) else float(v) for v in row] for row in cells.T],
        "x": list(range(len(a.levels))), "y": list(range(len(b.levels))),
        "colorscale": "Viridis", "reversescale": direction == "minimize", "xgap": 1, "ygap": 1,
        **_colours(table, j),
        "colorbar": {"thickness": 10, "outlinewidth": 0}, "hoverinfo": "text",
        "text": _cell_texts(a, b, metric, cells, counts), "texttemplate": "",
    }]  # fmt: skip
    shown = layout(
        xaxis=_level_axis(a), yaxis=_level_axis(b), margin={"l": 60, "r": 10, "t": 10, "b": 50}, plot_bgcolor="#eceff3"
    )
    return Chart(f"pair-{j}", capital(name_of(metric)), {"data": data, "layout": shown}, "", 300)


def _colours(table: Table, j: int) -> dict[str, Any]:
    """The range of trials that keep every limit: one that did not keep up would leave one colour for all others."""
    own = table.values[table.is_feasible, j] if table.is_feasible.any() else table.values[:, j]
    return {"zmin": float(own.min()), "zmax": float(own.max())}


def _cells(
    columns: Sequence[NDArray[np.int64]], values: NDArray[np.float64], shape: tuple[int, int]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    counts, sums = np.zeros(shape, np.int64), np.zeros(shape)
    np.add.at(counts, (columns[0], columns[1]), 1)
    np.add.at(sums, (columns[0], columns[1]), values)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan), counts


def _cell_texts(
    a: Knob, b: Knob, metric: str, cells: NDArray[np.float64], counts: NDArray[np.int64]
) -> list[list[str]]:
    return [
        [
            f"{short_knob(a.name)} {a.labels[x]}<br>{short_knob(b.name)} {b.labels[y]}<br>"
            + (f"{reading(metric, float(cells[x, y]))} ({counts[x, y]} trials)" if counts[x, y] else "not tried")
            for x in range(len(a.levels))
        ]
        for y in range(len(b.levels))
    ]


def _level_axis(knob: Knob) -> dict[str, Any]:
    step = max(1, -(-len(knob.levels) // 7))
    places = list(range(0, len(knob.levels), step))
    return axis(
        short_knob(knob.name), tickvals=places, ticktext=[knob.labels[p] for p in places], tickangle=0, showgrid=False
    )
