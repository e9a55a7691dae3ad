"""The front as charts: three objectives at once, every pair of them, and how it grew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

from objectives.objective import Objective
from objectives.titles import short_of, title_of
from optimizer.reporting.front_table import UNPAID
from optimizer.reporting.report.chart import FRONT, QUIET, Chart, axis, layout, lines, thinned
from optimizer.reporting.report.source import Source
from optimizer.reporting.report.words import capital, name_of, reading, unit_of
from optimizer.study.board_plots import front_2d, front_3d
from optimizer.study.board_text import Standing

MOST_PAIRS = 6
MOST_STEPS = 600
_SHORT = {"throughput": "throughput", "ttft": "TTFT", "itl": "ITL", "knee": "knee"}


def front_charts(source: Source) -> list[Chart]:
    """Empty where nothing was measured."""
    if not any(t.values is not None for t in source.trials):
        return []
    standing, n = standing_of(source), len(source.terms.objectives)
    source = replace(source, terms=replace(source.terms, labels=tuple(map(label_of, source.terms.objectives))))
    charts = [_space(source, standing)] if n >= 3 else []
    charts += [_pair(source, standing, a, b) for a, b in list(combinations(range(n), 2))[:MOST_PAIRS]]
    return charts or [_alone(source)]


def label_of(objective: Objective) -> str:
    """An axis title with its unit."""
    title = title_of(objective.metric)
    return title if title != objective.metric else f"{name_of(objective.metric)}, {unit_of(objective.metric)}"


def standing_of(source: Source) -> Standing:
    members = {m.trial for m in source.front.members}
    names = {m.trial: ", ".join(_SHORT[p] for p in m.picks) or UNPAID for m in source.front.named}
    front = tuple(t for t in source.trials if t.number in members)
    reference = source.front.reference
    at = None if reference is None else next((t for t in source.trials if t.number == reference.trial), None)
    return Standing(source.trials, front, names, reference=at)


def _space(source: Source, standing: Standing) -> Chart:
    figure: dict[str, Any] = front_3d(standing, source.terms, "").to_plotly_json()
    figure["layout"] = _untitled(figure["layout"], 10)
    for axis_name, objective in zip(("xaxis", "yaxis", "zaxis"), source.terms.objectives, strict=False):
        figure["layout"]["scene"][axis_name]["title"]["text"] = short_of(objective.metric)
    names = [name_of(o.metric) for o in source.terms.objectives[:3]]
    more = " (the first three objectives)" if len(source.terms.objectives) > 3 else ""
    return Chart(
        "front-3d", f"{capital(', '.join(names[:2]))} and {names[2]}{more}", figure,
        "Drag to turn, scroll to zoom, point at a trial for its settings.", 430,
    )  # fmt: skip


def _pair(source: Source, standing: Standing, first: int, other: int) -> Chart:
    figure: dict[str, Any] = front_2d(standing, source.terms, "", other, first).to_plotly_json()
    figure["layout"] = _untitled(figure["layout"], 34)
    a, b = (name_of(source.terms.objectives[i].metric) for i in (first, other))
    ways = [("left", "right"), ("down", "up")]
    better = [
        way[source.terms.objectives[i].direction == "maximize"] for way, i in zip(ways, (first, other), strict=True)
    ]
    note = f"Better is {better[0]} and {better[1]}."
    return Chart(f"front-{first}-{other}", f"{capital(a)} against {b}", figure, note, 400)


def _untitled(given: Mapping[str, Any], top: int) -> dict[str, Any]:
    """The page has titles and sizes of its own."""
    kept = {k: v for k, v in given.items() if k not in ("title", "height", "template", "width")}
    margin = {**given.get("margin", {}), "t": top}
    return {**kept, "margin": margin, "font": layout()["font"], "hoverlabel": layout()["hoverlabel"]}


def _alone(source: Source) -> Chart:
    """One objective has no trade-off: its value, trial by trial."""
    objective, front = source.terms.objectives[0], {m.trial for m in source.front.members}
    measured = [t for t in source.trials if t.values is not None]
    shown = [measured[i] for i in thinned(len(measured), MOST_STEPS)]
    data = []
    for name, colour, own in (
        ("misses a limit", "#b8bec6", [t for t in shown if not t.is_feasible]),
        ("feasible", QUIET, [t for t in shown if t.is_feasible and t.number not in front]),
        ("best", FRONT, [t for t in measured if t.number in front]),
    ):
        if own:
            data.append({
                "type": "scatter", "mode": "markers", "name": name, "marker": {"color": colour, "size": 9},
                "x": [t.number for t in own], "y": [(t.values or (0.0,))[0] for t in own], "hoverinfo": "text",
                "hovertext": [
                    lines([f"trial {t.number}", reading(objective.metric, (t.values or (0.0,))[0]), t.reason[:120]])
                    for t in own
                ],
            })  # fmt: skip
    figure = {"data": data, "layout": layout(xaxis=axis("trial"), yaxis=axis(source.terms.labels[0]))}
    return Chart("front-1", capital(name_of(objective.metric)), figure, "", 360, is_wide=True)


def growth_chart(source: Source) -> Chart | None:
    """The front's hypervolume, trial by trial: flat at the end means that more trials would have found little."""
    rows = [e for e in source.events if e.get("event") == "TrialFinished" and e.get("hypervolume") is not None]
    if len(rows) < 2 or not any(e["hypervolume"] for e in rows):
        return None
    kept = [rows[i] for i in thinned(len(rows), MOST_STEPS)]
    data = [{
        "type": "scatter", "mode": "lines", "line": {"shape": "hv", "color": FRONT}, "name": "hypervolume",
        "x": [e["n_done"] for e in kept], "y": [e["hypervolume"] for e in kept],
    }]  # fmt: skip
    figure = {
        "data": data,
        "layout": layout(xaxis=axis("trials done"), yaxis=axis("hypervolume", rangemode="tozero"), showlegend=False),
    }
    note = (
        "How much of the range between the reference and far better the front covers, 0 to 1. A line that is flat at"
        " the end says that more trials would have found little more."
    )
    return Chart("growth", "How the front grew", figure, note, 280)
