"""How metrics, values and limits are said to people: names without units, values with them, no scientific notation."""

from __future__ import annotations

import re

from objectives.metric import METRICS
from objectives.titles import title_of

GIB = 1 << 30
_NAMES = {"saturation_output_tokens_per_s_per_gpu": "throughput (saturation)"}
_KINDS = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "stall": "longest gap", "e2e": "time to whole answer"}
_BARE = ("ratio", "graded", "0 or 1", "preemptions/request")
"""Units that the metric's name says."""
_TAIL = re.compile(r"(steady|saturation|stress)_(\w+?)_(p\d+|mean|max)_ms")
_LOAD = re.compile(r"(steady|saturation|stress)_(.+)")
_WORDS = {
    "min_free_memory_bytes": "least free memory",
    "failed_share": "failed requests",
    "preemptions_per_request": "preemptions per request",
    "smallest_served_share": "smallest served share",
}
_RULES = {"unsustained": "keeps up with the rate R", "boot": "starts and stays up"}


def base(metric: str) -> str:
    """`chat:steady_ttft_p99_ms` -> `steady_ttft_p99_ms`."""
    return metric.rpartition(":")[2]


def name_of(metric: str) -> str:
    """For people, unit left out, the tenant in front where it is one's own: `P99 TTFT (steady)`."""
    tenant, _, own = metric.rpartition(":")
    title = title_of(own)
    name = _NAMES.get(own) or (re.sub(r", ms(?= \(|$)", "", title) if title != own else _built(own))
    return f"{tenant}: {name}" if tenant else name


def _built(own: str) -> str:
    """From the parts of a name that has no title of its own."""
    if tail := _TAIL.fullmatch(own):
        load, kind, percentile = tail.groups()
        return f"{percentile.upper() if percentile[0] == 'p' else percentile} {_KINDS.get(kind, kind)} ({load})"
    if named := _LOAD.fullmatch(own):
        load, rest = named.groups()
        return f"{_WORDS.get(rest, rest.replace('_', ' '))} ({load})"
    return own.replace("_", " ")


def unit_of(metric: str) -> str:
    found = METRICS.get(base(metric))
    return found.unit if found is not None else ""


def reading(metric: str, value: float | None) -> str:
    """A value with its unit: `844 ms`, `1,601 tokens/s/GPU`, `1.6 GiB`, `2.1 %`, `1.01 x target`."""
    if value is None:
        return "not measured"
    unit = unit_of(metric)
    if unit == "bytes":
        return f"{value / GIB:.3g} GiB"
    if unit == "share":
        return f"{100 * value:.3g} %"
    if unit == "ratio" and "worst" in metric:
        return f"{value:.3g} \N{MULTIPLICATION SIGN} target"
    if unit == "ms" and value >= 10_000:
        return f"{value / 1e3:.3g} s"
    return number(value) if unit in _BARE else f"{number(value)} {unit}".rstrip()


def number(value: float) -> str:
    """Three significant digits; whole from a thousand on."""
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def limit_text(limit: str) -> str:
    """`steady_ttft_p99_ms <= 2533.8` for people; a rule's name in words."""
    if limit in _RULES:
        return _RULES[limit]
    metric, sign, bound = (*limit.split(" "), "", "")[:3]
    try:
        value = reading(metric, float(bound))
    except ValueError:
        return limit
    name = name_of(metric).replace(" / target", "")  # which the bound says
    return f"{name} {'at most' if sign == '<=' else 'at least'} {value}"


def with_names(text: str) -> str:
    """Limits and metrics' own names in a sentence replaced by how people say them."""
    found = sorted((m for m in METRICS if m in text), key=len, reverse=True)
    for metric in found:
        own = rf"(?<![\w]){re.escape(metric)}"
        text = re.sub(rf"{own} [<>]= [-+.\de]*\d", lambda m: limit_text(m[0]), text)
        text = re.sub(rf"{own}(?!\w)", name_of(metric), text)
    return text
