"""What a running study says about itself. The study emits events; views (terminal, plain lines, JSON) listen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Listener = Callable[["Event"], None]


@dataclass(frozen=True)
class Event:
    """Base: something happened. Every field is JSON-safe."""


@dataclass(frozen=True)
class Notice(Event):
    """A line for people: a choice that was made, and why."""

    text: str
    is_warning: bool = False


@dataclass(frozen=True)
class StageStarted(Event):
    """A stage of the study begins."""

    stage: str
    why: str


@dataclass(frozen=True)
class TrialStarted(Event):
    trial: int
    stage: str


@dataclass(frozen=True)
class TrialFinished(Event):
    """One trial came back, and how the study stands after it."""

    trial: int
    stage: str
    state: str
    """`measured`, `infeasible`, `stopped`, `broken`"""
    is_feasible: bool
    values: tuple[float, ...] | None
    reason: str
    """Empty if feasible, else which limit is missed or what failed."""
    n_done: int
    n_total: int
    n_feasible: int
    n_front: int
    hypervolume: float
    front: tuple[tuple[int, tuple[float, ...]], ...] = ()
    """(trial, values) of the current front."""
    seconds_left: float | None = None
    """Of the search; confirmations come after it."""
    label: str = ""
    """`current`, `vLLM defaults` or `safe` for a baseline."""


@dataclass(frozen=True)
class RunFinished(Event):
    """A run that is no trial came back: calibration, confirmation, rate search."""

    purpose: str
    n_done: int
    n_total: int
    detail: str = ""


@dataclass(frozen=True)
class StudyFinished(Event):
    """Nothing is left to do."""

    n_trials: int
    n_feasible: int
    n_front: int
    reason: str
    wall_s: float
    engine_s: float
    paths: tuple[str, ...] = field(default=())
