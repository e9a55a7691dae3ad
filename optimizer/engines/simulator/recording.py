"""From what replicas did to a PhaseMeasurement: records, samples, counters and the window that throughput counts."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from objectives.measurement import EngineCounters, EngineSample, RequestRecord
from optimizer.engines.engine import LoadPlan
from optimizer.engines.simulator.replica import FOREVER, Gauges, Replica
from optimizer.engines.simulator.sequence import Sequence
from optimizer.engines.window import CountedWindow, between_arrivals
from optimizer.workload.trace import Trace

INBOUND_S = 0.0135
"""Front end, off the critical path: HTTP, tokenisation, hand-over to the engine core."""
INBOUND_TP_S = 0.025
"""The same with tensor parallelism (measured TTFT offsets 13-16 ms at TP 1, 23-30 ms above; BLIS inference-sim)."""
OUTBOUND_S = 0.001
"""Detokenise and stream one message."""
TIMEOUT = "timeout"


def inbound_s(tp: int) -> float:
    return INBOUND_TP_S if tp > 1 else INBOUND_S


def record(
    trace: Trace, row: int, sequence: Sequence | None, replica: Replica, ends: NDArray[np.float64], cut_s: float
) -> RequestRecord:
    """One request as the client saw it, until `cut_s`. `sequence` is None if the front end refused it."""
    times = _token_times(sequence, ends) if sequence is not None else np.empty(0)
    times = times[times <= cut_s]
    asked = int(trace.output_tokens[row])
    was_scheduled = sequence is not None and sequence.first_step_s is not None
    return RequestRecord(
        request_id=row,
        tenant=trace.tenants[int(trace.tenant[row])],
        scheduled_s=float(trace.arrival_s[row]),
        sent_s=float(trace.arrival_s[row]),
        prompt_tokens=int(trace.prompt_tokens[row]),
        asked_output_tokens=asked,
        token_times_s=times,
        cached_prompt_tokens=sequence.cached_tokens if sequence is not None and was_scheduled else None,
        n_preemptions=sequence.n_preemptions if sequence is not None else 0,
        recomputed_tokens=max(sequence.recomputed, 0) if sequence is not None else 0,
        failure=_failure(row, sequence, replica, times.size, asked),
    )


def _token_runs(sequence: Sequence, n_steps: int) -> list[tuple[int, int]]:
    """Steps [first, end) that each gave it one token, the run that the phase's end cut included."""
    cut = [(sequence.range_start, n_steps)] if 0 <= sequence.range_start < n_steps else []
    return [*sequence.ranges, *cut]


def _token_times(sequence: Sequence, ends: NDArray[np.float64]) -> NDArray[np.float64]:
    parts = [ends[first:end] for first, end in _token_runs(sequence, ends.size)]
    if len(parts) == 1:
        return parts[0] + OUTBOUND_S
    return np.concatenate(parts) + OUTBOUND_S if parts else np.empty(0)


def _failure(row: int, sequence: Sequence | None, replica: Replica, n_tokens: int, asked: int) -> str | None:
    refused = replica.rejected.get(row)
    if refused is not None:
        return refused
    if n_tokens == asked:
        return None
    if sequence is not None and n_tokens == sequence.limit:
        return f"cut at max_model_len after {n_tokens} of {asked} tokens"
    return TIMEOUT


def samples_of(replica: Replica) -> list[EngineSample]:
    return [as_sample(replica.name, g) for g in replica.samples]


def as_sample(name: str, g: Gauges) -> EngineSample:
    return EngineSample(g.time_s, name, g.n_running, g.n_waiting, g.kv_usage, g.n_preemptions)


def counters_of(replica: Replica, trace: Trace, sequences: Seq[Sequence], ends: NDArray[np.float64]) -> EngineCounters:
    """Increases since time 0 as vLLM counts them, warm-up requests that were still being served included.

    Prompt tokens count when the first token comes (v1/metrics/stats.py:505), look-ups in the prefix cache at the first
    admission (:138), queue and prefill times when the request finishes (:581)."""
    since = int(np.searchsorted(ends, 0.0))
    runs = [_token_runs(s, ends.size) for s in sequences]
    started = [(s, ends[r[0][0]]) for s, r in zip(sequences, runs, strict=True) if r]
    answered = [(s, first_s) for s, first_s in started if first_s >= 0.0]
    finished = [(s, first_s) for s, first_s in started if replica.finished_s.get(s.index, -1.0) >= 0.0]
    is_cached = replica.scheduler.budgets.is_prefix_cached
    looked_up = [s for s in sequences if is_cached and s.first_step_s is not None and s.first_step_s >= 0.0]
    return EngineCounters(
        n_preemptions=float(sum(t >= 0.0 for t in replica.scheduler.preemption_times_s)),
        prompt_tokens=float(sum(s.prompt for s, _ in answered)),
        cached_prompt_tokens=float(sum(s.cached_tokens for s, _ in answered)),
        n_steps=float(ends.size - since),
        generation_tokens=float(sum(max(end - max(first, since), 0) for run in runs for first, end in run)),
        n_finished=float(len(finished)),
        prefix_queries_tokens=float(sum(s.prompt for s in looked_up)),
        prefix_hits_tokens=float(sum(s.cached_tokens for s in looked_up)),
        ttft_mean_s=_mean([first_s - float(trace.arrival_s[s.index]) for s, first_s in answered]),
        queue_mean_s=_mean([(s.first_step_s or 0.0) - s.arrival_s for s, _ in finished]),
        prefill_mean_s=_mean([first_s - (s.first_step_s or 0.0) for s, first_s in finished]),
    )


def _mean(seconds: Seq[float]) -> float | None:
    return float(np.mean(seconds)) if seconds else None


def counted_window(plan: LoadPlan, replicas: Seq[Replica], records: Seq[RequestRecord], end_s: float) -> CountedWindow:
    """Steady and stress: first to last measured arrival. Saturation: every running set full, no queue empty yet.

    Where a running set was never full (the token budget binds, or the load is small), or one queue emptied before
    another set was full, the throughput is a lower bound: from the first token, `was_full` False."""
    if plan.load != "saturation":
        return between_arrivals(plan)
    loaded = [r for r in replicas if r.n_measured]
    full = [r.scheduler.full_s for r in loaded]
    empty = [end_s if r.queue_empty_s is None else r.queue_empty_s for r in loaded]
    if loaded and all(f is not None for f in full):
        from_s, until_s = max(0.0, *(f for f in full if f is not None)), min(empty)
        if until_s > from_s:
            return CountedWindow(from_s, until_s, True)
    first = min((float(r.token_times_s[0]) for r in records if r.token_times_s.size), default=FOREVER)
    if first == FOREVER:
        return CountedWindow(0.0, end_s, False)
    until_s = next((t for t in (min(empty, default=end_s), max(empty, default=end_s)) if t > first), end_s)
    return CountedWindow(first, until_s, False)
