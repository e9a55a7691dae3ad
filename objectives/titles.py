"""How people read a metric: as a heading with load and unit, and in a few characters for a line a trial."""

from __future__ import annotations

_TITLES = {
    "saturation_output_tokens_per_s_per_gpu": "output tokens/s/GPU (saturation)",
    "steady_ttft_p99_ms": "P99 TTFT, ms (steady)",
    "steady_ttft_p95_ms": "P95 TTFT, ms (steady)",
    "steady_itl_p99_ms": "P99 ITL, ms (steady)",
    "steady_itl_p95_ms": "P95 ITL, ms (steady)",
    "steady_worst_ttft_ratio": "worst tenant's P99 TTFT / target (steady)",
    "steady_worst_ttft_p95_ratio": "worst tenant's P95 TTFT / target (steady)",
    "steady_worst_itl_ratio": "worst tenant's P99 ITL / target (steady)",
    "steady_worst_itl_p95_ratio": "worst tenant's P95 ITL / target (steady)",
    "steady_ttft_max_ms": "TTFT, max of n, ms (steady)",
    "steady_itl_max_ms": "ITL, max of n, ms (steady)",
    "steady_worst_ttft_max_ratio": "worst tenant's TTFT, max of n, / target (steady)",
    "steady_worst_itl_max_ratio": "worst tenant's ITL, max of n, / target (steady)",
}
_SHORT = {
    "saturation_output_tokens_per_s_per_gpu": "tok/s/GPU",
    "steady_ttft_p99_ms": "P99 TTFT ms",
    "steady_ttft_p95_ms": "P95 TTFT ms",
    "steady_itl_p99_ms": "P99 ITL ms",
    "steady_itl_p95_ms": "P95 ITL ms",
    "steady_worst_ttft_ratio": "P99 TTFT/target",
    "steady_worst_ttft_p95_ratio": "P95 TTFT/target",
    "steady_worst_itl_ratio": "P99 ITL/target",
    "steady_worst_itl_p95_ratio": "P95 ITL/target",
    "steady_ttft_max_ms": "TTFT max of n, ms",
    "steady_itl_max_ms": "ITL max of n, ms",
    "steady_worst_ttft_max_ratio": "TTFT max of n/target",
    "steady_worst_itl_max_ratio": "ITL max of n/target",
}


def title_of(metric: str) -> str:
    """The metric's heading, load and unit included; its name where none is known."""
    return _TITLES.get(metric, metric)


def short_of(metric: str) -> str:
    """The metric in a few characters, for a line a trial."""
    return _SHORT.get(metric, metric)
