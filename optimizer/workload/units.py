"""The unit of a trace's numeric timestamps. A wrong guess changes the load a thousandfold, so doubt is an error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.errors import UserError
from optimizer.workload.reading import UNIT_SECONDS, TimeUnit

LOW_RATE_PER_S, HIGH_RATE_PER_S = 0.02, 300.0
"""Mean rates at which a log is read as ms or us without asking. Only used where nothing else tells the unit."""
IMPOSSIBLE_RATE_PER_S = 2000.0
"""Whole numbers are read as s only when as ms they would exceed this: whole services log above 1,000 requests/s
(ServeGen's m-small: 1,174)."""
MIN_ROWS_MS, MIN_ROWS_US = 20, 200
"""With fewer rows a mean rate is no evidence for a unit finer than seconds."""
MIN_SPAN_S = 1.0
"""No log of a workload is shorter."""

_EPOCH_SECONDS = (1e9, 4.1e9)
"""2001 to 2099 in seconds since 1970."""


@dataclass(frozen=True)
class DetectedUnit:
    unit: TimeUnit
    reason: str


def detect_unit(
    times: NDArray[np.float64],
    *,
    where: str,
    asked: TimeUnit | None = None,
    named: TimeUnit | None = None,
    by_format: tuple[TimeUnit, str] | None = None,
) -> DetectedUnit:
    """The unit of numeric `times`. `named`: what the column's name says. `by_format`: what the format's publisher
    says, with the words for it; believed only while it gives a rate that a server can see.

    Raises UserError with the span and rate of each reading when two readings are possible."""
    if asked:
        return DetectedUnit(asked, "as given by --time-unit")
    if named:
        return DetectedUnit(named, "from the column's name")
    low, high = float(times.min()), float(times.max())
    for unit, scale in UNIT_SECONDS.items():
        if _EPOCH_SECONDS[0] <= low * scale and high * scale <= _EPOCH_SECONDS[1]:
            return DetectedUnit(unit, f"the values are epoch {unit} (they lie between 2001 and 2099)")
    if high == low:
        return DetectedUnit("s", "all timestamps are equal, so the unit does not matter")
    return _by_format(times, by_format) or _by_rate(times) or _refuse(times, where)


def mean_rate_per_s(times: NDArray[np.float64], unit: TimeUnit) -> float:
    return float((times.size - 1) / ((times.max() - times.min()) * UNIT_SECONDS[unit]))


def _by_format(times: NDArray[np.float64], by_format: tuple[TimeUnit, str] | None) -> DetectedUnit | None:
    if not by_format or np.any(times != np.floor(times)):
        return None
    unit, reason = by_format
    return DetectedUnit(unit, reason) if mean_rate_per_s(times, unit) <= HIGH_RATE_PER_S else None


def _by_rate(times: NDArray[np.float64]) -> DetectedUnit | None:
    """The one unit whose mean rate is plausible; None when none or several are."""
    rates = {u: mean_rate_per_s(times, u) for u in ("s", "ms", "us")}
    has_fractions = bool(np.any(times != np.floor(times)))
    is_too_short_ms = (times.max() - times.min()) * UNIT_SECONDS["ms"] < MIN_SPAN_S
    if rates["s"] >= LOW_RATE_PER_S and (has_fractions or is_too_short_ms or rates["ms"] > IMPOSSIBLE_RATE_PER_S):
        why = "the values have decimals" if has_fractions else f"as ms it would be {rates['ms']:,.0f} req/s"
        return DetectedUnit("s", f"{why}; as s it is {rates['s']:.3g} req/s")
    fitting = [u for u in ("s", "ms", "us") if LOW_RATE_PER_S <= rates[u] <= HIGH_RATE_PER_S]
    if len(fitting) != 1 or fitting == ["s"] or times.size < (MIN_ROWS_MS if fitting[0] == "ms" else MIN_ROWS_US):
        return None
    unit: TimeUnit = "ms" if fitting[0] == "ms" else "us"
    return DetectedUnit(unit, f"only as {unit} is the mean rate plausible ({rates[unit]:.3g} req/s)")


def _refuse(times: NDArray[np.float64], where: str) -> DetectedUnit:
    span = float(times.max() - times.min())
    readings = "; ".join(
        f"as {u}: span {duration_text(span * UNIT_SECONDS[u])}, {mean_rate_per_s(times, u):.3g} req/s"
        for u in ("s", "ms", "us")
    )
    raise UserError(
        f"{where}: the unit of the timestamps is ambiguous ({readings}); say which with --time-unit s|ms|us"
    )


def duration_text(seconds: float) -> str:
    """A span as people say it: `0.5 s`, `59 min`, `41 d`."""
    for size, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds:.3g} s"
