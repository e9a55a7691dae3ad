"""What is known beside the log when a server failed. Everything is optional: a log alone is judged too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Circumstances:
    exit_code: int | None = None
    """Of the process we started; -9 and 137 both mean SIGKILL. None: unknown or still running. 0 proves nothing: vLLM
    0.32 ends with 0 after its engine was killed."""
    killed_by_us: str = ""
    """Why we ended it ourselves; empty if we did not."""
    was_ready: bool | None = None
    neighbour_starting: bool = False
    """Another server of ours was booting on the same card at the same time."""
    previous_trial_ended_s_ago: float | None = None
    foreign_pids: tuple[int, ...] = ()
    """Processes on the card that are neither this server's nor a planned neighbour's."""
    foreign_bytes: Mapping[int, int] = field(default_factory=dict)
    """pid -> device memory it holds, where NVML tells."""
    own_former_pids: tuple[int, ...] = ()
    """Pids of servers that we started earlier."""
    sibling_pids: tuple[int, ...] = ()
    """Processes of the servers that are meant to share the card."""
    host_free_bytes: int | None = None
    hang_s: float | None = None
    """Seconds without a token while requests ran, when the watchdog gave up."""
    in_flight: tuple[tuple[int, int], ...] = ()
    """(prompt, output) tokens of the requests that were running."""
    device_memory_bytes: float | None = None
    arguments: Mapping[str, Any] | None = None
    """The server's arguments by Python name, where the log does not print them."""
    workload_max_tokens: int | None = None
    """Longest prompt + output of the workload."""
    extra_logs: str = ""
    """Other texts that may name the cause: raylet, dmesg, the container's events."""

    @property
    def signal(self) -> int | None:
        """The signal that ended the process, or None."""
        if self.exit_code is None:
            return None
        if self.exit_code < 0:
            return -self.exit_code
        return self.exit_code - 128 if 128 < self.exit_code < 160 else None
