"""A measured load, real or simulated, as a Situation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from objectives.measurement import EngineSample, PhaseMeasurement, ProcessSample, RequestRecord
from objectives.samples import LoadSamples
from objectives.statistics import Sample, median_slope
from objectives.sustained import sustainment
from optimizer.diagnosis.memory_trend import creep_of
from optimizer.questions.interference import LONG_FACTOR
from optimizer.questions.peak import Breakage
from optimizer.questions.situation import CpuUse, Gauge, Interference, Lengths, Situation, Tail
from search_spaces.hardware import GpuFacts
from search_spaces.model import ModelFacts

RECENT_S = 10.0
"""How long before a breakage a request may have arrived to be shown beside it."""
N_SHOWN = 3
FULL_KV = 0.98
MOST_READINGS = 200


@dataclass(frozen=True, kw_only=True)
class Server:
    """What is known of one instance beside its load."""

    name: str
    config: Mapping[str, object] = field(default_factory=dict)
    kv_tokens: int | None = None
    model: ModelFacts | None = None
    gpu: GpuFacts | None = None
    tenants: tuple[str, ...] = ()
    """Empty: every tenant's requests are its own."""


def situation_of(phase: PhaseMeasurement, server: Server, source: str, keeps_limits: bool | None = None) -> Situation:
    """One instance's part of a load. `keeps_limits`: of the whole configuration, where its study set some."""
    own = own_part(phase, server)
    samples, records = LoadSamples((own,)), own.records
    counters = phase.counters.get(server.name)
    gauges = [s for s in phase.samples if s.instance == server.name and 0 <= s.time_s <= own.counted_until_s]
    judged = sustainment(own) if phase.load == "steady" else None
    span_s = max(own.counted_until_s - max(own.counted_from_s, 0.0), 1e-9)
    prompt, cached = _tokens(records, "prompt_tokens"), _cached_share(records)
    return Situation(
        source=source,
        span_s=span_s,
        load=phase.load,
        n_gpus=phase.n_gpus,
        model=server.model,
        gpu=server.gpu,
        config=server.config,
        kv_tokens=server.kv_tokens,
        is_alone=not server.tenants,
        keeps_limits=keeps_limits,
        offered_per_s=judged.offered_per_s if judged else own.offered_per_s,
        finished_per_s=sum(r.is_finished for r in records) / max(own.end_s, 1e-9),
        is_sustained=judged.is_sustained if judged else None,
        n_requests=len(records),
        n_finished=samples.n_finished,
        n_failed=sum(not r.is_finished for r in samples.judged),
        prompts=_lengths(prompt),
        outputs=_lengths(_tokens(records, "asked_output_tokens")),
        totals=_lengths(prompt + _tokens(records, "asked_output_tokens")),
        cached_share=cached,
        e2e_mean_s=_s(samples.e2e_ms.mean),
        output_tokens_per_s=_arrived(records, own.counted_from_s, own.counted_until_s) / span_s,
        prefill_tokens_per_s=_prefilled(records, own.counted_from_s, own.counted_until_s) / span_s,
        n_steps=None,
        running=_gauge(gauges, "n_running"),
        waiting=_gauge(gauges, "n_waiting"),
        kv_usage=_gauge(gauges, "kv_usage"),
        n_preemptions=None if counters is None else counters.n_preemptions,
        ttft_ms=_tail(samples.ttft_ms),
        itl_ms=_tail(samples.itl_ms),
        tokens_per_message=_mean(samples.tokens_per_message),
        itl_per_token_ms=_tail(samples.itl_per_token_ms) if samples.has_several_tokens else None,
        queue_mean_s=None if counters is None else counters.queue_mean_s,
        prefill_mean_s=None if counters is None else counters.prefill_mean_s,
        interference=interference_of(records, _budget(server.config)),
        cpu=_cpu(phase, server.name),
        kernel_resident_share=_resident(phase),
        memory_trend=_memory_trend(phase),
        client_fault=phase.client.fault if phase.client is not None else None,
    )


