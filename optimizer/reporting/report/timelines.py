"""What happened inside a chosen trial, second by second: queue, memory, preemptions, and what its users felt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from objectives.measurement import Load, PhaseMeasurement
from optimizer.errors import UserError
from optimizer.reporting.member import FrontMember
from optimizer.reporting.report.chart import COLOURS, FAILED, INK, LINE, Chart, axis, layout, log_ticks, plain
from optimizer.reporting.report.source import Source
from optimizer.reporting.report.timeline_series import (
    FIRST_TOKENS,
    GAPS,
    KV_USAGE,
    PREEMPTIONS,
    REQUESTS,
    Series,
    first_tokens,
    gaps,
    gauges,
)
from optimizer.trial import Measured, Stopped

LOADS: tuple[Load, ...] = ("steady", "stress")
TITLES = {"steady": "Steady load", "stress": "Peak (stress load)"}
ROW_PX = 118
_ROWS = {
    REQUESTS: "requests running (dotted: waiting)",
    KV_USAGE: "KV cache, %",
    PREEMPTIONS: "preemptions, counted up",
    FIRST_TOKENS: "time to first token, ms",
    GAPS: "P99 gap between tokens, ms (dotted: median)",
}
_GAP = 0.045
LOG_SPAN = 20.0
"""Longest wait over the median from which on waits are drawn by ratio."""


@dataclass(frozen=True)
class Timeline:
    """One trial's charts."""

    trial: int
    title: str
    charts: tuple[Chart, ...]
    missing: str = ""
    """Why there are none."""


def timelines(source: Source, titles: Mapping[int, str]) -> list[Timeline]:
    """Of the picks and the reference."""
    return [_timeline(source, member, titles.get(member.trial, "")) for member in source.shown]


def _timeline(source: Source, member: FrontMember, title: str) -> Timeline:
    try:
        outcome = source.folder.load_outcome(member.trial)
    except UserError as error:
        return Timeline(member.trial, title, (), str(error))
    if not isinstance(outcome, Measured | Stopped):
        return Timeline(member.trial, title, (), "its samples are not in the study's folder")
    phases = [outcome.measurement.phases[load] for load in LOADS if load in outcome.measurement.phases]
    owners = _owners(source, phases)
    drawn = [[*gauges(phase), *first_tokens(phase), *gaps(phase)] for phase in phases]
    rows = sorted({s.row for own in drawn for s in own if s.row != PREEMPTIONS or any(s.y)})
    charts = tuple(
        _chart(member.trial, phase, [s for s in own if s.row in rows], rows, owners)
        for phase, own in zip(phases, drawn, strict=True)
    )
    return Timeline(member.trial, title, charts)


def _owners(source: Source, phases: Sequence[PhaseMeasurement]) -> dict[str, str]:
    """tenant or instance -> colour; an instance has the colour of its first tenant."""
    tenants = dict.fromkeys(t for phase in phases for t in phase.tenants)
    found = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(tenants)}
    for instance in source.profile.instances:
        own = [t for t in source.profile.tenants_of(instance) if t in found]
        found.setdefault(instance, found[own[0]] if own and len(source.profile.instances) > 1 else INK)
    return found if len(tenants) > 1 else {**found, **dict.fromkeys(source.profile.instances, COLOURS[0])}


def _chart(
    trial: int, phase: PhaseMeasurement, series: Sequence[Series], rows: Sequence[int], owners: Mapping[str, str]
) -> Chart:
    """All loads of a trial have the same rows."""
    is_several = len({owners[s.owner] for s in series}) > 1
    named: set[str] = set()
    data = [_trace(s, owners, named, is_several) for s in series]
    figure = {"data": data, "layout": _layout(phase, series, rows, is_several)}
    height_px = 90 + ROW_PX * len(rows)
    return Chart(f"time-{trial}-{phase.load}", TITLES[phase.load], figure, _note(phase), height_px)


