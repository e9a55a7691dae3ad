"""One replayed load as a PhaseMeasurement: what the client saw, what the servers counted, what the machine did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from objectives.measurement import PhaseMeasurement, RequestRecord
from optimizer.engines.engine import LoadPlan
from optimizer.engines.vllm.watch import WatchLog
from optimizer.engines.window import CountedWindow, between_arrivals
from optimizer.replay.client import ReplayResult

COUNTED_FROM_S = 0.25
"""The reading that falls on time 0 is stamped when its answer came, a little later."""
FULL_SHARE = 0.95
"""A running set this near to the most that ever ran counts as full: requests end and start all the time."""


def phase_of(
    plan: LoadPlan, result: ReplayResult, log: WatchLog, n_gpus: int, most_running: int | None = None
) -> PhaseMeasurement:
    """Everything of one load, raw. `most_running`: what the servers' max_num_seqs let run at once; None: not known."""
    is_kv_full = any((s.kv_usage or 0.0) >= FULL_SHARE for s in log.samples)
    window = counted_window(plan, result.records, result.end_s, 0 if is_kv_full else most_running)
    return PhaseMeasurement(
        load=plan.load,
        records=result.records,
        n_gpus=n_gpus,
        offered_per_s=plan.offered_per_s,
        counted_from_s=window.from_s,
        counted_until_s=window.until_s,
        end_s=result.end_s,
        samples=log.samples,
        counters=log.counters(COUNTED_FROM_S),
        min_free_memory_bytes=log.min_free_bytes,
        was_running_set_full=window.was_full,
        cut_reason=result.cut_reason,
        processes=log.processes,
        devices=log.devices,
        client=result.client,
    )


def counted_window(
    plan: LoadPlan, records: Sequence[RequestRecord], end_s: float, most_running: int | None = None
) -> CountedWindow:
    """Steady and stress: first to last measured arrival. Saturation: from "as many streams as ever ran" to "the last
    request got its first token, so nothing waits", seen from the client, which knows both to the millisecond.

    Where nothing ever held a request back (no limit was reached: fewer ran than `most_running` allows), there was no
    queue but the prefill's: the throughput is a lower bound, counted from the first token to the end."""
    if plan.load != "saturation":
        return between_arrivals(plan)
    streams = [r.token_times_s for r in records if r.token_times_s.size]
    if not streams:
        return CountedWindow(0.0, end_s, False)
    first = np.sort([t[0] for t in streams])
    full_s, n_most = _full_since(first, np.sort([t[-1] for t in streams]))
    queue_empty_s = float(first[-1])
    is_limited = n_most < len(streams) and n_most >= FULL_SHARE * (most_running or 0)
    if is_limited and queue_empty_s > full_s:
        return CountedWindow(full_s, queue_empty_s, True)
    return CountedWindow(float(first[0]), max(end_s, float(first[0])), False)


def _full_since(first: NDArray[np.float64], last: NDArray[np.float64]) -> tuple[float, int]:
    """(when the number of running streams first came near its maximum, that maximum)"""
    n_running = np.arange(1, first.size + 1) - np.searchsorted(last, first, side="left")
    n_most = int(n_running.max())
    return float(first[int(np.argmax(n_running >= FULL_SHARE * n_most))]), n_most
