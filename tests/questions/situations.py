"""Servers as their figures show them, each with what somebody who knows vLLM would say; and what must not be said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optimizer.questions.diagnosis import Diagnosis
from optimizer.questions.peak import Breakage
from optimizer.questions.situation import CpuUse, Gauge, Lengths, Situation, Tail
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model

FITS = {"health": "healthy", "q3": "healthy", "q4": "fits"}


@dataclass(frozen=True)
class Told:
    """`says`: part of the diagnosis -> how its verdict begins, one of several with `|`."""

    name: str
    loads: Sequence[Situation]
    says: Mapping[str, str]
    changes: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Argument -> least and most that must be recommended."""
    never: tuple[str, ...] = ()
    """Arguments that must not be touched; `*` is all of them."""
    words: tuple[str, ...] = ()
    """Somewhere in the answers."""
    not_words: tuple[str, ...] = ()
    breakage: Breakage | None = None


def known(load: Any = None, **figures: Any) -> Situation:
    """An 8B model on an H100 with vLLM's budgets, 600 requests of 800 + 200 tokens in two minutes, unless told."""
    config = {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "max_model_len": 32_768,
        "gpu_memory_utilization": 0.92,
    } | figures.pop("config", {})
    usual = {
        "model": find_model(figures.pop("model", "Llama-3.1-8B")),
        "gpu": find_gpu(figures.pop("gpu", "H100-80")),
        "kv_tokens": 430_000,
        "prompts": Lengths(800, 2500, 4000),
        "outputs": Lengths(200, 500, 1000),
        "totals": Lengths(1000, 2800, 4600),
        "n_requests": 600,
        "n_finished": 600,
        "n_failed": 0,
        "n_preemptions": 0,
    }
    return bare(load=load, config=config, **(usual | figures))


def bare(**figures: Any) -> Situation:
    return Situation(**{"source": "watched", "span_s": 120.0} | figures)


def lengths(prompt: int, output: int) -> dict[str, Lengths]:
    """All requests about alike."""
    both = [Lengths(n, 1.3 * n, 1.5 * n) for n in (prompt, output, prompt + output)]
    return dict(zip(("prompts", "outputs", "totals"), both, strict=True))


def kept_up(rate_per_s: float, e2e_s: float) -> dict[str, Any]:
    return {"offered_per_s": rate_per_s, "finished_per_s": rate_per_s, "is_sustained": True, "e2e_mean_s": e2e_s}


def queue(running: float, waiting: float, slope_per_s: float = 0.0, most: float = 0.0) -> dict[str, Gauge]:
    return {
        "running": Gauge(running, most or 1.2 * running),
        "waiting": Gauge(waiting, 2 * waiting, slope_per_s),
    }


def cores(**by_role: float) -> dict[str, CpuUse]:
    return {role: CpuUse(use, use) for role, use in by_role.items()}


def gap(p50_ms: float, p99_ms: float | None = None) -> dict[str, Tail]:
    return {"itl_ms": Tail(p50_ms, p99_ms or 2 * p50_ms, 1.05 * p50_ms)}


def first_token(mean_ms: float, queue_s: float, prefill_s: float) -> dict[str, Any]:
    tail = Tail(mean_ms, 2 * mean_ms, mean_ms)
    return {"ttft_ms": tail, "queue_mean_s": queue_s, "prefill_mean_s": prefill_s}


def tokens(output_per_s: float, prefill_per_s: float | None = None) -> dict[str, float | None]:
    return {"output_tokens_per_s": output_per_s, "prefill_tokens_per_s": prefill_per_s}


QUIET = {**queue(20, 0, most=30), "kv_usage": Gauge(0.1, 0.2), **gap(8, 15), **tokens(1000), **kept_up(5, 4)}
"""A load that the usual server carries with ease."""


def part(d: Diagnosis, name: str) -> str:
    """`health`, `spikes`, `q2` (verdict and confidence) or `line 1` of the checklist."""
    if name == "health":
        return d.health
    if name == "spikes":
        return {True: "prefill", False: "other", None: "unknown"}[d.spikes.is_prefill]
    if name.startswith("q"):
        answer = d.answers[int(name[1:]) - 1]
        return f"{answer.verdict} {answer.confidence}"
    return d.checklist.lines[int(name.removeprefix("line ")) - 1].verdict
