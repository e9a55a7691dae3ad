"""Every objective against every knob: what was tried, what it gave, what failed there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from optimizer.reporting.report.chart import (
    BAD,
    FAILED,
    FRONT,
    INK,
    QUIET,
    Chart,
    axis,
    layout,
    lines,
    log_ticks,
    thinned,
)
from optimizer.reporting.report.source import Source
from optimizer.reporting.report.table import Knob, knobs_of, meaning_of, short_knob
from optimizer.reporting.report.words import capital, name_of, reading
from optimizer.study.trial_record import TrialRecord

MOST_POINTS = 250
"""Of one kind in one chart."""
N_FIRST = 3
"""Knobs shown without a click."""
MOST_KNOBS = 24
LEAST_TRIED = 4
"""Configurations below which a chart says nothing."""
MOST_TICKS, FEW_TICKS, LONG_LABEL = 6, 3, 7
LOG_SPAN = 8.0
JITTER = 0.18
"""Of a level's width: trials of one level stand beside each other."""


@dataclass(frozen=True)
class KnobRow:
    name: str
    meaning: str
    charts: tuple[Chart, ...]
    """One an objective."""


def knob_rows(source: Source, order: Sequence[str]) -> tuple[list[KnobRow], list[KnobRow]]:
    """(the first few, the others), in the order given; empty while the search has tried next to nothing."""
    knobs = sorted(knobs_of(source), key=lambda k: order.index(k.name) if k.name in order else len(order))
    tried = [t for t in source.trials if t.is_finished and t.point is not None and "baseline" not in t.attributes]
    if len(tried) < LEAST_TRIED:
        return [], []
    rows = [_row(source, k, n, tried) for n, k in enumerate(knobs[:MOST_KNOBS])]
    return rows[:N_FIRST], rows[N_FIRST:]


def _row(source: Source, knob: Knob, n: int, tried: Sequence[TrialRecord]) -> KnobRow:
    charts = tuple(_chart(source, knob, n, i, tried) for i in range(len(source.terms.objectives)))
    return KnobRow(short_knob(knob.name), meaning_of(knob.name), charts)


def _chart(source: Source, knob: Knob, n: int, i: int, tried: Sequence[TrialRecord]) -> Chart:
    metric = source.terms.objectives[i].metric
    scale = _scale([t.values[i] for t in tried if t.values and t.is_feasible]
                   or [t.values[i] for t in tried if t.values])  # fmt: skip
    data = [_points(source, knob, i, kind, own, scale) for kind, own in _kinds(source, tried).items() if own]
    y = axis("", **{k: v for k, v in scale.items() if k != "ends"})
    shown = layout(
        xaxis=axis("", **_ticks(knob)), yaxis=y, showlegend=False, shapes=_reference_line(source, i),
        margin={"l": 48, "r": 8, "t": 8, "b": 26}, hovermode="closest",
    )  # fmt: skip
    return Chart(f"knob-{n}-{i}", capital(name_of(metric)), {"data": data, "layout": shown}, "", 215)


def _kinds(source: Source, tried: Sequence[TrialRecord]) -> dict[str, list[TrialRecord]]:
    """From the back to the front."""
    front = {m.trial for m in source.front.members}
    return {
        "failed": [t for t in tried if t.values is None],
        "misses": [t for t in tried if t.values is not None and not t.is_feasible],
        "beaten": [t for t in tried if t.is_feasible and t.number not in front],
        "front": [t for t in tried if t.is_feasible and t.number in front],
    }


_MARKERS: Mapping[str, Mapping[str, Any]] = {
    "failed": {"color": FAILED, "symbol": "x-thin-open", "size": 7, "line": {"width": 1.5}},
    "misses": {"color": BAD, "symbol": "x", "size": 6},
    "beaten": {"color": QUIET, "size": 7},
    "front": {"color": FRONT, "size": 8},
}


def _points(
    source: Source, knob: Knob, i: int, kind: str, own: Sequence[TrialRecord], scale: Mapping[str, Any]
) -> dict[str, Any]:
    placed = [(t, level) for t in own if (level := knob.level_of(t)) is not None]
    placed = [placed[k] for k in thinned(len(placed), MOST_POINTS)]
    worst = scale["ends"][0 if source.terms.objectives[i].direction == "maximize" else 1]
    y = [worst if t.values is None else min(max(t.values[i], scale["ends"][0]), scale["ends"][1]) for t, _ in placed]
    return {
        "type": "scatter", "mode": "markers", "name": kind, "marker": dict(_MARKERS[kind]),
        "x": [level + JITTER * math.sin(7.0 * t.number) for t, level in placed], "y": y,
        "hovertext": [_hover(source, knob, i, t, level) for t, level in placed], "hoverinfo": "text",
        "cliponaxis": False,
    }  # fmt: skip


def _hover(source: Source, knob: Knob, i: int, trial: TrialRecord, level: int) -> str:
    metric = source.terms.objectives[i].metric
    value = "no figures" if trial.values is None else f"{name_of(metric)} {reading(metric, trial.values[i])}"
    told = [f"trial {trial.number}", f"{short_knob(knob.name)} {knob.labels[level]}", value]
    return lines([*told, *([trial.reason[:100]] if trial.reason else [])])


def _scale(values: Sequence[float]) -> dict[str, Any]:
    """The axis that shows the feasible values well; what lies beyond it is drawn at its edge."""
    if not values:
        return {"range": [0, 1], "ends": (0.0, 1.0), "showticklabels": False}
    low, high = min(values), max(values)
    if low > 0 and high > LOG_SPAN * low:
        ends = (low / 1.3, high * 1.3)
        return {"type": "log", "range": [math.log10(e) for e in ends], "ends": ends, **log_ticks(*ends)}
    pad = 0.12 * (high - low) or 0.1 * abs(high) or 1.0
    ends = (low - pad, high + pad)
    return {"range": list(ends), "ends": ends, "nticks": 5}


def _ticks(knob: Knob) -> dict[str, Any]:
    most = MOST_TICKS if max(map(len, knob.labels)) < LONG_LABEL else FEW_TICKS
    places = np.unique(np.linspace(0, len(knob.levels) - 1, min(most, len(knob.levels))).round().astype(int))
    return {
        "tickvals": [int(p) for p in places], "ticktext": [knob.labels[p] for p in places],
        "range": [-0.5, len(knob.levels) - 0.5], "tickangle": 0,
    }  # fmt: skip


def _reference_line(source: Source, i: int) -> list[dict[str, Any]]:
    reference = source.front.reference
    if reference is None or reference.values is None:
        return []
    at = {"x0": 0, "x1": 1, "xref": "paper", "y0": reference.values[i], "y1": reference.values[i]}
    return [{"type": "line", **at, "line": {"color": INK, "width": 1, "dash": "dot"}}]