def breakage_of(phase: PhaseMeasurement, server: Server) -> Breakage | None:
    """The first preemption, full cache or failure, whichever came first, and the largest of what had just arrived."""
    samples = sorted((s for s in phase.samples if s.instance == server.name and s.time_s >= 0), key=lambda s: s.time_s)
    signs = [*_first_signs(samples), *_first_failure(phase)]
    if not signs:
        return None
    time_s, sign = min(signs)
    recent = [r for r in own_part(phase, server).records if time_s - RECENT_S <= r.scheduled_s <= time_s]
    recent.sort(key=lambda r: -(r.prompt_tokens + r.asked_output_tokens))
    rows = tuple((r.scheduled_s, r.tenant, r.prompt_tokens, r.asked_output_tokens) for r in recent[:N_SHOWN])
    return Breakage(time_s, sign, rows)


def _first_signs(samples: Sequence[EngineSample]) -> list[tuple[float, str]]:
    found = []
    full = next((s.time_s for s in samples if s.kv_usage is not None and s.kv_usage >= FULL_KV), None)
    if full is not None:
        found.append((full, "the KV cache was full"))
    counts = [(s.time_s, s.n_preemptions_total) for s in samples if s.n_preemptions_total is not None]
    first = next((t for t, n in counts if n > counts[0][1]), None)
    if first is not None:
        found.append((first, "the first preemption"))
    return found


def _first_failure(phase: PhaseMeasurement) -> list[tuple[float, str]]:
    failed = [r for r in phase.records if r.failure is not None and not r.is_timed_out]
    if not failed:
        return []
    first = min(failed, key=lambda r: r.scheduled_s)
    return [(first.scheduled_s, f"the first failed request ({first.failure})")]


def interference_of(records: Sequence[RequestRecord], budget: int | None = None) -> Interference | None:
    """Long gaps, and how many of them overlap the prefill of another request.

    A prefill is the last steps before the first token, as many as its prompt has chunks of `budget` tokens; how long
    each took is what is to be explained, so they are given the mean length of the long gaps."""
    gaps = np.concatenate([np.empty(0), *(r.gaps_s for r in records)])
    if gaps.size < 2 or not float(np.median(gaps)) > 0:
        return None
    base = float(np.median(gaps))
    long_gaps = gaps[gaps > LONG_FACTOR * base]
    if not long_gaps.size:
        return Interference(0, 0, 0.0, base)
    mean_s = float(long_gaps.mean())
    begun_s, ended_s = (np.sort(times) for times in _prefills(records, budget, mean_s))
    n_beside = 0
    for record in records:
        times = record.token_times_s
        is_long = np.diff(times) > LONG_FACTOR * base
        n_begun = np.searchsorted(begun_s, times[1:][is_long], "left")
        n_over = np.searchsorted(ended_s, times[:-1][is_long], "right")  # its own prefill is among these
        n_beside += int((n_begun > n_over).sum())
    return Interference(int(long_gaps.size), n_beside, mean_s, base)


