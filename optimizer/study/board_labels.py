"""Where the picks' names stand in a plot: on lines of their own, none over another, all inside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH_PX, HEIGHT_PX = 500.0, 320.0
"""About what optuna-dashboard leaves for the axes of a stored figure."""
Vector = tuple[float, float, float]
EYE: Vector = (1.5, -1.7, 0.85)
CENTRE: Vector = (0.0, 0.0, -0.12)
"""From where to where plotly's camera looks, in sides of the cube."""
FIELD_OF_VIEW = 45.0
"""Of plotly's camera, degrees."""
_CHAR_PX, _LINE_PX = 6.3, 16.0
_OFFSETS_PX = ((-45, -34), (45, -34), (-45, -60), (45, -60), (0, -86), (-45, 40), (45, 40), (0, -112))
"""Tried in order, from the point to the middle of the name; y points down, as in plotly."""
_STYLE = {"arrowhead": 0, "arrowwidth": 1, "font": {"size": 11}, "bgcolor": "rgba(255,255,255,0.6)"}

Box = tuple[float, float, float, float]


def place_names(
    names: Sequence[str],
    points: Sequence[Sequence[float]],
    ranges: Sequence[Mapping[str, Any]],
    axes: Mapping[str, int],
) -> list[dict[str, Any]]:
    """Plotly annotations of named points. `axes`: plotly's axis -> position in a point's values.

    On an axis by ratio plotly wants the place of an annotation as a logarithm."""
    taken: list[Box] = []
    found = []
    for name, values in zip(names, points, strict=True):
        place = {axis: _on_axis(values[i], ranges[i]) for axis, i in axes.items()}
        shares = [_share(place[axis], ranges[i]) for axis, i in axes.items()]
        x, y = shares if len(axes) == 2 else _seen(shares)
        dx, dy = _free_offset(name, x * WIDTH_PX, (1 - y) * HEIGHT_PX, taken)
        found.append({**place, **_STYLE, "text": name, "ax": dx, "ay": dy})
    return found


def _seen(shares: Sequence[float]) -> tuple[float, float]:
    """Where a point of the unit cube stands in the plot from `EYE`, as shares of its width and height."""
    forward = [c - e for c, e in zip(CENTRE, EYE, strict=True)]
    right = _unit((forward[1], -forward[0], 0.0))
    up = _unit(_cross(right, forward))
    ray = [share - 0.5 - e for share, e in zip(shares, EYE, strict=True)]
    depth = _dot(ray, _unit(forward)) * 2 * math.tan(math.radians(FIELD_OF_VIEW / 2))
    return 0.5 + _dot(ray, right) / depth * HEIGHT_PX / WIDTH_PX, 0.5 + _dot(ray, up) / depth


def _cross(a: Sequence[float], b: Sequence[float]) -> Vector:
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _unit(a: Sequence[float]) -> Vector:
    length = math.sqrt(_dot(a, a))
    return a[0] / length, a[1] / length, a[2] / length


def _free_offset(name: str, x: float, y: float, taken: list[Box]) -> tuple[int, int]:
    """The first offset whose name lies inside and over no other name; the first of all if there is none."""
    half = _CHAR_PX * len(name) / 2
    boxes = [(x + dx - half, y + dy - _LINE_PX / 2, x + dx + half, y + dy + _LINE_PX / 2) for dx, dy in _OFFSETS_PX]
    able = [i for i, box in enumerate(boxes) if _is_inside(box) and not any(_overlap(box, other) for other in taken)]
    chosen = able[0] if able else 0
    taken.append(boxes[chosen])
    return _OFFSETS_PX[chosen]


def _is_inside(box: Box) -> bool:
    return box[0] >= 0 and box[1] >= 0 and box[2] <= WIDTH_PX + 20 and box[3] <= HEIGHT_PX


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _on_axis(value: float, scale: Mapping[str, Any]) -> float:
    return math.log10(value) if scale.get("type") == "log" else value


def _share(place: float, scale: Mapping[str, Any]) -> float:
    low, high = scale["range"]
    return float((place - low) / (high - low))
