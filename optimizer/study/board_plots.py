"""Plotly figures of the feasible front for optuna-dashboard: in 3-D, and the first objective against each other one.

Small on purpose: the dashboard keeps a figure in pieces of 2,045 characters, each one write to the database.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from optimizer.study.board_labels import CENTRE, EYE, place_names
from optimizer.study.board_text import Standing, launch_text
from optimizer.study.terms import Terms
from optimizer.study.trial_record import TrialRecord

MAX_POINTS = 400
"""Newest points drawn of each kind; the front is always whole."""
_INK, _QUIET, _BAD, _LINE = "#1f2933", "#8fb3d9", "#b8bec6", "#d9dee4"
_FRONT = "#c2410c"
_LOG_SPAN = 8.0
REFERENCE = "reference"
_SYMBOLS_3D = {REFERENCE: "diamond"}
_UNUSED_BUTTONS = ["lasso2d", "select2d", "zoomIn2d", "zoomOut2d", "autoScale2d", "resetCameraLastSave3d"]
"""Of plotly's tool bar: with all of them it covers a title on a small screen."""


def front_3d(standing: Standing, terms: Terms, title: str) -> go.Figure:
    """Three objectives at once; the front in colour, feasible points quiet, infeasible ones grey."""
    figure = go.Figure()
    ranges = _ranges(standing)
    for name, trials, marker in groups(standing):
        x, y, z = _columns(trials, 3)
        figure.add_trace(
            go.Scatter3d(
                x=x,
                y=y,
                z=z,
                name=name,
                mode="markers",
                marker={
                    **marker,
                    "symbol": _SYMBOLS_3D.get(name, "circle"),
                    "size": 0.5 * marker["size"],
                    "line": {"width": 0},
                },
                hovertext=_hover(trials, standing, terms),
                hoverinfo="text",
            )
        )
    axes = [
        {
            "title": {"text": _wrapped(label), "font": {"size": 11}},
            "tickfont": {"size": 10},
            "gridcolor": _LINE,
            "showbackground": True,
            "backgroundcolor": "#f7f8fa",
            "nticks": 6,
            **scale,
        }
        for label, scale in zip(terms.labels, ranges, strict=False)
    ]
    camera = {name: dict(zip("xyz", place, strict=True)) for name, place in (("eye", EYE), ("center", CENTRE))}
    scene: dict[str, Any] = {
        "xaxis": axes[0],
        "yaxis": axes[1],
        "zaxis": axes[2],
        "camera": camera,
        "aspectmode": "cube",
    }
    scene["annotations"] = _callouts(standing, ranges, {"x": 0, "y": 1, "z": 2})
    figure.update_layout(**layout(title), scene=scene)
    figure.update_layout(margin={"l": 0, "r": 0, "t": 60, "b": 0})
    return figure


def front_2d(standing: Standing, terms: Terms, title: str, other: int, first: int = 0) -> go.Figure:
    """One objective, the first if not said, against another one (by position)."""
    figure = go.Figure()
    for name, trials, marker in groups(standing):
        columns = _columns(trials, len(terms.labels))
        figure.add_trace(
            go.Scatter(
                x=columns[first],
                y=columns[other],
                name=name,
                mode="markers",
                marker=marker,
                hovertext=_hover(trials, standing, terms),
                hoverinfo="text",
            )
        )
    ranges = _ranges(standing)
    figure.update_layout(
        **layout(title),
        xaxis=styled_axis(terms.labels[first], ranges[first]),
        yaxis=styled_axis(terms.labels[other], ranges[other]),
    )
    figure.update_layout(annotations=_callouts(standing, ranges, {"x": first, "y": other}))
    return figure


def groups(standing: Standing) -> list[tuple[str, Sequence[TrialRecord], dict[str, Any]]]:
    """(name, trials, marker) from the back to the front."""
    front = {t.number for t in standing.front}
    behind = [t for t in standing.feasible if t.number not in front][-MAX_POINTS:]
    missed = [t for t in standing.trials if t.values is not None and not t.is_feasible][-MAX_POINTS:]
    groups: list[tuple[str, Sequence[TrialRecord], dict[str, Any]]] = [
        ("misses a limit", missed, {"color": _BAD, "size": 7, "symbol": "x"}),
        ("feasible, beaten", behind, {"color": _QUIET, "size": 9}),
        ("front", standing.front, {"color": _FRONT, "size": 11}),
        (
            REFERENCE,
            [standing.reference] if standing.reference else [],
            {"color": _INK, "size": 12, "symbol": "diamond-open", "line": {"width": 2.5}},
        ),
    ]
    return [group for group in groups if group[1]]


