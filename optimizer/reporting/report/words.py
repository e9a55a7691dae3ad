"""How the report says figures: a metric's name without its unit, a value with it, a change with its interval."""

from __future__ import annotations

from objectives.comparison import Delta
from objectives.wording import base, limit_text, name_of, number, reading, unit_of, with_names

__all__ = [
    "base", "capital", "duration", "interval_of", "limit_text", "name_of", "number", "percent", "reading", "small",
    "span", "unit_of", "with_names",
]  # fmt: skip


def capital(text: str) -> str:
    """The first letter large; a name that begins small on purpose stays."""
    if text.startswith("vLLM"):
        return text
    return text[:1].upper() + text[1:]


def small(text: str) -> str:
    """The first letter small, as inside a sentence."""
    return text[:1].lower() + text[1:]


def percent(share: float, *, is_signed: bool = True) -> str:
    """`+4.5 %`; whole from a hundred on."""
    value = 100 * share
    digits = 0 if abs(value) >= 99.95 else 1
    sign = "+" if is_signed else ""
    return f"{value:{sign},.{digits}f} %".replace("-", "\N{MINUS SIGN}")


def span(low: float, high: float) -> str:
    """`−49.4 to −41.3 %`"""
    return f"{percent(low).removesuffix(' %')} to {percent(high)}"


def interval_of(delta: Delta) -> tuple[float, float] | None:
    """Where the true change lies, by the noise of repeating one window: it holds 0 exactly where `compare` says tie."""
    if delta.change is None:
        return None
    ratio, spread = 1 + delta.change, 1 + delta.floor
    return ratio / spread - 1, ratio * spread - 1


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:,.3g} h"
