"""A number as people read it."""

from __future__ import annotations


def figure(value: float) -> str:
    """20,720 rather than 2.072e+04; four significant digits below a thousand."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
