"""Finding: one thing that the data of a load say about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["invalid", "disturbed", "note"]
SEVERITIES: tuple[Severity, ...] = ("invalid", "disturbed", "note")


@dataclass(frozen=True)
class Finding:
    severity: Severity
    """`invalid`: the figures are worth nothing. `disturbed`: the machine was not itself, so measure again; a machine
    that is always so has to be lived with. `note`: to be told."""
    kind: str
    """`client`, `cache`, `work`; `throttled`, `neighbour`, `cold`; `leak`, `kv_capacity`, `api_server`."""
    text: str

    @property
    def rank(self) -> int:
        """The gravest is 0."""
        return SEVERITIES.index(self.severity)
