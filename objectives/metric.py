"""Named figures of a measurement: one entry each in `_FIGURES`, named `<load>_<figure>`.

To add a metric, add one `_Figure`. A figure that cannot be read is None; NaN and infinity never leave this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from objectives import preemption, throughput
from objectives.measurement import LOADS, Load, Measurement
from objectives.samples import LoadSamples
from objectives.statistics import Sample, finite
from objectives.sustained import Sustainment
from objectives.tenancy import Targets, TargetsByTenant, worst_itl_ratio, worst_ttft_ratio

__all__ = [
    "METRICS",
    "Metric",
    "Targets",
    "TargetsByTenant",
    "compute_metrics",
    "compute_pooled_metrics",
    "tenant_metric",
    "tenant_metrics",
]

_OfLoad = Callable[[LoadSamples], float | None]
Function = Callable[[LoadSamples, "TargetsByTenant | None"], float | None]
Hint = Literal["maximize", "minimize"]
STEADY: tuple[Load, ...] = ("steady",)
SATURATION: tuple[Load, ...] = ("saturation",)
LATENCY_LOADS: tuple[Load, ...] = ("steady", "stress")


@dataclass(frozen=True, slots=True)
class Metric:
    """A named function of one load's samples."""

    name: str
    unit: str
    load: Load
    direction_hint: Hint | None
    """Which way is better; None where neither is (counts, descriptions)."""
    describe: str
    function: Function

    def of(self, samples: LoadSamples, targets: TargetsByTenant | None = None) -> float | None:
        return finite(self.function(samples, targets))


@dataclass(frozen=True, slots=True)
class _Figure:
    """A metric before its load is put in front of its name."""

    name: str
    unit: str
    hint: Hint | None
    describe: str
    function: Function
    loads: tuple[Load, ...] = LOADS


def _plain(function: _OfLoad) -> Function:
    return lambda samples, _: function(samples)


def _duration(name: str, unit: str, describe: str, loads: tuple[Load, ...], function: _OfLoad) -> _Figure:
    return _Figure(name, unit, "minimize" if unit == "ms" else None, describe, _plain(function), loads)


def _tail(kind: str, sample: Callable[[LoadSamples], Sample], what: str, loads: tuple[Load, ...]) -> Iterator[_Figure]:
    """Mean, percentiles and n of one kind of duration."""
    yield _duration(f"{kind}_mean_ms", "ms", f"mean {what}", loads, lambda s: sample(s).mean)
    for q in (50, 90, 95, 99):
        yield _duration(f"{kind}_p{q}_ms", "ms", f"P{q} {what}", loads, partial(_percentile, sample, q))
    yield _duration(
        f"{kind}_max_ms", "ms", f"max of n, for samples too few for a P95: {what}", loads, lambda s: sample(s).max
    )
    yield _duration(
        f"{kind}_n", "samples", f"number of samples, those that never came included: {what}", loads, partial(_n, sample)
    )


def _intervals(kind: str, sample: Callable[[LoadSamples], Sample], what: str) -> Iterator[_Figure]:
    """The 95 % intervals of the steady tails."""
    for q in (95, 99):
        for end in ("low", "high"):
            describe = f"{'lower' if end == 'low' else 'upper'} end of the 95 % interval of P{q} {what}"
            function = partial(_interval_end, sample, q, end)
            yield _Figure(f"{kind}_p{q}_{end}_ms", "ms", "minimize", describe, _plain(function), STEADY)


def _percentile(sample: Callable[[LoadSamples], Sample], percent: float, samples: LoadSamples) -> float | None:
    return sample(samples).percentile(percent)


def _interval_end(
    sample: Callable[[LoadSamples], Sample], percent: float, end: str, samples: LoadSamples
) -> float | None:
    interval = sample(samples).interval(percent)
    return interval.low if end == "low" else interval.high


def _n(sample: Callable[[LoadSamples], Sample], samples: LoadSamples) -> float:
    return float(sample(samples).n)


def _worst_of_runs(of: Callable[[Sustainment], float | None], is_high_worst: bool = True) -> Function:
    """A figure of `sustainment`: of several runs the worst; None if any run cannot be judged."""

    def function(samples: LoadSamples, _: TargetsByTenant | None) -> float | None:
        values = [None if s is None else of(s) for s in samples.sustainments]
        known = [v for v in values if v is not None]
        return (max if is_high_worst else min)(known) if known and len(known) == len(values) else None

    return function


def _worst_ratio(ratio: Callable[..., float | None], percent: float) -> Function:
    return lambda samples, targets: ratio(samples, targets, percent)


