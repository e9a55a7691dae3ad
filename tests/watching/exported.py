"""A load of the simulator as a server would have exported it: gauges by the second and vLLM 0.32's own histograms
(v1/metrics/loggers.py), so that what `diagnose --url` makes of a GPU's server can be held to what is true of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from objectives.measurement import PhaseMeasurement, RequestRecord
from optimizer.engines.vllm.devices import NoDevices
from optimizer.engines.vllm.exposition import Scrape
from optimizer.engines.vllm.readings import Gains, Key, Reading
from optimizer.engines.vllm.watch import WatchLog
from optimizer.questions.of_phase import Server
from optimizer.watching.local import LocalServer
from optimizer.watching.server import RunningServer
from optimizer.watching.watch import NAME, Seen

TTFT = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)  # fmt: skip
ITL = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)  # fmt: skip
LATENCY = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)  # fmt: skip
TOKENS = tuple(k * 10**e for e in range(6) for k in (1, 2, 5))


def seen_of(phase: PhaseMeasurement, server: Server) -> Seen:
    """As watched from its first arrival to its last answer."""
    end_s = max(phase.end_s, 1.0)
    first, last = Reading({}), Reading(_exported(phase, end_s))
    log = WatchLog((), (), (), {NAME: tuple(_scrapes(phase, end_s))}, {NAME: 0}, {}, None)
    running = RunningServer(
        url="http://a-server", version="0.32.0", model_name="m", config=dict(server.config),
        kv_tokens={"0": server.kv_tokens} if server.kv_tokens else {}, model=server.model, gpu=server.gpu,
        n_gpus=phase.n_gpus, n_cores=None, local=LocalServer(0, "simulated"), devices=NoDevices(),
    )  # fmt: skip
    return Seen(running, log, Gains(first, last), end_s, end_s)


def _exported(phase: PhaseMeasurement, end_s: float) -> dict[Key, float]:
    done = [r for r in phase.records if r.is_finished]
    begun = [r for r in phase.records if r.token_times_s.size]
    counters = next(iter(phase.counters.values()))
    found: dict[Key, float] = {
        _key("request_success_total", finished_reason="length"): len(done),
        _key("request_success_total", finished_reason="error"): 0.0,
        _key("prompt_tokens_cached_total"): sum(r.cached_prompt_tokens or 0 for r in begun),
    }
    computed = [r.prompt_tokens - (r.cached_prompt_tokens or 0) for r in done]
    queue_s, prefill_s = counters.queue_mean_s or 0.0, counters.prefill_mean_s or 0.0
    gaps = np.concatenate([np.empty(0), *(r.gaps_s for r in begun)])
    for name, edges, values in (
        ("time_to_first_token_seconds", TTFT, [r.ttft_s or 0.0 for r in begun]),
        ("inter_token_latency_seconds", ITL, gaps),
        ("e2e_request_latency_seconds", LATENCY, [float(r.token_times_s[-1]) - r.scheduled_s for r in done]),
        ("request_queue_time_seconds", LATENCY, [queue_s] * len(done)),
        ("request_prefill_time_seconds", LATENCY, [prefill_s] * len(done)),
        ("request_prompt_tokens", TOKENS, [r.prompt_tokens for r in done]),
        ("request_generation_tokens", TOKENS, [r.output_tokens for r in done]),
        ("request_prefill_kv_computed_tokens", TOKENS, computed),
    ):
        found |= _histogram(name, edges, values)
    return found


def _histogram(name: str, edges: Sequence[float], values: Iterable[float]) -> Mapping[Key, float]:
    observed = np.array(list(values), np.float64)
    found = {_key(f"{name}_bucket", le=str(float(e))): float((observed <= e).sum()) for e in edges}
    found[_key(f"{name}_bucket", le="+Inf")] = float(observed.size)
    found[_key(f"{name}_sum")] = float(observed.sum())
    return found


def _key(name: str, **labels: str) -> Key:
    return f"vllm:{name}", frozenset({("engine", "0"), *labels.items()})


def _scrapes(phase: PhaseMeasurement, end_s: float) -> Iterable[Scrape]:
    """One a second, each with the engine's last gauges before it."""
    rows = sorted((s for s in phase.samples if s.n_running is not None), key=lambda s: s.time_s)
    for time_s in np.arange(0.0, math.floor(end_s) + 1.0):
        past = [s for s in rows if s.time_s <= time_s]
        newest = past[-1] if past else None
        own = Scrape(
            float(time_s),
            n_running=newest.n_running if newest else 0.0,
            n_waiting=newest.n_waiting if newest else 0.0,
            kv_usage=newest.kv_usage if newest else 0.0,
            n_preemptions_total=(newest.n_preemptions_total or 0.0) if newest else 0.0,
            generation_tokens_total=_tokens(phase.records, time_s),
            prompt_tokens_total=float(sum(r.prompt_tokens for r in phase.records if _begun(r, time_s))),
            n_finished_total=float(sum(r.is_finished and r.token_times_s[-1] <= time_s for r in phase.records)),
        )
        yield Scrape(float(time_s), own.n_running, own.n_waiting, own.kv_usage, engines={"0": own})


def _begun(record: RequestRecord, time_s: float) -> bool:
    return bool(record.token_times_s.size) and record.token_times_s[0] <= time_s


def _tokens(records: Sequence[RequestRecord], time_s: float) -> float:
    return float(sum(int((r.token_times_s <= time_s).sum()) for r in records))
