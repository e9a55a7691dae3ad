"""A line for each figure and word that the report uses."""

from __future__ import annotations

from objectives.metric import METRICS, Metric
from optimizer.reporting.report.source import Source
from optimizer.reporting.report.words import base, capital, name_of

_WORDS = (
    ("TTFT", "time to the first token, counted from when the request was due to arrive, waiting included."),
    ("ITL", "inter-token latency, the time between two tokens of one answer."),
    ("P99", "99 of 100 are at most this slow. With few samples P95 or the slowest of n stands in, and is called so."),
    ("R", "the rate of the steady load, requests per second: what the reference can sustain, or as given."),
    ("Steady load", "the workload's own mix at the rate R; latencies come from it."),
    ("Saturation", "the same mix with a queue that never empties; throughput comes from it."),
    ("Stress load (peak)", "the longest prompts and the busiest seconds together: it only has to be survived."),
    ("Reference", "what everything is compared with: your current configuration, else vLLM's defaults."),
    ("Front", "the configurations that keep every limit and that no other one beats in all objectives at once."),
    ("Knee", "the member of the front that gives up least in every objective at once."),
    ("Confirmed", "measured again, on traffic that the search never saw where there is any: it kept every limit, and"
     " what it gains on the reference it gained there too. In part: no gain turned into a loss, but not every gain was"
     " seen again; the card says which."),
    ("Better without a price", "gains something on the reference and is worse in nothing, beyond the noise."),
    ("\N{ALMOST EQUAL TO}", "another member has the better figure, but inside the noise."),
    ("Inside the noise", "a difference that repeating the same configuration gives as well. The interval behind a"
     " change is the measured change times or divided by one plus that noise."),
    ("Preemption", "the KV cache was full: a running request was put out and computed again later."),
    ("KV cache", "the memory for the tokens of requests in flight."),
    ("Misses a limit", "was measured, but breaks a promise or a safety limit: never on the front."),
    ("Unsustained", "did not keep up with the rate R, so its waiting times would only measure how long was watched."),
)  # fmt: skip
_ALWAYS = ("steady_preemptions_per_request", "stress_preemptions_per_request", "stress_min_free_memory_bytes")


def glossary_of(source: Source) -> list[tuple[str, str]]:
    """Words first, then the metrics of objectives and limits by their recorded names."""
    used = [o.metric for o in source.terms.objectives]
    used += [name.split(" ")[0] for name in source.terms.constraint_names]
    metrics = dict.fromkeys(m for name in (*used, *_ALWAYS) if (m := base(name)) in METRICS)
    return [*_WORDS, *((capital(name_of(m)), _definition(METRICS[m])) for m in metrics)]


def _definition(metric: Metric) -> str:
    return f"{metric.name}: {metric.describe}; {metric.unit}, {metric.load} load."
