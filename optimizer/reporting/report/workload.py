"""The workload's character: what the steady load replayed, as the chosen trial's records hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from objectives.measurement import PhaseMeasurement
from optimizer.errors import UserError
from optimizer.reporting.report.chart import COLOURS, Chart, axis, layout, plain
from optimizer.reporting.report.source import Source
from optimizer.reporting.report.words import duration, number
from optimizer.trial import Measured, Stopped
from optimizer.workload.advice import advise
from optimizer.workload.character import Character, Spread, characterize
from optimizer.workload.trace import Trace

N_BINS = 36
N_SPANS = 60


@dataclass(frozen=True)
class Workload:
    lengths: tuple[tuple[str, ...], ...]
    """(what, mean, P50, P90, P99, longest) in tokens"""
    facts: tuple[tuple[str, str], ...]
    advice: tuple[str, ...]
    charts: tuple[Chart, ...]
    notices: tuple[str, ...]
    """How the study prepared the trace."""


def workload_of(source: Source) -> Workload | None:
    """None where no trial replayed its steady load."""
    phase = _phase(source)
    if phase is None:
        return None
    trace = _trace(phase)
    character = characterize(trace)
    advice = tuple(line for line in advise(character) if not line.startswith("No prefix ids"))
    return Workload(
        tuple(_lengths(trace, character)), tuple(_facts(source, phase, character)), advice,
        (*_length_charts(trace), _arrival_chart(trace)), _notices(source),
    )  # fmt: skip


def _phase(source: Source) -> PhaseMeasurement | None:
    """The steady load of the reference, a pick, or whatever was measured first."""
    measured = [t.number for t in source.trials if t.values is not None or t.state == "stopped"]
    for trial in dict.fromkeys([*(m.trial for m in source.shown[::-1]), *measured[:3]]):
        try:
            outcome = source.folder.load_outcome(trial)
        except UserError:
            continue
        if isinstance(outcome, Measured | Stopped) and "steady" in outcome.measurement.phases:
            phase = outcome.measurement.phases["steady"]
            if phase.records:
                return phase
    return None


def _trace(phase: PhaseMeasurement) -> Trace:
    records = sorted(phase.records, key=lambda r: r.scheduled_s)
    return Trace(
        np.array([r.scheduled_s for r in records]),
        np.array([max(r.prompt_tokens, 1) for r in records], np.int32),
        np.array([max(r.asked_output_tokens, 1) for r in records], np.int32),
        np.array([phase.tenants.index(r.tenant) for r in records], np.int16),
        phase.tenants,
    )


def _lengths(trace: Trace, character: Character) -> list[tuple[str, ...]]:
    rows = [("prompt", character.prompt_tokens), ("output", character.output_tokens),
            ("prompt + output", character.total_tokens)]  # fmt: skip
    if len(trace.tenants) > 1:
        for i, tenant in enumerate(trace.tenants):
            own = characterize(trace.take(np.flatnonzero(trace.tenant == i)))
            rows += [(f"{tenant}: prompt", own.prompt_tokens), (f"{tenant}: output", own.output_tokens)]
    return [(name, *_spread(s)) for name, s in rows]


def _spread(s: Spread) -> tuple[str, ...]:
    return tuple(f"{v:,.0f}" for v in (s.mean, s.p50, s.p90, s.p99, s.max))


def _facts(source: Source, phase: PhaseMeasurement, c: Character) -> list[tuple[str, str]]:
    rate = source.front.meta.rate_per_s
    peak = c.peak_over_mean.get("10 s")
    rows = [
        ("Traffic", source.front.meta.workload or "-"),
        ("Replayed", f"{c.n_requests:,} requests in {duration(c.span_s)}"),
        ("Rate R of the steady load", "" if rate is None else f"{rate:.3g} requests/s"),
        ("How R was found", source.calibration.how if source.calibration else ""),
        ("Burstiness", "" if c.gap_cv is None else f"gaps vary by {c.gap_cv:.2f} of their mean (1 is random)"),
        ("Busiest 10 s", "" if peak is None else f"{peak:.1f} times the mean rate"),
        ("Tokens asked for", "" if c.output_tokens_per_s is None else
         f"{number(c.prompt_tokens_per_s or 0.0)} prompt and {number(c.output_tokens_per_s)} output tokens/s"),
        ("Prefix cache", _cached(phase)),
    ]  # fmt: skip
    if len(c.tenants) > 1:
        rows.append(("Tenants", ", ".join(f"{name} {n:,} requests" for name, n in c.tenants.items())))
    return [(name, text) for name, text in rows if text]


def _cached(phase: PhaseMeasurement) -> str:
    known = [r for r in phase.records if r.cached_prompt_tokens is not None]
    total = sum(r.prompt_tokens for r in known)
    if not total:
        return ""
    share = sum(r.cached_prompt_tokens or 0 for r in known) / total
    return f"{100 * share:.3g} % of the prompt tokens were in it"


def _length_charts(trace: Trace) -> list[Chart]:
    both = (("prompt", trace.prompt_tokens), ("output", trace.output_tokens))
    return [_length_chart(trace, name, tokens) for name, tokens in both]


def _length_chart(trace: Trace, name: str, tokens: Any) -> Chart:
    """A histogram by ratio: lengths span decades."""
    low, high = float(tokens.min()), float(tokens.max())
    edges = np.geomspace(low, max(high, low * 1.01) * 1.0001, N_BINS + 1)
    data = []
    for i, tenant in enumerate(trace.tenants):
        counts, _ = np.histogram(tokens[trace.tenant == i], edges)
        data.append({
            "type": "bar", "x": [round(float(np.sqrt(a * b)), 1) for a, b in pairwise(edges)],
            "y": counts.tolist(), "width": np.diff(edges).round(2).tolist(), "name": plain(tenant),
            "marker": {"color": COLOURS[i % len(COLOURS)], "opacity": 0.85},
            "hovertemplate": "about %{x:,.0f} tokens: %{y} requests<extra></extra>",
        })  # fmt: skip
    ticks = [t for t in (1, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000) if low / 1.5 <= t <= high * 1.5]
    shown = layout(
        xaxis=axis(f"{name} tokens", type="log", tickvals=ticks, ticktext=[f"{t:,}" for t in ticks]),
        yaxis=axis("requests"), barmode="stack", bargap=0, showlegend=len(trace.tenants) > 1,
    )  # fmt: skip
    return Chart(f"lengths-{name}", f"{name.capitalize()} lengths", {"data": data, "layout": shown}, "", 280)


def _arrival_chart(trace: Trace) -> Chart:
    edges = np.linspace(float(trace.arrival_s[0]), float(trace.arrival_s[-1]) + 1e-6, N_SPANS + 1)
    span_s = float(edges[1] - edges[0])
    data: Sequence[dict[str, Any]] = [
        {
            "type": "scatter", "mode": "lines", "line": {"shape": "hv", "color": COLOURS[i % len(COLOURS)]},
            "x": edges[:-1].tolist(), "name": plain(tenant),
            "y": (np.histogram(trace.arrival_s[trace.tenant == i], edges)[0] / max(span_s, 1e-9)).tolist(),
            "hovertemplate": "%{x:.0f} s: %{y:.2f} requests/s<extra></extra>",
        }
        for i, tenant in enumerate(trace.tenants)
    ]  # fmt: skip
    shown = layout(
        xaxis=axis("seconds"), yaxis=axis("requests/s", rangemode="tozero"), showlegend=len(trace.tenants) > 1
    )
    return Chart("arrivals", "Arrivals", {"data": data, "layout": shown}, f"Each step is {duration(span_s)}.", 280)


def _notices(source: Source) -> tuple[str, ...]:
    """What the study said of its traffic before it began."""
    words = ("window", "time unit", "max_model_len", "rejected", "batches", "left out")
    told = [str(e.get("text", "")) for e in source.events if e.get("event") == "Notice"]
    return tuple(dict.fromkeys(t for t in told if any(w in t for w in words)))[:10]
