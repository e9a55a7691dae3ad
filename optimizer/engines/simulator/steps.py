"""StepRecord: one engine step as a log keeps it, and the log's file: JSON lines, one object a step.

The simulator writes such logs; whoever times a real engine's steps can write one too, and learn from it (`fit`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from optimizer.errors import UserError


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step that scheduled at least one token. Raises ValueError for a time or a count that is none.

    What decides its time is required; the rest is None where it was not seen."""

    index: int
    seconds: float
    """From its start on an idle device to its end."""
    prefills: tuple[tuple[int, int], ...]
    """(tokens computed now, tokens before) of every request that prefills in it."""
    n_decodes: int
    contexts: tuple[int, ...]
    """Tokens attended to by all its decodes together, one sum for each distinct attention window of the model."""
    n_sampled: int | None = None
    """Requests that get a token; None: the decodes, and every prefill."""
    tp: int = 1
    end_s: float | None = None
    """On the load's clock."""
    n_running: int | None = None
    n_waiting: int | None = None
    n_free_blocks: int | None = None
    n_preempted: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"seconds {self.seconds!r} is not above 0")
        if self.n_decodes < 0 or any(now < 1 or before < 0 for now, before in self.prefills):
            raise ValueError("tokens and decodes are counts")
        if not self.n_decodes and not self.prefills:
            raise ValueError("a step without a token")
        if self.tp < 1:
            raise ValueError(f"tp {self.tp} is below 1")

    @property
    def n_prefill_tokens(self) -> int:
        return sum(now for now, _ in self.prefills)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def step_of(fields: Mapping[str, Any]) -> StepRecord:
    """Raises ValueError, KeyError or TypeError for an object that is no step; unknown fields are left out."""
    known = {name: fields[name] for name in StepRecord.__dataclass_fields__ if fields.get(name) is not None}
    known["prefills"] = tuple((int(now), int(before)) for now, before in known.get("prefills", ()))
    known["contexts"] = tuple(int(c) for c in known.get("contexts", ()))
    known["seconds"] = float(fields["seconds"])
    known.setdefault("index", 0)
    known.setdefault("n_decodes", 0)
    return StepRecord(**known)


def lines_of(steps: Iterable[StepRecord]) -> Iterator[str]:
    return (json.dumps(step.to_json(), allow_nan=False) + "\n" for step in steps)


def read_steps(path: Path) -> tuple[StepRecord, ...]:
    """A log in JSON lines. Raises UserError that names the file, the line and what is wrong with it."""
    found: list[StepRecord] = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    found.append(_parsed(line, path, number, len(found)))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no text"
        raise UserError(f"{path}: {reason}; give a step log as JSON lines") from None
    if not found:
        raise UserError(f"{path}: holds no step; give a step log as JSON lines, one engine step a line")
    return tuple(found)


def _parsed(line: str, path: Path, number: int, index: int) -> StepRecord:
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("is no object")
        return step_of({"index": index, **fields})
    except KeyError as error:
        raise UserError(f"{path}, line {number}: {error.args[0]!r} is missing; a step has seconds, prefills, n_decodes"
                        " and contexts") from None  # fmt: skip
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}, line {number}: not a step ({error}); mend or remove the line") from None