def _callouts(standing: Standing, ranges: Sequence[dict[str, Any]], axes: Mapping[str, int]) -> list[dict[str, Any]]:
    """The picks' names."""
    named = [t for t in standing.front if t.number in standing.names and t.values is not None]
    return place_names([label_of(t, standing) for t in named], [t.values or () for t in named], ranges, axes)


def label_of(trial: TrialRecord, standing: Standing) -> str:
    name = standing.names.get(trial.number)
    return f"{trial.number}: {name}" if name else str(trial.number)


def _columns(trials: Sequence[TrialRecord], n: int) -> list[list[float]]:
    return [[float(f"{(t.values or ())[i]:.5g}") for t in trials] for i in range(n)]


def _hover(trials: Sequence[TrialRecord], standing: Standing, terms: Terms) -> list[str]:
    texts = []
    for t in trials:
        lines = [f"trial {label_of(t, standing)}" + (" (the reference)" if t is standing.reference else "")]
        lines += [f"{label}: {v:.4g}" for label, v in zip(terms.labels, t.values or (), strict=True)]
        lines += [t.reason[:120]] if t.reason else []
        if any(t.number == f.number for f in standing.front):
            lines += launch_text(t.parameters).splitlines()
        texts.append("<br>".join(line.replace("<", "&lt;") for line in lines))
    return texts


def _ranges(standing: Standing) -> list[dict[str, Any]]:
    """Axes that show the feasible points well: by ratio when they span much, cut where infeasible ones run away."""
    values = [t.values for t in standing.feasible if t.values is not None]
    values = values or [t.values for t in standing.trials if t.values is not None]
    values += [standing.reference.values] if standing.reference and standing.reference.values else []
    return [value_range(list(column)) for column in zip(*values, strict=True)]


def value_range(column: list[float]) -> dict[str, Any]:
    low, high = min(column), max(column)
    if low > 0 and high > _LOG_SPAN * low:
        ticks = _round_numbers(low / 1.3, high * 1.3)
        scale = [math.log10(low / 1.3), math.log10(high * 1.3)]
        return {"type": "log", "range": scale, "tickvals": ticks, "ticktext": [f"{t:,g}" for t in ticks]}
    pad = 0.12 * (high - low) or 0.1 * abs(high) or 1.0
    return {"range": [low - pad, high + pad]}


def _round_numbers(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten from `low` to `high`."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    numbers = [float(f"{digit}e{power}") for power in powers for digit in (1, 2, 5)]
    return [n for n in numbers if low <= n <= high]


def styled_axis(label: str, scale: dict[str, Any]) -> dict[str, Any]:
    return {
        "title": {"text": label, "standoff": 12},
        "gridcolor": _LINE,
        "linecolor": _INK,
        "zeroline": False,
        "color": _INK,
        "automargin": True,
        **scale,
    }


def layout(title: str) -> dict[str, Any]:
    return {
        "title": {"text": title, "x": 0.02, "y": 0.97, "font": {"size": 14, "color": _INK}},
        "template": "none",
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "font": {"color": _INK},
        "height": 450,
        "legend": {"orientation": "h", "x": 0.0, "y": 1.02, "yanchor": "bottom", "font": {"color": _INK}},
        "margin": {"l": 60, "r": 30, "t": 70, "b": 55},
        "modebar": {"remove": _UNUSED_BUTTONS},
    }


def short(label: str) -> str:
    """The name without unit and load, which the other plots show: for titles."""
    return re.split(r" [(\[]", label, maxsplit=1)[0]


def _wrapped(label: str) -> str:
    """A long axis title in lines: in 3-D it would be cut off."""
    return "<br>".join(textwrap.wrap(label, 26))
