"""What a load did to an engine: raw per-request records and engine samples, one phase per load.

Nothing here is aggregated. Percentiles, rates and shares are computed in `objectives.metric` from these raw
samples, so that repeats can be pooled. Times are seconds on the phase's own clock (0 = the phase's first
scheduled arrival that is measured; warm-up rows lie before it). A figure that could not be read is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Load = Literal["steady", "saturation", "stress"]
LOADS: tuple[Load, ...] = ("steady", "saturation", "stress")
TIME_OUT = "timeout"
"""How a `RequestRecord.failure` begins when only the phase's end came before the answer."""


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as the client saw it. `failure` is None only if every token asked for arrived.

    Raises ValueError for a time that is not a number, or token counts that do not match the messages."""

    request_id: int
    """Internal id: the row's index in the load's trace."""
    tenant: str
    scheduled_s: float
    """When the trace says the request arrives; the clock of every latency starts here."""
    sent_s: float
    """When the client really sent it."""
    prompt_tokens: int
    asked_output_tokens: int
    token_times_s: NDArray[np.float64]
    """(n_messages,) arrival of each token-bearing message, ascending; empty if none arrived."""
    tokens_per_message: NDArray[np.int32] | None = None
    """(n_messages,) tokens in each message; None means every message carried exactly one."""
    cached_prompt_tokens: int | None = None
    n_preemptions: int | None = None
    recomputed_tokens: int | None = None
    failure: str | None = None

    def __post_init__(self) -> None:
        if not np.isfinite(self.token_times_s).all():
            raise ValueError(f"request {self.request_id}: token times must be finite numbers")
        counts = self.tokens_per_message
        if counts is not None and counts.size != self.token_times_s.size:
            raise ValueError(
                f"request {self.request_id}: {counts.size} token counts for {self.token_times_s.size} messages"
            )

    @property
    def is_timed_out(self) -> bool:
        """Cut by the phase's end, not refused and not lost. Still a failure, except where a load is cut by design."""
        return self.failure is not None and self.failure.startswith(TIME_OUT)

    @property
    def is_finished(self) -> bool:
        """Answered whole. An answer without a token is not one, whatever the client called it."""
        return self.failure is None and self.token_times_s.size > 0

    @property
    def output_tokens(self) -> int:
        if self.tokens_per_message is None:
            return int(self.token_times_s.size)
        return int(self.tokens_per_message.sum())

    @property
    def ttft_s(self) -> float | None:
        """Scheduled arrival to first token; None without a token."""
        if self.token_times_s.size == 0:
            return None
        return float(self.token_times_s[0]) - self.scheduled_s

    @property
    def gaps_s(self) -> NDArray[np.float64]:
        """(n_messages - 1,) inter-token gaps; empty for one-token answers."""
        return np.diff(self.token_times_s)


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One reading of an engine's gauges. None means the gauge could not be read."""

    time_s: float
    instance: str
    n_running: float | None
    n_waiting: float | None
    kv_usage: float | None
    """Share of KV blocks in use, 0..1."""
    n_preemptions_total: float | None = None


@dataclass(frozen=True, slots=True)
class EngineCounters:
    """Increases of an engine's counters over the measured window, after draining. None means unread."""

    n_preemptions: float | None = None
    prompt_tokens: float | None = None
    cached_prompt_tokens: float | None = None
    n_steps: float | None = None
    generation_tokens: float | None = None
    n_finished: float | None = None
    prefix_queries_tokens: float | None = None
    prefix_hits_tokens: float | None = None
    ttft_mean_s: float | None = None
    """The server's own mean (sum / count of its histogram), for comparison with the client's."""
    queue_mean_s: float | None = None
    prefill_mean_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process of a server, or of our client, in the second before `time_s`."""

    time_s: float
    instance: str
    """The server's; empty for our client."""
    role: str
    """`api_server`, `engine_core`, `worker`, `client`, `other`."""
    pid: int
    cores: float
    """Cores' worth of CPU time used, e.g. 1.0 for one busy core."""
    busiest_thread_cores: float | None
    rss_bytes: int
    delayed: float | None = None
    """Share of the time that its main thread was ready to run and had no core; an engine's steps run in that thread."""


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One reading of a GPU (or, without one, of the host's memory). None means unread."""

    time_s: float
    device: str
    """GPU UUID, or `host`."""
    used_bytes: int | None
    free_bytes: int | None
    kernel_resident_share: float | None = None
    """NVML's "utilisation": the share of time in which any kernel was resident. It does not say how busy the GPU is."""
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    foreign_pids: tuple[int, ...] = ()
    """Processes on the device that are not ours."""


@dataclass(frozen=True, slots=True)
class ClientReport:
    """How well the load generator kept up. Lags in milliseconds."""

    n_processes: int
    send_lag_p99_ms: float | None
    """Lateness of sends against their scheduled times."""
    read_lag_p99_ms: float | None
    """Lateness of the event loops: how long a readable message may have waited."""
    cores: float | None
    """CPU time of the busiest client process over wall time."""
    n_messages: int
    fault: str | None = None
    """Why the client's figures cannot be trusted; None if it kept up."""


@dataclass(frozen=True)
class PhaseMeasurement:
    """One load replayed against one deployment (1..n server instances on one GPU slot)."""

    load: Load
    records: tuple[RequestRecord, ...]
    """Measured requests only; warm-up rows are left out."""
    n_gpus: int
    offered_per_s: float | None
    """Requests per second offered over the measured window; None for saturation."""
    counted_from_s: float
    counted_until_s: float
    """The window in which output tokens are counted. Saturation: "running set full" to "queue empty".
    Steady and stress: first scheduled arrival to last scheduled arrival."""
    end_s: float
    """When the last measured request finished (drained), or the phase was cut."""
    samples: tuple[EngineSample, ...] = ()
    counters: Mapping[str, EngineCounters] = field(default_factory=dict)
    """instance -> counters"""
    min_free_memory_bytes: int | None = None
    """Least free device memory seen in the phase; None where it cannot be read."""
    was_running_set_full: bool | None = None
    """Saturation only: False when the queue emptied before any limit was reached (throughput is then a lower bound)."""
    cut_reason: str | None = None
    """Why the phase ended before every request was answered; None if it drained."""
    processes: tuple[ProcessSample, ...] = ()
    devices: tuple[DeviceSample, ...] = ()
    client: ClientReport | None = None
    """None on the simulator, which has no client."""
    notes: tuple[str, ...] = ()
    """What the machine's data say about these figures, for people."""
    disturbances: tuple[str, ...] = ()
    """The part of the notes that says the machine was not itself (throttled, shared): worth measuring again, once."""

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r.tenant for r in self.records))


@dataclass(frozen=True)
class Measurement:
    """All phases of one run of a trial."""

    phases: Mapping[Load, PhaseMeasurement]
    is_simulated: bool
    engine: str
    """Engine name and version, e.g. "simulator 0.1.0 (vLLM 0.32 scheduler)"."""
    kv_tokens: Mapping[str, int] = field(default_factory=dict)
    """instance -> KV cache capacity in tokens."""
