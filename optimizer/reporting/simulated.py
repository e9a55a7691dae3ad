"""What `optimizer.simulate` prints: figures, KV usage and queue over time, capacity; as text for people or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from objectives.caveats import caveats
from objectives.measurement import EngineSample, Load, Measurement, PhaseMeasurement
from objectives.metric import compute_metrics
from optimizer.engines.engine import BootReport, Placement
from optimizer.errors import EngineFailed
from optimizer.reporting.front_table import Table, figure, plain
from search_spaces.capacity import Capacity
from search_spaces.hardware import GpuFacts

N_COLUMNS = 60
BARS = "▁▂▃▄▅▆▇█"
DURATIONS = (
    ("ttft", "time to first token, ms"),
    ("itl", "inter-token latency, ms"),
    ("tpot", "time per output token, ms"),
    ("e2e", "whole answer, ms"),
)
STATISTICS = ("mean", "p50", "p90", "p99", "max")
FIGURES = (
    ("output_tokens_per_s_per_gpu", "output tokens/s/GPU"),
    ("prompt_tokens_per_s_per_gpu", "prompt tokens/s/GPU"),
    ("requests_per_s_per_gpu", "requests/s/GPU"),
    ("finished_requests", "requests answered whole"),
    ("failed_share", "share not answered whole"),
    ("preemptions_per_request", "preemptions per request"),
    ("recomputed_tokens", "tokens computed again"),
    ("prefix_hit_share", "prefix hit share of tokens looked up"),
    ("kv_usage_mean", "KV usage, mean"),
    ("kv_usage_max", "KV usage, highest"),
    ("waiting_mean", "waiting requests, mean"),
    ("waiting_max", "waiting requests, most"),
)


@dataclass(frozen=True)
class Simulated:
    """A load that was simulated to its end or its time limit."""

    model: str
    gpu: GpuFacts
    placement: Placement
    capacities: Mapping[str, Capacity]
    """instance -> its memory arithmetic"""
    boot: BootReport
    measurement: Measurement
    """One phase."""
    notices: tuple[str, ...]
    wall_s: float
    given_kv_blocks: int | None
    step_logs: Mapping[str, str]
    """instance -> file, where steps were logged"""
    are_steps_learned: bool = False
    """From real runs, not the table's."""

    @property
    def phase(self) -> PhaseMeasurement:
        return next(iter(self.measurement.phases.values()))


@dataclass(frozen=True)
class Refused:
    """A configuration that would not boot, or not survive the load."""

    model: str
    gpu: GpuFacts
    engine: str
    placement: Placement
    capacities: Mapping[str, Capacity]
    error: EngineFailed
    are_steps_learned: bool = False


def simulated_text(done: Simulated, is_json: bool) -> str:
    return _json(_as_json(done)) if is_json else "\n".join(_lines(done))


def refused_text(refused: Refused, is_json: bool) -> str:
    error = refused.error
    if is_json:
        head = _head_json(refused, refused.engine)
        failure = {"kind": error.kind, "phase": error.phase, "cause": error.cause, "violation": error.violation}
        return _json({**head, "feasible": False, "failure": failure})
    lines = [*_heading(refused, refused.engine), ""]
    lines += [*_servers(refused.placement), *_capacity(refused.capacities), ""]
    return "\n".join([*lines, f"REFUSED at {error.phase} ({error.kind}): {error.cause}"])


# ---- text -----------------------------------------------------------------------------------------------------------


def _lines(done: Simulated) -> Iterator[str]:
    phase, boot = done.phase, done.boot
    figures = compute_metrics(done.measurement)
    yield from _heading(done, done.measurement.engine)
    yield ""
    yield from _servers(done.placement)
    yield from done.notices
    offered = f" at {phase.offered_per_s:.3g} per s" if phase.offered_per_s else ""
    speed = f"{phase.end_s / max(done.wall_s, 1e-9):,.0f} x real time"
    yield f"{phase.load} load: {len(phase.records):,} requests{offered}, {phase.end_s:,.1f} s simulated ({speed})"
    yield ""
    yield plain(_durations(phase, figures))
    yield ""
    yield plain(Table(("figure", "value"), tuple((t, figure(figures[f"{phase.load}_{n}"])) for n, t in FIGURES)))
    yield ""
    yield from _over_time(phase)
    yield ""
    for name, n in boot.kv_blocks.items():
        given = "given with --kv-blocks" if done.given_kv_blocks else "predicted"
        yield f"KV cache of {name}: {n:,} blocks, {boot.kv_tokens[name]:,} tokens ({given})"
    yield from (f"steps of {name}: {path}" for name, path in done.step_logs.items())
    yield from _capacity(done.capacities)
    yield from (f"note: {line}" for line in caveats(done.measurement))
    basis = boot.facts.get("uncalibrated")
    if basis:
        yield f"note: uncalibrated, no kernel of it was measured: {', '.join(basis)}"
    ignored = boot.facts.get("ignored_arguments")
    if ignored:
        yield f"note: without effect here: {', '.join(ignored)}"


def _heading(of: Simulated | Refused, engine: str) -> list[str]:
    return [f"SIMULATED, not measured: {of.model} on {of.gpu.name} ({engine})", *warnings_of(of)]


