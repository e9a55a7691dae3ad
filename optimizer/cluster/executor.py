"""The Executor protocol: plans go in, outcomes come out, in any order. One trial per slot at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self

from optimizer.trial import Outcome, TrialPlan


@dataclass(frozen=True)
class Finished:
    """A plan and what came of it. A lost worker or node is `Broken`, never an exception."""

    plan: TrialPlan
    outcome: Outcome


class Executor(Protocol):
    """Runs plans on slots. Close it (or leave its `with` block): no process of ours remains."""

    @property
    def n_slots(self) -> int: ...

    @property
    def n_outstanding(self) -> int: ...

    def submit(self, plan: TrialPlan) -> None:
        """Queue a plan. Never blocks on the run itself."""
        ...

    def wait(self, timeout_s: float) -> tuple[Finished, ...]:
        """Whatever finished, waiting at most `timeout_s` for the first. Empty on time-out, or with none outstanding."""
        ...

    def cancel_all(self) -> None:
        """Forget and interrupt everything outstanding."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
