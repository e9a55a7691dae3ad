"""A sign: a text that vLLM, PyTorch or the machine prints when something failed, and what it means."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "weights",
    "kv_capacity",
    "runtime_peak",
    "arguments",
    "neighbour",
    "orphan",
    "profiling_race",
    "port",
    "host_ram",
    "killed",
    "hang",
    "model_missing",
    "version",
    "client",
    "unknown",
]
Phase = Literal["config", "load", "kv_alloc", "warmup", "graph_capture", "serving"]

Rank = Literal["cause", "report", "consequence"]
"""`cause` beats whatever else was raised. A `report` may be the echo of something raised before it, so it counts only
when it comes first. A `consequence` counts only when nothing else is there."""


@dataclass(frozen=True)
class Sign:
    name: str
    kind: Kind
    pattern: re.Pattern[str]
    cause: str
    """One line; `{name}` stands for a named group of the pattern."""
    phase: Phase | None = None
    """Where the text alone tells it; else traceback and progress do."""
    is_config_fault: bool = False
    rank: Rank = "cause"
    is_vague: bool = False
    """A text that many failures share: a plainer one of the same failure says what it was."""
    is_bare: bool = False
    """Found in lines without a level that begin with no exception either: shells, kernel, raylet, argparse."""
    is_quiet: bool = False
    """Counts at INFO and WARNING too."""


def sign(name: str, kind: Kind, pattern: str, cause: str, phase: Phase | None = None, **marks: object) -> Sign:
    return Sign(name, kind, re.compile(pattern), cause, phase, **marks)  # type: ignore[arg-type]