def warnings_of(of: Simulated | Refused) -> list[str]:
    """What the step times stand on, said aloud; nothing where they were learned."""
    if of.are_steps_learned:
        return []
    lines = ["UNCALIBRATED: step times are a roofline; no run on this card has corrected them"]
    if not of.gpu.is_calibrated:
        lines.append(f"UNCALIBRATED card: no kernel of {of.gpu.name} was measured, its efficiencies are start values")
    return lines


def _servers(placement: Placement) -> Iterator[str]:
    n = len(placement.instances)
    if n > 1:
        yield f"{n} servers on one card, sharing by {placement.sharing}"
    for instance in placement.instances:
        yield f"{instance.name}: vllm serve {' '.join(instance.config.arguments()) or '(defaults)'}"


def _durations(phase: PhaseMeasurement, figures: Mapping[str, float | None]) -> Table:
    owners = ["", *phase.tenants] if len(phase.tenants) > 1 else [""]
    rows = []
    for kind, title in DURATIONS:
        for owner in owners:
            prefix = f"{owner}:" if owner else ""
            values = [figures.get(f"{prefix}{phase.load}_{kind}_{s}_ms") for s in STATISTICS]
            if any(v is not None for v in values):
                rows.append((f"{prefix} {title}".strip(), *map(figure, values)))
    return Table(("", *(s.upper() if s.startswith("p") else s for s in STATISTICS)), tuple(rows))


def _over_time(phase: PhaseMeasurement) -> Iterator[str]:
    for name in dict.fromkeys(s.instance for s in phase.samples):
        own = [s for s in phase.samples if s.instance == name]
        yield f"over time, {own[0].time_s:.0f} to {own[-1].time_s:.0f} s{'' if name == 'server' else ', ' + name}"
        for title, values, most in (
            ("KV usage", [s.kv_usage or 0.0 for s in own], 1.0),
            ("waiting", [s.n_waiting or 0.0 for s in own], None),
            ("running", [s.n_running or 0.0 for s in own], None),
        ):
            yield f"  {title:9} {sparkline([s.time_s for s in own], values, most)} {figure(max(values))} at most"


def sparkline(times: Sequence[float], values: Sequence[float], most: float | None = None) -> str:
    """The highest value of each of up to 60 equal spans of time, as eighths of `most` (None: of the highest)."""
    value, time = np.asarray(values), np.asarray(times)
    n = min(N_COLUMNS, value.size)
    span = max(float(time[-1] - time[0]), 1e-9)
    column = np.minimum(((time - time[0]) / span * n).astype(int), n - 1)
    top = np.full(n, np.nan)
    for i, v in zip(column, value, strict=True):
        top[i] = v if np.isnan(top[i]) else max(top[i], v)
    for i in range(1, n):
        top[i] = top[i - 1] if np.isnan(top[i]) else top[i]
    highest = most if most is not None else float(value.max())
    level = np.ceil(np.clip(top / (highest or 1.0), 0.0, 1.0) * (len(BARS) - 1)).astype(int)
    return "".join(BARS[i] for i in level)


def _capacity(capacities: Mapping[str, Capacity]) -> Iterator[str]:
    for name, capacity in capacities.items():
        yield f"memory of {name}, as arithmetic:"
        yield capacity.explain()


# ---- JSON -----------------------------------------------------------------------------------------------------------


def _head_json(of: Simulated | Refused, engine: str) -> dict[str, Any]:
    return {
        "simulated": True,
        "engine": engine,
        "model": of.model,
        "gpu": of.gpu.name,
        "warnings": warnings_of(of),
        "sharing": of.placement.sharing,
        "instances": {
            i.name: {
                "tenants": list(i.tenants),
                "arguments": dict(i.config),
                "predicted_kv_tokens": _interval(of.capacities[i.name]),
                "capacity": of.capacities[i.name].explain().splitlines(),
            }
            for i in of.placement.instances
        },
    }


def _interval(capacity: Capacity) -> dict[str, float]:
    tokens = capacity.kv_tokens
    return {"low": tokens.low, "likely": tokens.likely, "high": tokens.high}


def _as_json(done: Simulated) -> dict[str, Any]:
    phase = done.phase
    load: Load = phase.load
    head = _head_json(done, done.measurement.engine)
    figures = compute_metrics(done.measurement)
    return {
        **head,
        "feasible": True,
        "load": load,
        "n_requests": len(phase.records),
        "offered_per_s": phase.offered_per_s,
        "simulated_s": phase.end_s,
        "wall_s": done.wall_s,
        "kv_blocks": dict(done.boot.kv_blocks),
        "kv_tokens": dict(done.boot.kv_tokens),
        "metrics": {n: v for n, v in figures.items() if n.rpartition(":")[2].startswith(f"{load}_")},
        "over_time": {name: _series(phase, name) for name in dict.fromkeys(s.instance for s in phase.samples)},
        "step_logs": dict(done.step_logs),
        "notices": [*done.notices, *caveats(done.measurement)],
        "ignored_arguments": done.boot.facts.get("ignored_arguments", []),
    }


def _series(phase: PhaseMeasurement, instance: str) -> dict[str, list[float | None]]:
    own: list[EngineSample] = [s for s in phase.samples if s.instance == instance]
    return {
        "time_s": [s.time_s for s in own],
        "kv_usage": [s.kv_usage for s in own],
        "waiting": [s.n_waiting for s in own],
        "running": [s.n_running for s in own],
        "preemptions": [s.n_preemptions_total for s in own],
    }


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, allow_nan=False)
