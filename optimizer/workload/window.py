"""Frozen windows of a trace, chosen by offered load and not by the clock; peaks; what a measurement needs at least.

In a bursty trace a two-minute window holds anything from nothing to many times the mean (Azure code 2023: 0 to 931
requests), so a window that is picked by time measures its own luck.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from optimizer.errors import UserError
from optimizer.workload.trace import Trace

OUTPUT_WEIGHT = 4.0
"""An output token counts as this many prompt tokens of offered load: public API prices put it at 3 to 5."""
MIN_REQUESTS = 200
"""Below this a tail percentile is one or two requests."""
_MAX_MIXED_TENANTS = 50


@dataclass(frozen=True)
class Window:
    """Contiguous rows of a trace, rebased to 0. The first `n_warmup` rows only warm the engine up."""

    trace: Trace
    n_warmup: int
    first_row: int
    """Row of the source trace it starts at."""
    load_per_s: float | None
    """Weighted tokens per second offered in it; None without a span."""
    whole_load_per_s: float | None
    """The same of the trace it was chosen from."""

    @property
    def content_hash(self) -> str:
        return self.trace.content_hash

    @property
    def stop_row(self) -> int:
        return self.first_row + len(self.trace)

    @property
    def text(self) -> str:
        ratio = self.load_per_s / self.whole_load_per_s if self.load_per_s and self.whole_load_per_s else None
        share = f", {ratio:.2f} x the trace's mean load" if ratio else ""
        rows = f"rows {self.first_row:,}..{self.stop_row - 1:,} ({self.n_warmup} to warm up)"
        return f"{rows}{share}, hash {self.content_hash}"


def weighted_tokens(trace: Trace) -> NDArray[np.float64]:
    """(n,) offered load of each request in prompt-token equivalents."""
    return trace.prompt_tokens + OUTPUT_WEIGHT * trace.output_tokens


def offered_load_per_s(trace: Trace) -> float | None:
    rate = trace.rate_per_s
    return None if rate is None else rate * float(weighted_tokens(trace).mean())


def window_loads(trace: Trace, n_rows: int) -> NDArray[np.float64]:
    """Offered load of every run of `n_rows` rows, by its first row; infinite for a run without a span."""
    total = np.concatenate([[0.0], np.cumsum(weighted_tokens(trace))])
    work = total[n_rows:] - total[:-n_rows]
    last = trace.arrival_s[n_rows - 1 :]
    span = (last - trace.arrival_s[: last.size]) * n_rows / max(n_rows - 1, 1)
    with np.errstate(divide="ignore"):
        return np.where(span > 0, work / np.where(span > 0, span, 1.0), np.inf)


def choose_window(
    trace: Trace,
    n_requests: int | None = 1000,
    *,
    span_s: float | None = None,
    n_warmup: int = 200,
    quantile: float | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> Window:
    """The run of `n_warmup + n_requests` rows (or of `span_s` seconds) whose offered load is nearest to the trace's
    mean, or to `quantile` of all such runs' loads by time. The earliest wins a tie. `allowed`: admissible first rows.

    A trace that is too short is taken whole. Raises UserError for an empty trace."""
    if not len(trace):
        raise UserError("the workload has no request to choose a window from")
    if span_s is not None:
        return _choose_by_span(trace, span_s, n_warmup, quantile)
    n_rows = min(len(trace), n_warmup + (n_requests or len(trace)))
    loads = window_loads(trace, n_rows)
    first = nearest_start(trace, n_rows, _target(trace, loads, quantile), allowed)
    return _window(trace, first, first + n_rows, min(n_warmup, n_rows - 1))


def _choose_by_span(trace: Trace, span_s: float, n_warmup: int, quantile: float | None) -> Window:
    if span_s <= 0:
        raise UserError(f"window of {span_s:g} s: expected a span above 0")
    total = np.concatenate([[0.0], np.cumsum(weighted_tokens(trace))])
    stop = np.searchsorted(trace.arrival_s, trace.arrival_s + span_s, "left")
    fits = trace.arrival_s + span_s <= trace.arrival_s[-1]
    loads = (total[stop] - total[:-1]) / span_s
    loads = loads[fits] if fits.any() else loads[:1]
    first = _nearest(loads, _target(trace, loads, quantile))
    start = max(0, first - n_warmup)
    return _window(trace, start, int(stop[first]), first - start)


def _target(trace: Trace, loads: NDArray[np.float64], quantile: float | None) -> float:
    if quantile is None:
        return offered_load_per_s(trace) or 0.0
    if not 0 <= quantile <= 1:
        raise UserError(f"window quantile {quantile:g}: expected a number from 0 to 1")
    weight = np.append(np.diff(trace.arrival_s[: loads.size]), 0.0)
    order = np.argsort(loads, kind="stable")
    reached = np.cumsum(weight[order])
    at = np.searchsorted(reached, quantile * reached[-1]) if reached[-1] > 0 else int(quantile * (loads.size - 1))
    return float(loads[order[min(int(at), loads.size - 1)]])


def nearest_start(
    trace: Trace,
    n_rows: int,
    target_per_s: float,
    allowed: NDArray[np.bool_] | None = None,
    *,
    rate_per_s: float | None = None,
    is_unwanted: NDArray[np.bool_] | None = None,
) -> int:
    """First row of the run of `n_rows` with the load nearest to the target and tenants mixed as in the whole.

    `rate_per_s`: a request rate to come near, too. `is_unwanted`: rows to avoid (10 % of them weigh as much as a load
    that is 10 % off)."""
    penalty = _mix_misses(trace, n_rows)
    if rate_per_s is not None and n_rows > 1:
        span = np.maximum(trace.arrival_s[n_rows - 1 :] - trace.arrival_s[: len(trace) - n_rows + 1], 1e-9)
        penalty = penalty + np.abs(np.log((n_rows - 1) / span / rate_per_s))
    if is_unwanted is not None:
        total = np.concatenate([[0], np.cumsum(is_unwanted)])
        penalty = penalty + (total[n_rows:] - total[:-n_rows]) / n_rows
    return _nearest(window_loads(trace, n_rows), target_per_s, allowed, penalty)


def _mix_misses(trace: Trace, n_rows: int) -> NDArray[np.float64]:
    """How far each run's tenant counts are from their shares of the whole trace: sum of |log ratio|."""
    counts = np.bincount(trace.tenant, minlength=len(trace.tenants))
    miss = np.zeros(len(trace) - n_rows + 1)
    present = np.flatnonzero(counts)
    if not 1 < present.size <= _MAX_MIXED_TENANTS:
        return miss
    for tenant in present:
        total = np.concatenate([[0], np.cumsum(trace.tenant == tenant)])
        share = n_rows * counts[tenant] / len(trace)
        miss += np.abs(np.log((total[n_rows:] - total[:-n_rows] + 1) / (share + 1)))
    return miss


