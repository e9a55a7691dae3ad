"""A server under load for a while: what could be read of it, whoever read it. Unknown is None, never zero.

A finished trial, a simulated one and a server that somebody else runs all come down to this; the questions are asked
of it alone, so that they are answered alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from objectives.measurement import Load
from search_spaces.hardware import GpuFacts
from search_spaces.model import ModelFacts

SEVERAL_TOKENS = 1.01
"""Mean tokens a message from which on gaps between messages are not gaps between tokens."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """One gauge over the time watched."""

    mean: float
    most: float
    slope_per_s: float | None = None
    """Median slope of its last two thirds; None with too few readings."""
    above_zero: float | None = None
    """Share of the readings above 0."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Client-side durations, or a server's own histogram. Milliseconds."""

    p50: float | None
    p99: float | None
    mean: float | None = None
    n: int | None = None
    is_from_buckets: bool = False
    """P50 and P99 are read off a histogram's buckets and only as fine as those; the mean is exact."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of requests."""

    mean: float
    p99: float | None = None
    longest: float | None = None


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Of one role of process (`api_server`, `engine_core`, `worker`, `client`, `other`), in cores, on average."""

    cores: float
    """The busiest process of that role."""
    busiest_thread: float | None = None
    """Its busiest thread: near 1.0 it cannot go faster, however many cores are idle."""
    n_processes: int = 1
    delayed: float | None = None
    """Share of the time that its main thread was ready to run and had no core (Linux: /proc/PID/schedstat)."""


@dataclass(frozen=True, slots=True)
class CpuWait:
    """What kept a server from the CPU as a whole. Shares of the time watched."""

    throttled: float | None = None
    """Stopped by its container's CPU limit (cgroup cpu.stat)."""
    machine: float | None = None
    """Some task of the machine waited for a core (/proc/pressure/cpu)."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Everything is of the time watched. Rates are per second, of all GPUs of the server together."""

    source: str
    """For people: `trial 7, steady`, `http://…, 60 s`."""
    span_s: float
    load: Load | None = None
    n_gpus: int = 1
    model: ModelFacts | None = None
    gpu: GpuFacts | None = None
    config: Mapping[str, object] = field(default_factory=dict)
    """Arguments as the server ran with them, by their long names with underscores."""
    kv_tokens: int | None = None
    """Tokens that the KV cache holds."""
    is_alone: bool = True
    """False: other servers share its card, so the KV cache cannot be enlarged at will."""
    keeps_limits: bool | None = None
    """Whether this configuration keeps every limit that its study set; None: nobody set any, or it is not known."""

    offered_per_s: float | None = None
    finished_per_s: float | None = None
    is_sustained: bool | None = None
    n_requests: int | None = None
    n_finished: int | None = None
    n_failed: int | None = None
    prompts: Lengths | None = None
    outputs: Lengths | None = None
    totals: Lengths | None = None
    """Prompt and output of one request together."""
    cached_share: float | None = None
    """Of the prompt tokens, those that the prefix cache held."""
    e2e_mean_s: float | None = None

    output_tokens_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    """Prompt tokens computed, cached ones left out."""
    n_steps: float | None = None
    running: Gauge | None = None
    waiting: Gauge | None = None
    kv_usage: Gauge | None = None
    n_preemptions: float | None = None
    ttft_ms: Tail | None = None
    itl_ms: Tail | None = None
    """Between messages, as sent: one a step, which may hold several tokens (`tokens_per_message`)."""
    tokens_per_message: float | None = None
    """Mean; above 1 with speculative decoding, stream_interval, or parsers that hold tokens back."""
    itl_per_token_ms: Tail | None = None
    """Only where messages hold several tokens."""
    queue_mean_s: float | None = None
    prefill_mean_s: float | None = None
    interference: Interference | None = None

    cpu: Mapping[str, CpuUse] = field(default_factory=dict)
    cpu_wait: CpuWait | None = None
    n_cores: int | None = None
    """Cores that the server may run on."""
    kernel_resident_share: float | None = None
    """NVML's utilisation: some kernel was resident. It does not say that the GPU was busy."""
    memory_trend: str | None = None
    """That device memory creeps, in one sentence; None: it does not, or nobody could see."""
    client_fault: str | None = None
    """Why the load generator's figures cannot be trusted; None if it kept up, or there was none."""

    def whole(self, name: str) -> int | None:
        """A whole-numbered argument, None where it is not known."""
        value = self.config.get(name)
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def preemptions_per_request(self) -> float | None:
        if self.n_preemptions is None or not self.n_finished:
            return None
        return self.n_preemptions / self.n_finished

    @property
    def tensor_parallel_size(self) -> int:
        """GPUs of one replica: by the arguments, else all of the server's."""
        return min(self.whole("tensor_parallel_size") or max(self.n_gpus, 1), max(self.n_gpus, 1))

    @property
    def n_replicas(self) -> float:
        """Of the model, side by side (data parallel)."""
        each = self.tensor_parallel_size * (self.whole("pipeline_parallel_size") or 1)
        return max(self.n_gpus / each, 1.0)

    @property
    def is_busy(self) -> bool:
        """Some request ran at nearly any time; between requests an engine takes no steps."""
        if self.running is None:
            return False
        return self.running.mean >= 1 and (self.running.above_zero is None or self.running.above_zero >= 0.9)

    @property
    def step_s(self) -> float | None:
        """Mean time of an engine step that put out tokens; None where steps are not counted or the engine idled."""
        return self.span_s / self.n_steps if self.n_steps and self.is_busy else None

    @property
    def decode_step_s(self) -> float | None:
        """Time between two messages of one answer: the median gap, or the mean where the median is a bucket's."""
        if self.itl_ms is None:
            return None
        gap_ms = self.itl_ms.mean if self.itl_ms.is_from_buckets else self.itl_ms.p50
        return None if gap_ms is None else gap_ms / 1e3

    @property
    def itl_note(self) -> str | None:
        """What a gap is a gap between, where it is not one token's."""
        if self.tokens_per_message is None or self.tokens_per_message <= SEVERAL_TOKENS:
            return None
        tail = self.itl_per_token_ms
        each = "" if tail is None or tail.p99 is None else f"; P99 per token {tail.p99:.3g} ms"
        return (
            f"ITL is per message of {self.tokens_per_message:.2g} tokens on average{each}: never compared with the ITL"
            " of a server that sends one token a message"
        )


@dataclass(frozen=True, slots=True)
class Interference:
    """Gaps between tokens, and the prefills of others that fell into them."""

    n_long_gaps: int
    """Gaps of more than `LONG_FACTOR` times the median."""
    n_beside_prefill: int
    """Of these, gaps that overlap the prefill of another request."""
    long_gap_mean_s: float
    base_gap_s: float
    """The median gap."""

    @property
    def share(self) -> float:
        return self.n_beside_prefill / self.n_long_gaps if self.n_long_gaps else 0.0
