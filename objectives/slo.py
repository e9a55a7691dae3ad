"""A user's promise as a limit: `ttft_p99_ms<=500`, `chat:ttft_p99_ms<=500`, `output_tokens_per_s_per_gpu>=1000`."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection

from objectives.measurement import LOADS
from objectives.metric import METRICS
from objectives.objective import Limit

_FORM = re.compile(
    r"^\s*(?:(?P<tenant>[^:<>=]+?)\s*:)?\s*(?P<metric>[^:<>=\s]+)\s*(?P<sign><=|>=|≤|≥)\s*(?P<bound>.*?)\s*$"
)


def parse_slo(text: str, tenants: Collection[str] | None = None) -> Limit:
    """A limit from `[tenant:]metric<=number` or `>=number`; a metric without a load means the steady load.

    `tenants`: the workload's tenants, to check the qualifier against; None accepts any. Raises ValueError with one
    line that names the text, the offending part and what to write instead."""
    match = _FORM.match(text)
    if match is None:
        raise ValueError(f"SLO {text!r}: write metric<=number or metric>=number, e.g. ttft_p99_ms<=500")
    name = _metric(text, match["metric"])
    is_upper = match["sign"] in ("<=", "≤")
    bound = _bound(text, match["bound"])
    _check_direction(text, name, is_upper)
    tenant = match["tenant"]
    if tenant is not None and tenants is not None and tenant not in tenants:
        raise ValueError(f"SLO {text!r}: no tenant {tenant!r}; this workload has {', '.join(sorted(tenants))}")
    key = f"{tenant}:{name}" if tenant is not None else name
    why = "promised by the user"
    return Limit(key, at_most=bound, why=why) if is_upper else Limit(key, at_least=bound, why=why)


def _metric(text: str, given: str) -> str:
    """The full metric name: as given, else with `steady_`, else the only load that has it."""
    candidates = [given, f"steady_{given}", *(f"{load}_{given}" for load in LOADS)]
    for name in candidates:
        if name in METRICS:
            return name
    known = {n.split("_", 1)[1]: n for n in METRICS}
    close = difflib.get_close_matches(given, [*known, *METRICS], n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(close)}?" if close else "docs/metrics.md lists them, e.g. ttft_p99_ms"
    raise ValueError(f"SLO {text!r}: no metric {given!r}; {hint}")


def _bound(text: str, given: str) -> float:
    try:
        bound = float(given)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise ValueError(f"SLO {text!r}: {given!r} is not a number; the unit is in the metric's name, write e.g. 500")
    if bound < 0:
        raise ValueError(f"SLO {text!r}: a promise below 0 cannot be kept or broken, got {bound:g}")
    return bound


def _check_direction(text: str, name: str, is_upper: bool) -> None:
    hint = METRICS[name].direction_hint
    if hint is not None and is_upper != (hint == "minimize"):
        better, sign = ("lower", "<=") if hint == "minimize" else ("higher", ">=")
        raise ValueError(f"SLO {text!r}: for {name} {better} is better, write {sign}")
