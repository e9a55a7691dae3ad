"""The Engine protocol: 1..n server instances on one GPU slot, booted, loaded, sampled, stopped.

The simulator and the real vLLM server are both one class that passes `tests/contract/`. An engine knows nothing of
objectives, limits or trials; it raises `EngineFailed` and returns raw `PhaseMeasurement`s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from objectives.measurement import EngineSample, Load, PhaseMeasurement
from optimizer.workload.trace import Trace
from search_spaces.config import Config

Sharing = Literal["exclusive", "time-slice", "mps", "mig"]
"""How instances on one card share its compute. `exclusive`: one instance."""


@dataclass(frozen=True)
class Instance:
    """One server: the tenants whose requests it gets, and its arguments."""

    name: str
    config: Config
    tenants: tuple[str, ...]


@dataclass(frozen=True)
class Placement:
    """The servers that one trial starts together on one GPU slot. Every tenant belongs to exactly one instance."""

    instances: tuple[Instance, ...]
    sharing: Sharing = "exclusive"

    @property
    def fingerprint(self) -> str:
        return "-".join(i.config.fingerprint for i in self.instances)

    def instance_of(self, tenant: str) -> Instance:
        for instance in self.instances:
            if tenant in instance.tenants:
                return instance
        raise KeyError(f"no instance serves tenant {tenant!r}")

    def parameters(self) -> dict[str, Any]:
        """Every argument of every instance: `max_num_seqs` for one server, `chat.max_num_seqs` for several."""
        if len(self.instances) == 1:
            return dict(self.instances[0].config)
        return {f"{i.name}.{k}": v for i in self.instances for k, v in i.config.items()}


@dataclass(frozen=True)
class LoadPlan:
    """One load to replay: a frozen trace, of which the rows before `n_warmup` only warm the engine up."""

    load: Load
    trace: Trace
    """Arrivals on the phase clock: measured rows start at 0, warm-up rows lie before it (negative arrivals).
    Saturation: every measured row arrives at 0 or earlier."""
    n_warmup: int
    offered_per_s: float | None
    time_limit_s: float
    """The phase is cut this long after time 0; what is unanswered then is recorded as a time-out."""
    max_context_tokens: int = 0
    """Largest prompt + output in the trace (0: unknown)."""
    style: Literal["tokens", "chat"] = "tokens"
    """`tokens`: exact lengths. `chat`: text through the chat endpoint with the server's own sampling, lengths as they
    come; a real engine only, the simulator knows no text."""


@dataclass(frozen=True)
class BootReport:
    """What a boot cost and what the engine resolved."""

    seconds: Mapping[str, float]
    """boot phase -> seconds (virtual for the simulator), e.g. {"load": 12.1, "graph_capture": 7.0}"""
    kv_tokens: Mapping[str, int]
    """instance -> KV capacity in tokens"""
    kv_blocks: Mapping[str, int]
    free_memory_bytes: int | None
    """Device memory left once every instance is up; None where it cannot be read."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Versions, GPU UUID, resolved configuration: whatever identifies the run."""


class Engine(Protocol):
    """boot -> (reset -> replay)* -> stop. One engine object serves one slot for its whole life."""

    @property
    def identity(self) -> str:
        """Name and version, e.g. `simulator 0.1.0 (vLLM 0.32 scheduler)`; the same for every trial of a study."""
        ...

    @property
    def is_simulated(self) -> bool: ...

    def boot(self, placement: Placement, seed: int) -> BootReport:
        """Start every instance. Raises EngineFailed; nothing is left running then. `seed` seeds boot-to-boot noise.

        A placement that it holds is not started again: the report of its boot comes back with no seconds and
        `facts["reused"]` True. Whatever else it holds is stopped first."""
        ...

    def holds(self, placement: Placement) -> bool:
        """Whether servers with the same boot key are up, sound and idle. Never raises; the simulator holds nothing."""
        ...

    def configure(self, placement: Placement) -> None:
        """Move `live` parameters of a booted engine. Raises EngineFailed if only a boot can do it."""
        ...

    def reset(self) -> None:
        """The same cache state before every load: prefix caches empty, counters noted."""
        ...

    def replay(self, plan: LoadPlan) -> PhaseMeasurement:
        """Replay one load to its end (drained, or cut at its time limit). Raises EngineFailed if an instance dies."""
        ...

    def sample(self) -> tuple[EngineSample, ...]:
        """The gauges now, one sample per instance."""
        ...

    def stop(self) -> None:
        """Stop every instance; a second call does nothing."""
        ...

    def logs(self) -> Mapping[str, str]:
        """Instance -> what its server printed since its boot, also after `stop`; empty where nothing prints."""
        ...


def boot_key(placement: Placement, live: frozenset[str]) -> str:
    """Fingerprint of everything that needs a boot: placements with equal keys can share a running engine."""
    parts = [
        (i.name, i.tenants, sorted((k, v) for k, v in i.config.items() if k not in live)) for i in placement.instances
    ]
    return json.dumps([placement.sharing, parts], default=str)