_TTFT = "time from scheduled arrival to first token"
_ITL = "gap between consecutive token-bearing messages of one request"
_STALL = "longest gap of a request, over requests"
_PER_GPU = "counted between window start and end by token arrival"
_FIGURES: tuple[_Figure, ...] = (
    *_tail("ttft", lambda s: s.ttft_ms, _TTFT, LATENCY_LOADS),
    *_intervals("ttft", lambda s: s.ttft_ms, _TTFT),
    *_tail("itl", lambda s: s.itl_ms, _ITL, LOADS),
    *_intervals("itl", lambda s: s.itl_ms, _ITL),
    *_tail("stall", lambda s: s.stall_ms, _STALL, LATENCY_LOADS),
    *_intervals("stall", lambda s: s.stall_ms, _STALL),
    *_tail("tpot", lambda s: s.tpot_ms, "time per output token after the first message, per request", LOADS),
    *_tail("itl_per_token", lambda s: s.itl_per_token_ms, "gap spread over the tokens of its message", STEADY),
    *_tail("e2e", lambda s: s.e2e_ms, "time from scheduled arrival to last token", LATENCY_LOADS),
    *_tail("ttft_from_send", lambda s: s.ttft_from_send_ms, "time from the actual send to first token", STEADY),
    *_tail("send_lag", lambda s: s.send_lag_ms, "lateness of the client's send", STEADY),
    *(
        _Figure(f"worst_{kind}_{part}ratio", "ratio", "minimize", describe, _worst_ratio(ratio, q), STEADY)
        for kind, ratio in (("ttft", worst_ttft_ratio), ("itl", worst_itl_ratio))
        for part, q, tail in (("", 99, "P99"), ("p95_", 95, "P95"), ("max_", 100, "the max of n"))
        for describe in [f"largest over tenants of {tail} {kind.upper()} / that tenant's target"]
    ),
    _Figure(
        "output_tokens_per_s_per_gpu", "tokens/s/GPU", "maximize", f"output tokens, {_PER_GPU}",
        _plain(throughput.output_tokens_per_s_per_gpu),
    ),
    _Figure(
        "offered_output_tokens_per_s_per_gpu", "tokens/s/GPU", None, "output tokens asked for / span of the arrivals",
        _plain(throughput.offered_output_tokens_per_s_per_gpu), STEADY,
    ),
    _Figure(
        "prompt_tokens_per_s_per_gpu", "tokens/s/GPU", "maximize",
        "prompt tokens (cached included) of requests whose first token arrived in the window",
        _plain(throughput.prompt_tokens_per_s_per_gpu),
    ),
    _Figure(
        "cached_prompt_tokens_per_s_per_gpu", "tokens/s/GPU", None, "the part of these that the prefix cache held",
        _plain(throughput.cached_prompt_tokens_per_s_per_gpu),
    ),
    _Figure(
        "cached_prompt_share", "share", None, "prompt tokens taken from the prefix cache, over answered requests",
        _plain(throughput.cached_prompt_share),
    ),
    _Figure(
        "prefix_hit_share", "share", None, "increases of vllm:prefix_cache_hits_total / prefix_cache_queries_total",
        _plain(preemption.prefix_hit_share),
    ),
    _Figure(
        "requests_per_s_per_gpu", "requests/s/GPU", "maximize", "requests whose last token arrived in the window",
        _plain(throughput.requests_per_s_per_gpu),
    ),
    _Figure(
        "running_set_full", "0 or 1", None,
        "1 if the queue outlasted the filling of the running set; at 0 the throughput is a lower bound",
        _plain(throughput.is_running_set_full), SATURATION,
    ),
    _Figure("output_share", "share", "maximize", "output tokens done / asked", _plain(throughput.output_share)),
    _Figure(
        "smallest_served_share", "share", "maximize",
        "smallest over tenants of output tokens done by the window's end / asked",
        _plain(throughput.smallest_served_share),
    ),
    _Figure("requests", "requests", None, "measured requests", _plain(lambda s: float(s.n_requests))),
    _Figure("finished_requests", "requests", None, "requests answered whole", _plain(lambda s: float(s.n_finished))),
    _Figure("failed_share", "share", "minimize", "not answered whole / requests", _plain(preemption.failed_share)),
    _Figure(
        "preemptions_per_request", "preemptions/request", "minimize",
        "increase of vllm:num_preemptions_total over all engines / finished requests; can exceed 1",
        _plain(preemption.preemptions_per_request),
    ),
    _Figure(
        "preempted_share", "share", "minimize", "requests preempted at least once", _plain(preemption.preempted_share)
    ),
    _Figure("recomputed_tokens", "tokens", "minimize", "tokens computed again", _plain(preemption.recomputed_tokens)),
    _Figure(
        "min_free_memory_bytes", "bytes", "maximize", "least free device memory seen",
        _plain(preemption.min_free_memory_bytes),
    ),
    _Figure(
        "running_mean", "requests", None, "mean running requests, summed over instances",
        _plain(lambda s: preemption.gauge_mean(s, lambda g: g.n_running)),
    ),
    _Figure(
        "waiting_mean", "requests", "minimize", "mean waiting requests, summed over instances",
        _plain(lambda s: preemption.gauge_mean(s, lambda g: g.n_waiting)),
    ),
    _Figure(
        "waiting_max", "requests", "minimize", "longest waiting queue of any instance",
        _plain(lambda s: preemption.gauge_max(s, lambda g: g.n_waiting)),
    ),
    _Figure(
        "kv_usage_mean", "share", None, "mean share of KV blocks in use, on the instance where it is highest",
        _plain(lambda s: preemption.gauge_worst_mean(s, lambda g: g.kv_usage)),
    ),
    _Figure(
        "kv_usage_max", "share", None, "highest share of KV blocks in use on any instance",
        _plain(lambda s: preemption.gauge_max(s, lambda g: g.kv_usage)),
    ),
    _Figure(
        "prefill_touched_gap_share", "share", None,
        "gaps in which another request's prefill ended; below 0.02 P99 ITL is blind to freezes",
        _plain(lambda s: s.prefill_touched_share),
    ),
    _Figure(
        "several_tokens_share", "share", None, "messages that carried other than one token",
        _plain(lambda s: s.several_tokens_share),
    ),
    _Figure(
        "offered_per_s", "requests/s", None, "arrivals / their span", _worst_of_runs(lambda s: s.offered_per_s), STEADY
    ),
    _Figure(
        "completed_per_s", "requests/s", "maximize", "requests finished per second, last two thirds of the arrivals",
        _worst_of_runs(lambda s: s.completed_per_s, is_high_worst=False), STEADY,
    ),
    _Figure(
        "completions_per_arrivals", "ratio", "maximize", "finished / could have finished without a queue, at most 1",
        _worst_of_runs(lambda s: s.completions_per_arrivals, is_high_worst=False), STEADY,
    ),
    _Figure(
        "waiting_slope_per_s", "requests/s", "minimize", "median slope of the waiting queue, last two thirds",
        _worst_of_runs(lambda s: s.waiting_slope_per_s), STEADY,
    ),
    _Figure(
        "unsustained", "graded", "minimize", "> 0: the engine did not keep up with R, and no latency of it is ranked",
        _worst_of_runs(lambda s: s.value), STEADY,
    ),
)  # fmt: skip


