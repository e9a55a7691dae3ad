"""Which key or column holds what, by the names that public traces and exports use."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from optimizer.workload.reading import TimeUnit

Role = Literal["time", "prompt", "output", "blocks", "session", "request", "tenant"]

NAMES: dict[Role, str] = {
    "time": "timestamp arrivaltime arrivaltimestamp arrivedat arrival time starttime startedat createdat created ts t",
    "prompt": "inputlength contexttokens prompttokens inputtokens requesttokens numprefilltokens promptlength "
    "promptlen inputlen isl in",
    "output": "outputlength generatedtokens completiontokens outputtokens responsetokens numdecodetokens outputlen "
    "osl out",
    "blocks": "hashids",
    "session": "sessionid conversationid chatid session",
    "request": "requestid customid id",
    "tenant": "tenant",
}
"""role -> names in order of preference; compared without case, spaces and punctuation."""

_ROLE_OF: dict[str, tuple[Role, int]] = {
    name: (role, rank) for role, names in NAMES.items() for rank, name in enumerate(names.split())
}
_UNIT_SUFFIX = re.compile(
    r"[_\s(\[-]+(s|secs?|seconds?|ms|msecs?|millis|milliseconds?|us|micros|microseconds?|ns|nanos)[)\]]*$"
)


@dataclass(frozen=True)
class Fields:
    """role -> the file's own key or column for it. `unit` is what the time column's name says, if anything."""

    of: dict[Role, str]
    unit: TimeUnit | None = None

    @property
    def missing(self) -> tuple[Role, ...]:
        """Roles without which a row is no request."""
        return tuple(r for r in ("time", "prompt", "output") if r not in self.of)


def find_fields(names: Iterable[str]) -> Fields:
    """Match names to roles; of several names for one role the preferred one wins."""
    best: dict[Role, tuple[int, str]] = {}
    units: dict[str, TimeUnit | None] = {}
    for name in names:
        bare, units[name] = _split_unit(name)
        role, rank = _ROLE_OF.get(bare, (None, 0))
        if role and (role not in best or rank < best[role][0]) and (units[name] is None or role == "time"):
            best[role] = (rank, name)
    of = {role: name for role, (_, name) in best.items()}
    return Fields(of, units[of["time"]] if "time" in of else None)


def _split_unit(name: str) -> tuple[str, TimeUnit | None]:
    """`arrival_time_ms` -> (`arrivaltime`, `ms`)."""
    text = name.strip().lower()
    match = _UNIT_SUFFIX.search(text)
    unit: TimeUnit | None = None
    if match:
        text, word = text[: match.start()], match.group(1)
        unit = "ms" if word.startswith(("ms", "mil")) else "us" if word[0] in "um" else "ns" if word[0] == "n" else "s"
    return re.sub(r"[^a-z0-9]", "", text), unit
