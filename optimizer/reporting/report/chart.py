"""A chart of the report: plotly's data and layout as plain JSON, small, escaped and without secrets."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from markupsafe import Markup

from optimizer.deployment.secrets import mask
from optimizer.study.files import json_safe

INK, QUIET, BAD, LINE, FRONT = "#1f2933", "#8fb3d9", "#b8bec6", "#e1e5ea", "#c2410c"
FAILED = "#b91c1c"
COLOURS = ("#1d4ed8", "#c2410c", "#047857", "#7c3aed", "#a16207", "#0e7490", "#be185d", "#4b5563")
"""Apart for people who do not see red and green apart, and in grey print by their lightness."""
DIGITS = 5
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True)
class Chart:
    key: str
    """Its id in the page."""
    title: str
    figure: Mapping[str, Any]
    """`data` and `layout` as plotly.js takes them."""
    note: str = ""
    """What it shows and what not."""
    height_px: int = 320
    is_wide: bool = False

    @property
    def json(self) -> Markup:
        """For a script element: no tag, comment or entity can begin in it."""
        text = json.dumps(_small(json_safe(self.figure)), separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        for char, escaped in _UNSAFE.items():
            text = text.replace(char, escaped)
        return Markup(text)


def layout(**more: Any) -> dict[str, Any]:
    """White, thin lines, the legend above, room for a phone's thumb below."""
    return {
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "font": {"color": INK, "size": 12, "family": "system-ui, sans-serif"},
        "margin": {"l": 56, "r": 14, "t": 34, "b": 46},
        "legend": {"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom"},
        "hoverlabel": {"align": "left", "bgcolor": "white", "font": {"color": INK}},
        **more,
    }


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    return {
        "title": {"text": plain(title), "standoff": 8},
        "gridcolor": LINE,
        "linecolor": BAD,
        "zeroline": False,
        "automargin": True,
        **more,
    }


def log_ticks(low: float, high: float) -> dict[str, Any]:
    """Three to about six round numbers on an axis by ratio."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5), range(1, 10)):
        ticks = [t for p in powers for d in digits if low <= (t := d * 10.0**p) <= high]
        if len(ticks) >= 3:
            break
    return {"tickvals": ticks, "ticktext": [f"{t:,g}" for t in ticks]}


def plain(text: object) -> str:
    """Text that plotly's own markup cannot read a tag or an entity into."""
    return str(text).replace("&", "&amp;").replace("<", "&lt;")


def lines(texts: Sequence[str]) -> str:
    """Lines of a hover label."""
    return "<br>".join(map(plain, texts))


def thinned(n: int, most: int) -> list[int]:
    """At most so many positions of `n`, evenly spread, first and last among them."""
    if n <= most:
        return list(range(n))
    return sorted({int(i) for i in np.linspace(0, n - 1, most).round()})


@lru_cache(maxsize=20_000)
def _masked(line: str) -> str:
    """Lines of hover labels repeat by the thousand."""
    return mask(line)


def _small(value: Any) -> Any:
    """Floats to five digits, texts without secrets."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, str):
        return "<br>".join(map(_masked, value.split("<br>")))
    if isinstance(value, dict):
        return {k: _small(v) for k, v in value.items()}
    return [_small(v) for v in value] if isinstance(value, list) else value
