"""What is replayed: a trace, the servers it goes to, and how the client runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np

from optimizer.workload.trace import Trace

Style = Literal["tokens", "chat"]
SMALLEST_VOCABULARY = 64
"""Below it, two prompts of random tokens are alike too often."""
OURS = frozenset(
    {"model", "prompt", "messages", "max_tokens", "max_completion_tokens", "stream", "stream_options", "cache_salt"}
)
"""Fields of a request that the replay needs for its own: lengths and times are read from what they bring."""


@dataclass(frozen=True)
class Target:
    """One server and the tenants whose requests it gets."""

    instance: str
    url: str
    """http://host:port, without a path."""
    model: str
    """The name that the server serves it by."""
    tenants: tuple[str, ...]
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters of every request, e.g. {"logprobs": 5, "top_p": 0.9, "temperature": 0.7}: what production
    sends costs memory and time. With `prompt_logprobs` vLLM refuses to stream: each answer then counts as one message.
    With `n`, the tokens asked for are n times the trace's."""
    api_key_variable: str = ""
    """Name of an environment variable, never the key itself."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/") or parts.query:
            raise ValueError(f"url of instance {self.instance}: {self.url!r} is not of the form http://host:port")
        if taken := OURS & self.extra_body.keys():
            raise ValueError(f"extra_body of instance {self.instance}: {', '.join(sorted(taken))} is set by the replay")
        n = self.extra_body.get("n", 1)
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"extra_body of instance {self.instance}: n must be a whole number above 0, got {n!r}")

    @property
    def n_choices(self) -> int:
        return int(self.extra_body.get("n", 1))

    @property
    def is_streamed(self) -> bool:
        """vLLM 0.32 entrypoints/openai/completion/protocol.py:553: no `prompt_logprobs` in a stream."""
        return not self.extra_body.get("prompt_logprobs")


@dataclass(frozen=True)
class ReplayPlan:
    """One replay. Raises ValueError for what cannot be replayed."""

    trace: Trace
    """Arrivals on the phase clock: measured rows start at 0, warm-up rows lie before it."""
    n_warmup: int
    time_limit_s: float
    """Phase clock: whatever is unanswered then is cut, and fails as `timeout`."""
    targets: tuple[Target, ...]
    vocabulary: int
    """The model's vocabulary size: token ids are drawn from a safe range below it."""
    seed: int = 0
    """Other seeds give other tokens of the same lengths and sharing."""
    cache_salt: str | None = None
    """With a fresh one, nothing that an earlier replay left in the prefix cache is found."""
    style: Style = "tokens"
    """tokens: ids with exact lengths, greedy, `ignore_eos`. chat: text through the chat endpoint with the server's own
    sampling; answers may end early, prompt lengths are approximate."""
    n_processes: int = 1
    cores: tuple[int, ...] = ()
    """Cores of the client processes; empty: wherever the kernel puts them."""

    def __post_init__(self) -> None:
        if not 0 <= self.n_warmup <= len(self.trace):
            raise ValueError(f"n_warmup {self.n_warmup} is not within the trace's {len(self.trace)} rows")
        if not self.time_limit_s > 0:
            raise ValueError(f"time_limit_s must be above 0, got {self.time_limit_s}")
        if self.vocabulary < SMALLEST_VOCABULARY:
            raise ValueError(f"a vocabulary of {self.vocabulary} is too small; {SMALLEST_VOCABULARY} are needed")
        if self.n_processes < 1:
            raise ValueError(f"n_processes must be at least 1, got {self.n_processes}")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, got {self.seed}")
        for index in np.unique(self.trace.tenant).tolist():
            tenant = self.trace.tenants[index]
            servers = [t.instance for t in self.targets if tenant in t.tenants]
            if len(servers) != 1:
                raise ValueError(f"tenant {tenant!r} needs exactly one target, has {servers or 'none'}")

    def target_of(self, row: int) -> Target:
        tenant = self.tenant_of(row)
        return next(t for t in self.targets if tenant in t.tenants)

    def tenant_of(self, row: int) -> str:
        return self.trace.tenants[int(self.trace.tenant[row])]
