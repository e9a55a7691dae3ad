"""The text of `/metrics` as one reading: gauges and counters of a server, summed over its engines.

Unknown is None, never 0: a server without a metric (`--disable-log-stats` removes them all, older ones lack some) has
no reading of it. Names as vLLM 0.32 exports them (v1/metrics/loggers.py), and as older ones did.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

NOT_FINISHED = frozenset({"abort", "error"})
"""Values of `finished_reason` (v1/engine/__init__.py FinishReason) of requests that were not answered."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """One reading of one server. Totals count since the server's start and are sums over its engines."""

    time_s: float
    n_running: float | None = None
    n_waiting: float | None = None
    """For room and for other reasons together; preempted requests are among them."""
    kv_usage: float | None = None
    """Of the fullest engine, 0..1, as of its last step: an idle engine still shows its last step's."""
    n_preemptions_total: float | None = None
    """A preemption is counted with its victim's next output, so only a drained engine has counted them all."""
    generation_tokens_total: float | None = None
    prompt_tokens_total: float | None = None
    """Counted whole at a request's first token, cached ones included."""
    cached_prompt_tokens_total: float | None = None
    prefix_queries_total: float | None = None
    prefix_hits_total: float | None = None
    n_finished_total: float | None = None
    """Answered requests; aborted and failed ones are left out."""
    n_iterations_total: float | None = None
    """Engine steps that put out at least one token."""
    n_request_preemptions_total: float | None = None
    """Preemptions of finished requests, summed: equals `n_preemptions_total` on a drained engine without aborts."""
    ttft_sum_s: float | None = None
    ttft_count: float | None = None
    queue_sum_s: float | None = None
    queue_count: float | None = None
    prefill_sum_s: float | None = None
    prefill_count: float | None = None
    engines: Mapping[str, Scrape] = field(default_factory=dict)
    """`engine` label -> that engine's own reading; resets are seen there and not in the sums."""


def _histogram(name: str, part: str) -> tuple[str, ...]:
    return (f"vllm:{name}_{part}",)


def _counter(*names: str) -> tuple[str, ...]:
    return tuple(f"vllm:{name}{ending}" for name in names for ending in ("_total", ""))


SPELLINGS: dict[str, tuple[str, ...]] = {
    "n_running": ("vllm:num_requests_running",),
    "n_waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "n_preemptions_total": _counter("num_preemptions"),
    "generation_tokens_total": _counter("generation_tokens"),
    "prompt_tokens_total": _counter("prompt_tokens"),
    "cached_prompt_tokens_total": _counter("prompt_tokens_cached"),
    "prefix_queries_total": _counter("prefix_cache_queries", "gpu_prefix_cache_queries"),
    "prefix_hits_total": _counter("prefix_cache_hits", "gpu_prefix_cache_hits"),
    "n_finished_total": _counter("request_success"),
    "n_iterations_total": _histogram("iteration_tokens_total", "count"),
    "n_request_preemptions_total": _histogram("request_num_preemptions", "sum"),
    "ttft_sum_s": _histogram("time_to_first_token_seconds", "sum"),
    "ttft_count": _histogram("time_to_first_token_seconds", "count"),
    "queue_sum_s": _histogram("request_queue_time_seconds", "sum"),
    "queue_count": _histogram("request_queue_time_seconds", "count"),
    "prefill_sum_s": _histogram("request_prefill_time_seconds", "sum"),
    "prefill_count": _histogram("request_prefill_time_seconds", "count"),
}
"""Field -> the names it has had, newest first; the first one that a server exports is read."""
_NAMES = frozenset(name for names in SPELLINGS.values() for name in names)
_FIELDS = tuple(f.name for f in fields(Scrape) if f.name in SPELLINGS)


@dataclass(frozen=True, slots=True)
class _Line:
    name: str
    engine: str
    value: float


def parse_metrics(text: str, time_s: float) -> Scrape:
    """Raises ValueError, naming the line, for a text that is not in Prometheus' format."""
    lines = list(_lines(text))
    engines = {
        engine: Scrape(time_s, **_readings([line for line in lines if line.engine == engine]))
        for engine in dict.fromkeys(line.engine for line in lines)
    }
    return Scrape(time_s, engines=engines, **{name: _over_engines(name, engines.values()) for name in _FIELDS})


def _lines(text: str) -> Iterator[_Line]:
    """Only ours are parsed (of 600 lines 500 are histogram buckets), unless there is none: then all, to tell a server
    without these metrics from a page that is no metrics at all."""
    rows = [(i, row) for i, row in enumerate(text.splitlines(), 1) if row.strip() and not row.startswith("#")]
    ours = [(i, row) for i, row in rows if _name(row) in _NAMES]
    for number, row in ours or rows:
        name, labels, value = parse_line(number, row)
        if name in _NAMES and math.isfinite(value) and labels.get("finished_reason") not in NOT_FINISHED:
            yield _Line(name, labels.get("engine", ""), value)


def _name(row: str) -> str:
    return row.split("{", 1)[0].split(None, 1)[0] if not row.startswith("{") else ""


def parse_line(number: int, row: str) -> tuple[str, dict[str, str], float]:
    from prometheus_client.parser import text_string_to_metric_families

    try:
        sample = next(iter(text_string_to_metric_families(row + "\n"))).samples[0]
        return sample.name, sample.labels, float(sample.value)
    except (ValueError, StopIteration, IndexError):
        raise ValueError(f"line {number} of /metrics is not in Prometheus' format: {row[:120]!r}") from None


def _readings(lines: Sequence[_Line]) -> dict[str, Any]:
    """One engine's fields: every sample of the first spelling that is there, summed over its other labels."""
    found: dict[str, float | None] = {}
    for name, spellings in SPELLINGS.items():
        present = next((s for s in spellings if any(line.name == s for line in lines)), None)
        found[name] = None if present is None else sum(line.value for line in lines if line.name == present)
    return found


def _over_engines(name: str, engines: Iterable[Scrape]) -> float | None:
    """None if one engine lacks it: a sum over some engines is not the server's."""
    values = [getattr(engine, name) for engine in engines]
    known = [v for v in values if v is not None]
    if not known or len(known) < len(values):
        return None
    return max(known) if name == "kv_usage" else math.fsum(known)
