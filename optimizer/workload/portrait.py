"""A reading and its character as people or programs read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optimizer.workload.character import Character, Spread
from optimizer.workload.reading import Reading
from optimizer.workload.units import duration_text

_LABEL_WIDTH = 24


def as_json(
    reading: Reading, character: Character, advice: Sequence[str], extra: Sequence[str], content_hash: str
) -> dict[str, Any]:
    """Unknown figures are null."""
    return {
        "trace": reading.path,
        "reader": reading.reader,
        "time_unit": reading.time_unit,
        "time_unit_reason": reading.time_unit_reason,
        "n_rows": reading.n_rows,
        "n_rejected": reading.n_rejected,
        "rejected_counts": dict(reading.rejected_counts),
        "rejected": [{"line": r.line, "reason": r.reason, "excerpt": r.excerpt} for r in reading.rejected],
        "notices": [*reading.notices, *extra],
        "content_hash": content_hash,
        "character": character.to_json(),
        "advice": list(advice),
    }


def as_text(reading: Reading, character: Character, advice: Sequence[str], extra: Sequence[str]) -> str:
    notices = [f"  {line}" for line in (*reading.notices, *_first_rejections(reading), *extra)]
    parts = [
        f"{reading.path} ({reading.reader}): {character.n_requests:,} requests",
        *notices,
        "",
        *_lengths(character),
        "",
        *_arrivals(character),
        *_demand(character),
        *_reuse(character),
        "",
        "What it means for tuning",
        *[f"  - {line}" for line in advice],
    ]
    return "\n".join(parts)


def _first_rejections(reading: Reading, n: int = 5) -> list[str]:
    shown = [f"  line {r.line}: {r.reason}: {r.excerpt}" for r in reading.rejected[:n]]
    left = reading.n_rejected - len(shown)
    return [*shown, f"  and {left:,} more"] if left > 0 else shown


def _lengths(c: Character) -> list[str]:
    head = f"{'Tokens':<{_LABEL_WIDTH}}" + "".join(f"{name:>10}" for name in ("mean", "P50", "P90", "P99", "max"))
    rows = (("prompt", c.prompt_tokens), ("output", c.output_tokens), ("prompt + output", c.total_tokens))
    return [head, *(_spread_row(name, spread) for name, spread in rows)]


def _spread_row(name: str, s: Spread) -> str:
    return f"  {name:<{_LABEL_WIDTH - 2}}" + "".join(f"{v:>10,.0f}" for v in (s.mean, s.p50, s.p90, s.p99, s.max))


def _row(name: str, text: str) -> str:
    return f"  {name:<{_LABEL_WIDTH}}{text}"


def _number(value: float | None, form: str = ",.3g", unit: str = "") -> str:
    return "undefined" if value is None else f"{value:{form}}{unit}"


def _arrivals(c: Character) -> list[str]:
    peaks = ", ".join(f"{k}: {_number(v, '.1f', ' x')}" for k, v in c.peak_over_mean.items())
    binned = ", ".join(f"{k}: {_number(v, '.1f', ' x')}" for k, v in c.binned_peak_over_mean.items())
    minutes = f"{_number(c.gap_cv_60s_median, '.2f')} (P90 {_number(c.gap_cv_60s_p90, '.2f')})"
    rows = [
        "Arrivals",
        _row("rate", f"{_number(c.rate_per_s, ',.4g')} req/s over {duration_text(c.span_s)}"),
        _row("CV of gaps", f"{_number(c.gap_cv, '.2f')} (1 is Poisson); in 60 s windows {minutes}"),
        _row("busiest / mean", f"{peaks} (on a fixed grid {binned})"),
        _row("longest silence", "undefined" if c.longest_silence_s is None else duration_text(c.longest_silence_s)),
    ]
    if c.batch_spacing_s is not None:
        spread = f"every {c.batch_spacing_s:.3g} s; spread over it, the CV of gaps is {_number(c.gap_cv_spread, '.2f')}"
        rows.append(_row("recorded in batches", spread))
    if len(c.tenants) > 1:
        rows.append(_row("tenants", ", ".join(f"{name} {n:,}" for name, n in c.tenants.items())))
    if c.n_sessions is not None:
        rows.append(_row("sessions", f"{c.n_sessions:,}"))
    return rows


def _demand(c: Character) -> list[str]:
    prompt, output = _number(c.prompt_tokens_per_s, ",.0f"), _number(c.output_tokens_per_s, ",.0f")
    rows = ["Demand", _row("tokens/s", f"prompt {prompt}, output {output}")]
    k = c.concurrency
    if k is None:
        return [*rows, _row("concurrency", "undefined without a rate")]
    assumed = f"prefill {k.assumed_prompt_tokens_per_s:,.0f} tokens/s, {k.assumed_itl_ms:g} ms a token"
    peak = "" if k.at_peak is None else f", {k.at_peak:,.1f} at the busiest 10 s"
    return [
        *rows,
        _row("concurrency", f"{k.mean:,.1f} in service on average{peak}"),
        _row("KV in use", f"{k.kv_tokens_mean:,.0f} tokens on average"),
        _row("", f"(Little's law, assuming {assumed}: --itl-ms, --prefill-tokens-per-s)"),
    ]


def _reuse(c: Character) -> list[str]:
    r = c.prefix_reuse
    if r is None:
        return ["Prefix reuse", _row("", "unknown: the trace has no prefix block ids")]
    sizes = ", ".join(f"{name} tokens {share:.1%}" for name, share in r.by_cache.items())
    used = "" if r.n_rows_used == c.n_requests else f" (first {r.n_rows_used:,} rows)"
    return [
        f"Prefix reuse{used}",
        _row("share of prompt tokens", f"endless cache {r.endless:.1%}; LRU {sizes}"),
        _row(
            "structure", f"{r.n_families:,} families, blocks of {r.block_tokens}, median request {r.median_request:.0%}"
        ),
    ]
