"""A load over time, and what the engine's time went into: plotly figures for optuna-dashboard."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from objectives.measurement import EngineSample, PhaseMeasurement
from optimizer.study.board_plots import layout, styled_axis
from optimizer.study.folder import StudyFolder
from optimizer.study.trial_record import TrialRecord

N_POINTS = 120
"""Of a curve: the highest value of as many equal spans of time."""
COLOURS = ("#1d4ed8", "#c2410c", "#047857", "#7c3aed", "#b45309", "#0f766e")
ROWS = (
    ("running", "requests running"),
    ("waiting", "waiting"),
    ("kv", "KV cache used, %"),
    ("preempted", "preemptions"),
)
STAGES = ("calibration", "baseline", "stable", "fast", "advanced", "search", "confirmation")
"""In the order in which they come; whatever else there is follows."""
PHASES = {"boot": "#8fb3d9", "warm-up": "#d9dee4", "steady": "#1d4ed8", "saturation": "#c2410c", "stress": "#7c3aed"}


def load_figure(phase: PhaseMeasurement, title: str) -> go.Figure | None:
    """Running and waiting requests, KV cache and preemptions, one curve a server. None without samples."""
    instances = list(dict.fromkeys(s.instance for s in phase.samples))
    curves = {name: _curves([s for s in phase.samples if s.instance == name]) for name in instances}
    rows = [row for row in ROWS if any(row[0] in own for own in curves.values())]
    if not rows:
        return None
    figure = go.Figure()
    for i, (key, _) in enumerate(rows):
        for name, colour in zip(instances, COLOURS * len(instances), strict=False):
            if key in curves[name]:
                times, values = curves[name][key]
                figure.add_trace(
                    go.Scatter(
                        x=times, y=values, name=name, mode="lines", legendgroup=name, showlegend=i == 0,
                        line={"color": colour, "width": 1.5, "shape": "hv"}, xaxis="x", yaxis=f"y{i + 1}" if i else "y",
                    )
                )  # fmt: skip
    figure.update_layout(
        **layout(title), xaxis=styled_axis("seconds", {"anchor": f"y{len(rows)}" if rows[1:] else "y"})
    )
    figure.update_layout(
        {f"yaxis{i + 1 if i else ''}": _row_axis(text, i, len(rows)) for i, (_, text) in enumerate(rows)}
    )
    return figure


def _row_axis(text: str, i: int, n: int) -> dict[str, Any]:
    """The `i`-th of `n` rows from the top, with a little room between them."""
    top = 1.0 - i / n
    axis = styled_axis("", {"domain": [max(top - 1.0 / n + 0.06, 0.0), top], "rangemode": "tozero", "nticks": 4})
    return axis | {"title": {"text": text.replace(", ", "<br>"), "font": {"size": 11}}, "tickfont": {"size": 10}}


Curve = tuple[list[float], list[float]]


def _curves(samples: Sequence[EngineSample]) -> dict[str, Curve]:
    """What could be read; preemptions from 0."""
    read = {
        "running": [(s.time_s, s.n_running) for s in samples],
        "waiting": [(s.time_s, s.n_waiting) for s in samples],
        "kv": [(s.time_s, None if s.kv_usage is None else 100.0 * s.kv_usage) for s in samples],
        "preempted": [(s.time_s, s.n_preemptions_total) for s in samples],
    }
    known = {key: [(t, v) for t, v in points if v is not None] for key, points in read.items()}
    if known["preempted"]:
        first = known["preempted"][0][1]
        known["preempted"] = [(t, v - first) for t, v in known["preempted"]]
    return {key: _thinned(points) for key, points in known.items() if points}


def _thinned(points: Sequence[tuple[float, float]]) -> Curve:
    times, values = np.array([t for t, _ in points]), np.array([v for _, v in points])
    if len(times) > N_POINTS:
        span = np.minimum(((times - times[0]) / (times[-1] - times[0]) * N_POINTS).astype(int), N_POINTS - 1)
        starts = np.flatnonzero(np.diff(span, prepend=-1))
        times, values = times[starts], np.maximum.reduceat(values, starts)
    return [round(float(t), 2) for t in times], [round(float(v), 1) for v in values]


EngineTime = Mapping[str, Mapping[str, float]]
"""stage -> phase -> engine seconds"""


def engine_time(folder: StudyFolder, trials: Sequence[TrialRecord]) -> EngineTime:
    """Over every stored run, by what it was for; a search trial counts for its stage. A retry is not in it."""
    stages = {t.number: t.stage or "search" for t in trials}
    found: dict[str, dict[str, float]] = {}
    for stage, seconds in _runs(folder.path, stages):
        own = found.setdefault(stage, {})
        for phase, spent_s in seconds.items():
            own[phase] = own.get(phase, 0.0) + spent_s
    return found


def _runs(root: Path, stages: Mapping[int, str]) -> Iterator[tuple[str, Mapping[str, float]]]:
    for path in (*sorted(root.glob("runs/*/outcome.json")), *sorted(root.glob("trials/*/run-*/outcome.json"))):
        body = json.loads(path.read_text("utf-8"))
        purpose = str(body.get("about", {}).get("purpose", "")) or "other"
        number = path.parent.parent.name
        is_search = purpose == "search" and number.isdigit()
        yield (stages.get(int(number), "search") if is_search else purpose), body.get("engine_seconds", {})


def time_figure(spent: EngineTime, title: str) -> go.Figure | None:
    """A bar a stage, the phases of its runs stacked. None if nothing was spent."""
    if not any(sum(phases.values()) for phases in spent.values()):
        return None
    figure = go.Figure()
    stages = sorted(spent, key=lambda stage: STAGES.index(stage) if stage in STAGES else len(STAGES))[::-1]
    known = dict.fromkeys([*PHASES, *(phase for phases in spent.values() for phase in phases)])
    for phase in known:
        minutes = [round(spent[stage].get(phase, 0.0) / 60.0, 2) for stage in stages]
        if any(minutes):
            colour = {"color": PHASES.get(phase, "#b8bec6")}
            figure.add_trace(go.Bar(x=minutes, y=stages, name=phase, orientation="h", marker=colour))
    figure.update_layout(**layout(title), barmode="stack", xaxis=styled_axis("engine minutes", {}))
    figure.update_layout(yaxis=styled_axis("", {}))
    return figure
