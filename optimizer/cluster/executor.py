"""The Executor protocol: plans go in, outcomes come out, in any order. One trial per slot at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, Self

from optimizer.errors import Unavailable
from optimizer.trial import Outcome, TrialPlan

WorkerState = Literal["starting", "idle", "running", "given up"]
NO_SLOT = "no_slot"
"""Kind of a Broken outcome that only says so: the plan never started."""


class NoSlotLeft(Unavailable):
    """Every slot was given up; the message says why. What is recorded is kept, and a resume goes on."""


@dataclass(frozen=True)
class Finished:
    """A plan and what came of it. A lost worker or node is `Broken`, never an exception."""

    plan: TrialPlan
    outcome: Outcome


class Executor(Protocol):
    """Runs plans on slots. Close it (or leave its `with` block): no process of ours remains."""

    @property
    def n_slots(self) -> int:
        """Plans that run at once: slots that still work, and no more than the limit."""
        ...

    @property
    def n_outstanding(self) -> int: ...

    @property
    def notices(self) -> tuple[str, ...]:
        """Slots that were given up, and why; for the user's eyes."""
        ...

    @property
    def worker_states(self) -> Mapping[str, WorkerState]:
        """Worker -> what it is at, as far as is known here. May be read from any thread."""
        ...

    def submit(self, plan: TrialPlan, delay_s: float = 0.0) -> None:
        """Queue a plan, to be started in `delay_s` at the earliest. Never blocks on the run itself.

        Raises NoSlotLeft when no slot works any more."""
        ...

    def limit(self, n_slots: int) -> None:
        """From now on at most so many at once, at least one; the servers of slots that fall out are stopped."""
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
