"""Endpoint: one server that requests can be sent to, whoever started it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from optimizer.errors import EngineFailed


def nobody() -> tuple[int, ...]:
    """Processes of a server on another machine, or of one that is not ours to look at."""
    return ()


def alive() -> EngineFailed | None:
    """What is known of the death of a server that we did not start: nothing."""
    return None


@dataclass(frozen=True)
class Endpoint:
    """Where a server is reached, and what is known about it."""

    name: str
    url: str
    model: str
    """The name it serves the model under."""
    tenants: tuple[str, ...]
    max_num_seqs: int | None = None
    """None where it is not known."""
    pids: Callable[[], Iterable[int]] = nobody
    """Its processes now."""
    failure: Callable[[], EngineFailed | None] = alive
    """Why it is dead; None while it lives."""
    api_key_variable: str = ""
    """NAME of the environment variable that holds its key."""
    log_path: Path | None = None
    """Where its log grows, if it is ours."""
