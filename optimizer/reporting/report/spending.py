"""Where the GPU's time went: by stage and by what a run does (boot, warm-up, loads), failures apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optimizer.reporting.report.chart import COLOURS, FAILED, Chart, axis, layout
from optimizer.reporting.report.source import Source, read_json
from optimizer.reporting.report.words import duration
from optimizer.study.trial_record import TrialRecord

GPUS = "--gpus-per-server"
PARTS = ("boot", "warm-up", "steady", "stress", "saturation")
STAGES = {
    "calibration": "calibration (the reference, before trial 0)",
    "baseline": "baselines (your configuration, vLLM's defaults)",
    "stable": "stable stage (how far up is safe)",
    "fast": "fast stage (the search)",
    "advanced": "advanced stage (more knobs)",
    "confirmation": "confirmation (measured again)",
    "rate": "below and above the rate R",
    "isolation": "isolation of tenants",
    "text": "the picks as text",
    "cap": "caps on requests",
    "validation": "validation",
}


@dataclass(frozen=True)
class Run:
    """One recorded run. Seconds of one engine; virtual on the simulator."""

    stage: str
    outcome: str
    seconds: Mapping[str, float]
    boot: Mapping[str, float]
    """part of a boot -> seconds"""
    n_gpus: int
    kind: str = ""
    """Of what failed."""
    cause: str = ""
    wall_s: float = 0.0
    is_of_trial: bool = True


@dataclass(frozen=True)
class Spending:
    total_s: float
    wall_s: float
    n_runs: int
    unit: str
    """`GPU time`, `virtual GPU time`, `server time`."""
    failed_s: float
    n_failed: int
    rows: tuple[tuple[str, int, str, str], ...]
    """(stage, runs, time, share)"""
    boot: tuple[tuple[str, str], ...]
    """(part of a boot, median time)"""
    charts: tuple[Chart, ...]


def read_runs(source: Source) -> list[Run]:
    """Every run in the folder. One that cannot be read is left out."""
    stages = {t.number: t.stage for t in source.trials}
    n_gpus = _n_gpus(source)
    return list(_runs(source.folder.path, stages, n_gpus))


def _runs(path: Path, stages: Mapping[int, str], n_gpus: int) -> Iterator[Run]:
    for file in sorted(path.glob("trials/*/run-*/outcome.json")):
        body = read_json(file)
        trial = file.parent.parent.name
        if body is not None and trial.isdigit():
            purpose = (body.get("about") or {}).get("purpose", "search")
            yield _run(body, stages.get(int(trial), "") or "search" if purpose == "search" else purpose, n_gpus)
    for file in sorted(path.glob("runs/*/outcome.json")):
        body = read_json(file)
        if body is not None:
            yield replace(_run(body, file.parent.name.rpartition("-")[0], n_gpus), is_of_trial=False)


def _run(body: Mapping[str, Any], stage: str, n_gpus: int) -> Run:
    boot = (body.get("boot") or {}).get("seconds") or {}
    return Run(
        stage, body.get("outcome", ""), body.get("engine_seconds") or {}, boot, n_gpus, body.get("kind") or "",
        body.get("cause") or "",
        body.get("wall_s") or 0.0,
    )  # fmt: skip


def _n_gpus(source: Source) -> int:
    """GPUs of one trial: as the command asked for."""
    words = [part for word in source.manifest.command for part in word.split("=", 1)]
    at = words.index(GPUS) + 1 if GPUS in words else len(words)
    return int(words[at]) if at < len(words) and words[at].isdigit() else 1


def spending_of(source: Source, runs: Sequence[Run]) -> Spending:
    total = sum(_time(r) for r in runs)
    failed = [r for r in runs if r.outcome in ("infeasible", "broken")]
    charts = [c for c in (_chart(source, runs),) if c is not None]
    return Spending(
        total, sum(r.wall_s for r in runs), len(runs), unit_of(source), sum(map(_time, failed)), len(failed),
        tuple(_rows(runs, total)), tuple(_boot(runs)), tuple(charts),
    )  # fmt: skip


def unit_of(source: Source) -> str:
    if source.is_simulated:
        return "virtual GPU time"
    return "server time" if source.manifest.gpu == "CPU" else "GPU time"


def _time(run: Run) -> float:
    return sum(run.seconds.values()) * run.n_gpus


def _rows(runs: Sequence[Run], total: float) -> Iterator[tuple[str, int, str, str]]:
    for stage in _stages(runs):
        own = [r for r in runs if r.stage == stage]
        seconds = sum(map(_time, own))
        yield STAGES.get(stage, stage), len(own), duration(seconds), f"{seconds / total:.0%}" if total else "-"


def _stages(runs: Sequence[Run]) -> list[str]:
    """In the order they come in a study."""
    seen = Counter(r.stage for r in runs)
    return [*(s for s in STAGES if s in seen), *(s for s in seen if s not in STAGES)]


def _boot(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    parts = dict.fromkeys(p for r in runs for p in r.boot)
    for part in parts:
        own = sorted(r.boot[part] for r in runs if part in r.boot)
        yield part.replace("_", " "), duration(own[len(own) // 2])


def _chart(source: Source, runs: Sequence[Run]) -> Chart | None:
    stages = _stages(runs)[::-1]
    if not any(_time(r) for r in runs):
        return None
    longest = max(sum(_time(r) for r in runs if r.stage == s) for s in stages)
    scale, unit = (3600.0, "hours") if longest > 7200 else (60.0, "minutes") if longest > 120 else (1.0, "seconds")
    parts = [*PARTS, *dict.fromkeys(p for r in runs for p in r.seconds if p not in PARTS)]
    data = [_bars(runs, stages, part, i, scale) for i, part in enumerate(parts)]
    lost = [sum(_time(r) for r in runs if r.stage == s and _is_lost(r)) / scale for s in stages]
    data.append({**_bar("failed or broken", stages, lost), "marker": {"color": FAILED}})
    shown = layout(
        barmode="stack", xaxis=axis(f"{unit_of(source)}, {unit}"), yaxis=axis(""), bargap=0.35,
        margin={"l": 90, "r": 14, "t": 70, "b": 46},
    )  # fmt: skip
    kept = [d for d in data if any(d["x"])]
    return Chart("spending", "By stage", {"data": kept, "layout": shown}, "", 170 + 34 * len(stages), is_wide=True)


def _is_lost(run: Run) -> bool:
    return run.outcome in ("infeasible", "broken")


def _bars(runs: Sequence[Run], stages: Sequence[str], part: str, i: int, scale: float) -> dict[str, Any]:
    own = [
        sum(r.seconds.get(part, 0.0) * r.n_gpus for r in runs if r.stage == s and not _is_lost(r)) / scale
        for s in stages
    ]
    return {**_bar(part, stages, own), "marker": {"color": COLOURS[i % len(COLOURS)], "opacity": 0.85}}


def _bar(name: str, stages: Sequence[str], values: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "bar", "orientation": "h", "name": name, "y": [s.replace("rate", "rates") for s in stages],
        "x": list(values), "hovertemplate": "%{y}: %{x:.3g}<extra>%{fullData.name}</extra>",
    }  # fmt: skip


def stage_of(trial: TrialRecord) -> str:
    return STAGES.get(trial.stage, trial.stage or "search")
