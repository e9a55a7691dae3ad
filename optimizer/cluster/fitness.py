"""Fitness: whether a slot's device can be trusted with another trial, by what its engine said of it."""

from __future__ import annotations

from optimizer.trial import Broken, Outcome

QUARANTINE, ORPHAN = "quarantine", "orphan"
MOST_ORPHANS = 2
"""Runs in a row that found somebody's leftovers on the device: after so many they are there to stay."""


class Fitness:
    """One slot's. A device that could not be proven clean is not used again; other failures say nothing about it."""

    def __init__(self) -> None:
        self._n_orphans = 0

    def judge(self, outcome: Outcome) -> str | None:
        """Why the slot must be given up after this outcome; None if it may go on."""
        kind = outcome.kind if isinstance(outcome, Broken) else ""
        self._n_orphans = self._n_orphans + 1 if kind == ORPHAN else 0
        if kind == QUARANTINE or self._n_orphans >= MOST_ORPHANS:
            assert isinstance(outcome, Broken)
            return f"its device is quarantined: {outcome.cause}"
        return None
