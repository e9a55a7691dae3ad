"""A watched server diagnosed: the five questions for each of its engines, and what else it showed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from optimizer.deployment.secrets import mask
from optimizer.questions.diagnosis import WORST, Diagnosis, diagnose
from optimizer.questions.health import Health
from optimizer.questions.of_phase import Server
from optimizer.questions.prediction import with_predictions
from optimizer.questions.situation import Gauge, Situation, Tail
from optimizer.questions.words import diagnosis_lines
from optimizer.watching.of_watch import situations_of
from optimizer.watching.signs import WatchSign, long_silence, signs_of
from optimizer.watching.spikes import spikes_of
from optimizer.watching.typical import typical_load
from optimizer.watching.watch import Seen
from optimizer.watching.words import printable

FEW = 10
"""Fewer answers than this and no percentile or rate says much."""


@dataclass(frozen=True)
class WatchDiagnosis:
    seen: Seen
    health: Health
    engines: Mapping[str, tuple[Situation, Diagnosis]]
    """By source, the one with most to do first."""
    signs: tuple[WatchSign, ...]
    is_idle: bool
    """Nobody asked anything of it, so nothing is known of how it serves."""

    def to_json(self) -> dict[str, Any]:
        server = self.seen.server
        return {
            "url": mask(server.url),
            "vllm": server.version,
            "model": mask(server.model_name),
            "gpu": server.gpu.name if server.gpu else None,
            "n_gpus_per_engine": server.n_gpus,
            "arguments": {name: mask(v) if isinstance(v, str) else v for name, v in server.config.items()},
            "watched_s": round(self.seen.watched_s, 1),
            "was_cut": self.seen.was_cut,
            "health": self.health,
            "is_idle": self.is_idle,
            "signs": [{"health": s.health, "text": s.text} for s in self.signs],
            "notes": list(server.notes),
            "engines": {name: {"seen": _figures(s), **d.to_json()} for name, (s, d) in self.engines.items()},
        }


def diagnose_watch(seen: Seen) -> WatchDiagnosis:
    situations = situations_of(seen)
    signs = signs_of(seen, list(situations.values()))
    engines = {s.source: (s, _diagnosed(seen, label, s)) for label, s in situations.items()}
    is_idle = bool(situations) and not any(map(_is_asked, situations.values())) and not seen.incident
    levels: list[Health] = [d.health for _, d in engines.values()] + [s.health for s in signs]
    if not levels or (is_idle and all(level == "healthy" for level in levels)):
        levels = ["unknown"]
    return WatchDiagnosis(seen, min(levels, key=WORST.index), engines, signs, is_idle)


def _is_asked(s: Situation) -> bool:
    """Whether anybody asked anything of it, as far as that could be read."""
    return s.running is None or bool(s.n_requests or s.running.most or (s.waiting is not None and s.waiting.most))


def _diagnosed(seen: Seen, label: str, s: Situation) -> Diagnosis:
    gains = seen.gains.of_engine(label)
    found = diagnose([s], spikes=spikes_of(s, gains))
    if seen.incident or long_silence(seen.scrapes_of(label)) is not None:
        return _without_changes(found)
    load = typical_load(s, gains, seen.server.n_gpus)
    server = Server(name=label, config=dict(seen.server.config), model=seen.server.model, gpu=seen.server.gpu)
    return found if load is None else with_predictions(found, server, load)


def _without_changes(found: Diagnosis) -> Diagnosis:
    """An engine that hangs or is gone needs no other parameters."""
    lines = tuple(replace(line, changes=()) for line in found.checklist.lines)
    return replace(
        found,
        answers=tuple(replace(a, changes=()) for a in found.answers),
        checklist=replace(found.checklist, lines=lines),
        spikes=replace(found.spikes, changes=()),
    )


def exit_code_of(found: WatchDiagnosis) -> int:
    """0 healthy, or idle; 1 degraded; 4 broken."""
    return {"broken": 4, "degraded": 1}.get(found.health, 0)


def text_of(found: WatchDiagnosis) -> str:
    """For people."""
    seen, server = found.seen, found.seen.server
    on = f" on {server.gpu.name}" if server.gpu else ""
    cut = ", broken off" if seen.was_cut else ""
    verdict = "idle" if found.is_idle and found.health == "unknown" else found.health
    lines = [f"{mask(server.url)}: {verdict} (vLLM {server.version}, {mask(server.model_name)}{on};"
             f" watched for {seen.watched_s:.0f} s{cut})"]  # fmt: skip
    lines += [f"  {s.text}" for s in found.signs]
    if found.is_idle:
        lines.append("  nobody asked anything of it meanwhile: watch it while it serves, or load it (run --attach)")
    lines += [f"  {text}" for text in server.notes]
    if not found.is_idle:
        for name, (situation, diagnosis) in found.engines.items():
            lines += [f"  {text}" for text in _seen_lines(situation)]
            shown = name if len(found.engines) > 1 else "its engine"
            lines += diagnosis_lines(diagnosis, f"{shown} until then" if seen.incident else shown)
    return "\n".join(map(printable, lines))


def _seen_lines(s: Situation) -> list[str]:
    told = [f"{s.n_finished} answered ({s.finished_per_s:.3g}/s)"]
    told += [] if s.output_tokens_per_s is None else [f"{s.output_tokens_per_s:.4g} output tokens/s"]
    told += [text for name, tail in (("TTFT", s.ttft_ms), ("ITL", s.itl_ms)) if (text := _tail_text(name, tail))]
    told += [] if s.cached_share is None else [f"{s.cached_share:.0%} of prompt tokens cached"]
    few = [] if (s.n_finished or 0) >= FEW else [f"only {s.n_finished} answers were seen: tails and rates mean little"]
    return [", ".join(told), *few]


def _tail_text(name: str, tail: Tail | None) -> str:
    if tail is None or tail.mean is None or tail.p99 is None:
        return ""
    return f"{name} mean {tail.mean:.3g} ms, P99 about {tail.p99:.3g} ms"


def _figures(s: Situation) -> dict[str, Any]:
    names = (
        "offered_per_s", "finished_per_s", "n_finished", "n_failed", "n_preemptions", "output_tokens_per_s",
        "prefill_tokens_per_s", "cached_share", "queue_mean_s", "prefill_mean_s", "e2e_mean_s", "kv_tokens",
        "kernel_resident_share",
    )  # fmt: skip
    gauges: dict[str, Gauge | None] = {"running": s.running, "waiting": s.waiting, "kv_usage": s.kv_usage}
    tails: dict[str, Tail | None] = {"ttft_ms": s.ttft_ms, "itl_ms": s.itl_ms}
    return (
        {name: getattr(s, name) for name in names}
        | {name: None if g is None else {"mean": g.mean, "most": g.most} for name, g in gauges.items()}
        | {name: None if t is None else {"mean": t.mean, "p50": t.p50, "p99": t.p99} for name, t in tails.items()}
        | {"cpu_cores": {role: use.cores for role, use in s.cpu.items()}}
    )
