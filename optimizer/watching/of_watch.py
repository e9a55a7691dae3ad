"""What was seen of each engine of a server, as a Situation: gauges by the second, the rest from its own histograms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from objectives.measurement import EngineSample, PhaseMeasurement
from optimizer.engines.vllm.exposition import Scrape
from optimizer.engines.vllm.metrics import counters_between
from optimizer.engines.vllm.readings import Gains, Histogram
from optimizer.questions.of_phase import Server, situation_of
from optimizer.questions.situation import Lengths, Situation, Tail
from optimizer.watching.watch import Seen

ITL = ("inter_token_latency_seconds", "time_per_output_token_seconds")
"""The latter until vLLM 0.10."""
PROMPTS, OUTPUTS = "request_prompt_tokens", "request_generation_tokens"
LEAST_SPAN_S = 0.2
ANSWERED = ("stop", "length", "repetition")


def situations_of(seen: Seen) -> dict[str, Situation]:
    """By engine label: of each engine that was there all the time, the one with most to do first. A server without data
    parallelism has one; empty where it could not be read twice."""
    labels = [x for x in seen.scrapes[-1].engines if x in seen.scrapes[0].engines] if seen.scrapes else []
    if seen.span_s < LEAST_SPAN_S:
        return {}
    found = {label: _situation(seen, label, len(labels)) for label in labels}
    return dict(sorted(found.items(), key=lambda item: in_system(item[1]), reverse=True))


def _situation(seen: Seen, label: str, n_engines: int) -> Situation:
    server, gains = seen.server, seen.gains.of_engine(label)
    own = seen.scrapes_of(label)
    facts = Server(
        name=label,
        config=server.config,
        kv_tokens=server.kv_tokens.get(label, server.kv_tokens.get("")),
        model=server.model,
        gpu=server.gpu,
    )
    base = situation_of(_phase(seen, own, label), facts, f"{server.url}{f' engine {label}' if n_engines > 1 else ''}")
    span_s, finished = seen.span_s, finished_of(gains)
    ended = sum(gains.total("request_success", finished_reason=r) or 0.0 for r in (*ANSWERED, "abort", "error"))
    counters = counters_between(own)
    prompt, cached = counters.prompt_tokens, _cached(gains, counters.prompt_tokens)
    return replace(
        base,
        span_s=span_s,
        load=None,
        is_sustained=None,
        offered_per_s=max(ended + _change_in_system(own), 0.0) / span_s,
        finished_per_s=finished / span_s,
        n_requests=round(ended),
        n_finished=round(finished),
        n_failed=round(gains.total("request_success", finished_reason="error") or 0.0),
        prompts=_lengths(gains.histogram(PROMPTS)),
        outputs=_lengths(gains.histogram(OUTPUTS)),
        totals=_totals(gains.histogram(PROMPTS), gains.histogram(OUTPUTS)),
        cached_share=cached,
        e2e_mean_s=_mean(gains.histogram("e2e_request_latency_seconds")),
        output_tokens_per_s=None if counters.generation_tokens is None else counters.generation_tokens / span_s,
        prefill_tokens_per_s=None if prompt is None else prompt * (1.0 - (cached or 0.0)) / span_s,
        n_steps=counters.n_steps,
        n_preemptions=counters.n_preemptions,
        ttft_ms=_tail(gains.histogram("time_to_first_token_seconds")),
        itl_ms=_tail(gains.histogram(*ITL)),
        queue_mean_s=_mean(gains.histogram("request_queue_time_seconds")),
        prefill_mean_s=_mean(gains.histogram("request_prefill_time_seconds")),
        interference=None,
        cpu_wait=seen.cpu_wait,
        n_cores=server.n_cores,
    )


def finished_of(gains: Gains) -> float:
    """Requests that were answered; those that clients gave up and those that failed are left out."""
    return sum(gains.total("request_success", finished_reason=reason) or 0.0 for reason in ANSWERED)


def _phase(seen: Seen, own: Sequence[Scrape], label: str) -> PhaseMeasurement:
    """Gauges, processes and devices as a measured load has them, without requests: nobody here sent any."""
    return PhaseMeasurement(
        load="saturation",
        records=(),
        n_gpus=seen.server.n_gpus,
        offered_per_s=None,
        counted_from_s=0.0,
        counted_until_s=seen.span_s,
        end_s=seen.span_s,
        samples=tuple(_sample(s, label) for s in own),
        processes=tuple(replace(p, instance=label) for p in seen.log.processes),
        devices=seen.log.devices,
    )


def _sample(s: Scrape, label: str) -> EngineSample:
    """An idle engine's KV usage is that of its last step, and of nobody now."""
    is_idle = not s.n_running and not s.n_waiting
    return EngineSample(s.time_s, label, s.n_running, s.n_waiting, None if is_idle else s.kv_usage)


def in_system(s: Situation) -> float:
    """Requests that ran or waited, on average."""
    return (s.running.mean if s.running else 0.0) + (s.waiting.mean if s.waiting else 0.0)


def _change_in_system(own: Sequence[Scrape]) -> float:
    if not own:
        return 0.0
    first, last = own[0], own[-1]
    return ((last.n_running or 0) + (last.n_waiting or 0)) - ((first.n_running or 0) + (first.n_waiting or 0))


def _cached(gains: Gains, prompt: float | None) -> float | None:
    cached = gains.total("prompt_tokens_cached")
    if cached is not None and prompt:
        return min(cached / prompt, 1.0)
    hits, queries = gains.total("prefix_cache_hits"), gains.total("prefix_cache_queries")
    return min(hits / queries, 1.0) if hits is not None and queries else None


def _lengths(seen: Histogram | None) -> Lengths | None:
    """The longest is not known: a bucket's edge may lie far above it."""
    return None if seen is None or seen.mean is None else Lengths(seen.mean, seen.percentile(99))


def _totals(prompts: Histogram | None, outputs: Histogram | None) -> Lengths | None:
    """P99 as the larger of a P99 prompt with a mean answer and a mean prompt with a P99 answer: which prompt had which
    answer is in no histogram."""
    p, o = _lengths(prompts), _lengths(outputs)
    if p is None or o is None:
        return None
    return Lengths(p.mean + o.mean, max((p.p99 or p.mean) + o.mean, p.mean + (o.p99 or o.mean)))


def _mean(seen: Histogram | None) -> float | None:
    return None if seen is None else seen.mean


def _tail(seconds: Histogram | None) -> Tail | None:
    if seconds is None or not seconds.n:
        return None
    p50, p99, mean = seconds.percentile(50), seconds.percentile(99), seconds.mean
    ms = [None if x is None else 1e3 * x for x in (p50, p99, mean)]
    return Tail(ms[0], ms[1], ms[2], round(seconds.n), is_from_buckets=True)