def _layout(phase: PhaseMeasurement, series: Sequence[Series], rows: Sequence[int], is_several: bool) -> dict[str, Any]:
    end_s = max([phase.end_s, *(max(s.x, default=0.0) for s in series)])
    anchor = _axis_name(rows[-1], "y") if rows else "free"
    return layout(
        **_axes(rows, series), xaxis=axis("seconds", range=[0, end_s], anchor=anchor),
        annotations=[_heading(r, rows) for r in rows], shapes=[_arrivals_end(phase)], showlegend=is_several,
        margin={"l": 52, "r": 10, "t": 44 if is_several else 24, "b": 42},
        legend={"orientation": "h", "x": 0, "y": 1.035, "yanchor": "bottom"}, hovermode="closest",
    )  # fmt: skip


def _note(phase: PhaseMeasurement) -> str:
    counts = [s.n_preemptions_total for s in phase.samples if s.n_preemptions_total is not None]
    failed = sum(not r.is_finished for r in phase.records)
    parts = [f"{len(phase.records):,} requests"]
    parts += [f"{failed:,} not answered whole"] if failed else []
    parts += [f"{phase.offered_per_s:.3g} a second"] if phase.offered_per_s else []
    parts += ["no preemption"] if counts and max(counts) == min(counts) else []
    return ", ".join(parts) + "."


def _trace(s: Series, owners: Mapping[str, str], named: set[str], is_several: bool) -> dict[str, Any]:
    colour = owners.get(s.owner, INK)
    is_first = s.owner not in named
    named.add(s.owner)
    shape = {"mode": "markers", "marker": {"color": colour, "size": 4, "opacity": 0.6}} if s.is_points else {
        "mode": "lines", "line": {"color": colour, "width": s.width, "dash": s.dash},
    }  # fmt: skip
    return {
        "type": "scatter", **shape, "x": list(s.x), "y": list(s.y), "xaxis": "x", "yaxis": _axis_name(s.row, "y"),
        "name": plain(s.owner), "legendgroup": plain(s.owner), "showlegend": is_several and is_first,
        "hovertemplate": "%{x:.0f} s: %{y:.4g}" + f"<extra>{plain(s.owner) if is_several else ''}</extra>",
    }  # fmt: skip


def _axis_name(row: int, kind: str) -> str:
    return kind if row == 0 else f"{kind}{row + 1}"


def _domains(rows: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Rows from the top down, of equal height."""
    height = (1 - _GAP * (len(rows) - 1)) / max(len(rows), 1)
    return {r: (1 - i * (height + _GAP) - height, 1 - i * (height + _GAP)) for i, r in enumerate(rows)}


def _axes(rows: Sequence[int], series: Sequence[Series]) -> dict[str, Any]:
    places = _domains(rows)
    found = {}
    for row in rows:
        low, high = places[row]
        more: dict[str, Any] = {"range": [0, 105]} if row == KV_USAGE else {"rangemode": "tozero"}
        waits = [y for s in series if s.row == row == FIRST_TOKENS for y in s.y if y]
        if _spans_much(waits):
            more = {"type": "log", **log_ticks(min(waits), max(waits))}
        found[_axis_name(row, "yaxis")] = axis("", domain=[max(low, 0.0), high], nticks=4, **more)
    return found


def _spans_much(values: Sequence[float]) -> bool:
    """A few waits of minutes would flatten the many of milliseconds."""
    return bool(values) and max(values) > LOG_SPAN * float(np.median(values))


def _heading(row: int, rows: Sequence[int]) -> dict[str, Any]:
    return {
        "text": _ROWS[row], "x": 0, "xref": "paper", "xanchor": "left", "y": _domains(rows)[row][1],
        "yref": "paper", "yanchor": "bottom", "showarrow": False, "font": {"size": 11, "color": INK},
    }  # fmt: skip


def _arrivals_end(phase: PhaseMeasurement) -> dict[str, Any]:
    """A thin line where the last request arrives: afterwards the queue only empties."""
    at = {"x0": phase.counted_until_s, "x1": phase.counted_until_s, "y0": 0, "y1": 1, "yref": "paper"}
    return {"type": "line", **at, "line": {"color": FAILED if phase.cut_reason else LINE, "width": 1, "dash": "dash"}}