def _with_load(figure: _Figure, load: Load) -> Metric:
    return Metric(f"{load}_{figure.name}", figure.unit, load, figure.hint, figure.describe, figure.function)


METRICS: Mapping[str, Metric] = {
    metric.name: metric for figure in _FIGURES for load in figure.loads for metric in [_with_load(figure, load)]
}
"""Every metric by name. Names carry their load: figures of different loads are never blended."""


def compute_metrics(measurement: Measurement, targets: TargetsByTenant | None = None) -> dict[str, float | None]:
    """Every metric of one run, and with several tenants each one's own as `<tenant>:<metric>`."""
    return compute_pooled_metrics([measurement], targets)


def compute_pooled_metrics(
    measurements: Sequence[Measurement], targets: TargetsByTenant | None = None
) -> dict[str, float | None]:
    """The same over repeats of one configuration: raw samples are pooled, percentiles are never averaged."""
    loads = {load: samples for load in LOADS if (samples := load_samples(measurements, load)) is not None}
    found = _compute(loads, targets)
    tenants = dict.fromkeys(t for samples in loads.values() for t in samples.tenants)
    for tenant in tenants if len(tenants) > 1 else ():
        own = {load: samples.of_tenant(tenant) for load, samples in loads.items()}
        found.update({f"{tenant}:{name}": value for name, value in _compute(own, targets).items()})
    return found


def load_samples(measurements: Sequence[Measurement], load: Load) -> LoadSamples | None:
    """The runs of one load; None if none of them had it."""
    phases = tuple(m.phases[load] for m in measurements if load in m.phases)
    return LoadSamples(phases) if phases else None


def tenant_metrics(
    measurement: Measurement, tenant: str, targets: TargetsByTenant | None = None
) -> dict[str, float | None]:
    """Every metric of one tenant's requests alone."""
    loads = {load: s.of_tenant(tenant) for load in LOADS if (s := load_samples([measurement], load)) is not None}
    return _compute(loads, targets)


def tenant_metric(measurement: Measurement, tenant: str, name: str = "steady_ttft_p99_ms") -> float | None:
    """One metric of one tenant's requests alone; None if it cannot be read. Raises KeyError for an unknown metric."""
    metric = METRICS[name]
    samples = load_samples([measurement], metric.load)
    return None if samples is None else metric.of(samples.of_tenant(tenant))


def _compute(loads: Mapping[Load, LoadSamples], targets: TargetsByTenant | None) -> dict[str, float | None]:
    return {n: m.of(loads[m.load], targets) if m.load in loads else None for n, m in METRICS.items()}