def _prefills(
    records: Sequence[RequestRecord], budget: int | None, step_s: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(begin, end) of each answered request's prefill."""
    answered = [r for r in records if r.token_times_s.size]
    ended = np.array([r.token_times_s[0] for r in answered])
    computed = np.array([r.prompt_tokens - (r.cached_prompt_tokens or 0) for r in answered], np.float64)
    n_chunks = np.ceil(computed / budget) if budget else np.ones(ended.size)
    arrived = np.array([r.scheduled_s for r in answered])
    return np.maximum(ended - n_chunks * step_s, arrived), ended


def own_part(phase: PhaseMeasurement, server: Server) -> PhaseMeasurement:
    """Of a load on several servers, what one of them got and did."""
    if not server.tenants or set(phase.tenants) <= set(server.tenants):
        return phase
    records = tuple(r for r in phase.records if r.tenant in server.tenants)
    samples = tuple(s for s in phase.samples if s.instance == server.name)
    counters = {name: found for name, found in phase.counters.items() if name == server.name}
    return replace(phase, records=records, samples=samples, counters=counters)


def _budget(config: Mapping[str, object]) -> int | None:
    value = config.get("max_num_batched_tokens")
    return value if isinstance(value, int) else None


def _tokens(records: Sequence[RequestRecord], name: str) -> NDArray[np.float64]:
    return np.array([getattr(r, name) for r in records], np.float64)


def _lengths(tokens: NDArray[np.float64]) -> Lengths | None:
    if not tokens.size:
        return None
    return Lengths(float(tokens.mean()), float(np.percentile(tokens, 99)), float(tokens.max()))


def _cached_share(records: Sequence[RequestRecord]) -> float | None:
    known = [r for r in records if r.cached_prompt_tokens is not None]
    n_prompt = sum(r.prompt_tokens for r in known)
    return sum(r.cached_prompt_tokens or 0 for r in known) / n_prompt if n_prompt else None


def _arrived(records: Sequence[RequestRecord], from_s: float, until_s: float) -> float:
    """Output tokens in the window, by message."""
    total = 0.0
    for r in records:
        inside = (r.token_times_s >= from_s) & (r.token_times_s < until_s)
        total += float(inside.sum() if r.tokens_per_message is None else r.tokens_per_message[inside].sum())
    return total


def _prefilled(records: Sequence[RequestRecord], from_s: float, until_s: float) -> float:
    first = [r for r in records if r.token_times_s.size and from_s <= r.token_times_s[0] < until_s]
    return float(sum(r.prompt_tokens - (r.cached_prompt_tokens or 0) for r in first))


def _gauge(samples: Sequence[EngineSample], name: str) -> Gauge | None:
    """Mean over time: each reading stands until the next."""
    read = sorted((s.time_s, float(value)) for s in samples if (value := getattr(s, name)) is not None)
    if not read:
        return None
    time_s, values = np.array([t for t, _ in read]), np.array([v for _, v in read])
    held_s = np.diff(time_s, append=time_s[-1] + (np.median(np.diff(time_s)) if len(read) > 1 else 1.0))
    mean = float((values * held_s).sum() / held_s.sum()) if held_s.sum() > 0 else float(values.mean())
    return Gauge(mean, float(values.max()), _slope(time_s, values), float(np.mean(values > 0)))


def _slope(time_s: NDArray[np.float64], values: NDArray[np.float64]) -> float | None:
    late = time_s >= time_s[0] + (time_s[-1] - time_s[0]) / 3
    t, v = time_s[late], values[late]
    if t.size < 6 or not t[-1] > t[0]:
        return None
    return median_slope(t, v, MOST_READINGS)


def _tail(sample: Sample) -> Tail:
    return Tail(sample.percentile(50), sample.percentile(99), sample.mean, sample.n)


def _mean(values: NDArray[np.int64]) -> float | None:
    return float(values.mean()) if values.size else None


def _s(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


def _cpu(phase: PhaseMeasurement, instance: str) -> dict[str, CpuUse]:
    """Per role the process that used most, on average over the counted window."""
    inside = [
        p for p in phase.processes
        if p.instance in (instance, "") and phase.counted_from_s <= p.time_s <= phase.counted_until_s
    ]  # fmt: skip
    found: dict[str, CpuUse] = {}
    for role in dict.fromkeys(p.role for p in inside):
        by_pid: dict[int, list[ProcessSample]] = {}
        for p in inside:
            if p.role == role:
                by_pid.setdefault(p.pid, []).append(p)
        busiest = max(by_pid.values(), key=_mean_cores)
        found[role] = CpuUse(
            _mean_cores(busiest),
            _mean_known(p.busiest_thread_cores for p in busiest),
            len(by_pid),
            max(
                (d for rows in by_pid.values() if (d := _mean_known(p.delayed for p in rows)) is not None), default=None
            ),
        )
    return found


def _mean_cores(rows: Sequence[ProcessSample]) -> float:
    return float(np.mean([p.cores for p in rows]))


def _mean_known(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def _most_known(values: Iterable[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _resident(phase: PhaseMeasurement) -> float | None:
    shares = [d.kernel_resident_share for d in phase.devices if d.kernel_resident_share is not None]
    return float(np.mean(shares)) if shares else None


def _memory_trend(phase: PhaseMeasurement) -> str | None:
    trend = creep_of(phase.devices)
    return None if trend is None else trend.text