def _nearest(
    loads: NDArray[np.float64],
    target: float,
    allowed: NDArray[np.bool_] | None = None,
    penalty: NDArray[np.float64] | None = None,
) -> int:
    """By ratio, so that half and twice the load are equally far. The earliest wins a tie."""
    with np.errstate(divide="ignore", invalid="ignore"):
        miss = np.abs(np.log(loads) - np.log(target)) if target > 0 else np.zeros(loads.size)
    miss = np.where(np.isfinite(miss), miss, 1e300)
    if penalty is not None:
        miss = miss + penalty
    if allowed is not None:
        miss = np.where(allowed[: miss.size], miss, np.inf)
    return int(np.argmin(miss))


def _window(trace: Trace, start: int, stop: int, n_warmup: int) -> Window:
    rows = trace.take(slice(start, stop))
    rows = rows.shifted(-float(rows.arrival_s[0]))
    return Window(rows, n_warmup, start, offered_load_per_s(rows), offered_load_per_s(trace))


def choose_windows(trace: Trace, n_requests: int = 1000, *, n_warmup: int = 200) -> tuple[Window, Window | None]:
    """(the window to search on, a held-out window that shares no row with it). The held-out one is smaller, or None,
    when the trace has too few rows; it is never made of rows that the search saw."""
    n, need = len(trace), n_warmup + n_requests
    n_held = min(need, n - min(need, -(-3 * n // 5)))
    if n_held < MIN_REQUESTS:
        return choose_window(trace, n_requests, n_warmup=n_warmup), None
    n_search = min(need, n - n_held)
    first = np.arange(n - n_search + 1)
    allowed = (first >= n_held) | (first + n_search + n_held <= n)
    search = choose_window(trace, max(1, n_search - n_warmup), n_warmup=min(n_warmup, n_search - 1), allowed=allowed)
    start = np.arange(n - n_held + 1)
    is_apart = (start + n_held <= search.first_row) | (start >= search.stop_row)
    warm = min(n_warmup, n_held // 5)
    return search, choose_window(trace, n_held - warm, n_warmup=warm, allowed=is_apart)


def check_enough(
    n_requests: int, *, minimum: int = MIN_REQUESTS, is_repeat_allowed: bool = False, name: str = ""
) -> None:
    """Raises UserError when a study on so few requests would compare noise, unless their repetition is asked for."""
    if n_requests < minimum and not is_repeat_allowed:
        raise UserError(
            f"{name or 'the workload'}: {n_requests} usable requests, and a tail percentile needs at least {minimum} "
            f"(the P99 of {n_requests} is close to the largest); give a longer trace, or allow repeating it with jitter"
        )


def check_has_gaps(trace: Trace, name: str = "") -> None:
    """Raises UserError when every answer is one token long: there is no inter-token latency to optimise."""
    if len(trace) and int(trace.output_tokens.max()) <= 1:
        raise UserError(
            f"{name or 'the workload'}: every output is 1 token, so no inter-token latency exists; "
            "choose objectives without ITL or a trace with longer answers"
        )


def busiest(trace: Trace, seconds: float) -> tuple[float, int]:
    """(start, requests) of the fullest `seconds` that begin at an arrival; the earliest wins a tie."""
    if not len(trace):
        return 0.0, 0
    counts = np.searchsorted(trace.arrival_s, trace.arrival_s + seconds, "left") - np.arange(len(trace))
    fullest = int(np.argmax(counts))
    return float(trace.arrival_s[fullest]), int(counts[fullest])


def peak_over_mean(trace: Trace, seconds: float = 10.0) -> float | None:
    """Requests in the busiest `seconds` over their mean number; None for a span shorter than that."""
    if trace.span_s < seconds:
        return None
    return busiest(trace, seconds)[1] / (len(trace) / trace.span_s * seconds)


def densest_rows(trace: Trace, n_rows: int) -> slice:
    """The `n_rows` consecutive rows that arrive in the shortest time."""
    n_rows = min(n_rows, len(trace))
    last = trace.arrival_s[n_rows - 1 :]
    first = int(np.argmin(last - trace.arrival_s[: last.size]))
    return slice(first, first + n_rows)


def longest_rows(trace: Trace, n_rows: int) -> NDArray[np.intp]:
    """Rows with the longest prompts, longest first; ties by output, then by row."""
    order = np.lexsort((np.arange(len(trace)), -trace.output_tokens, -trace.prompt_tokens))
    return order[:n_rows]
