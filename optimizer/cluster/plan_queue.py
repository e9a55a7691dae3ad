"""PlanQueue: plans that wait for a slot. A retry may wait a while first; a slot gets what its servers are up for."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass

from optimizer.engines.engine import boot_key
from optimizer.trial import TrialPlan


def key_of(plan: TrialPlan) -> str:
    """Equal for plans that one set of running servers can serve. On a real server nothing can be changed live."""
    return boot_key(plan.placement, frozenset())


@dataclass(frozen=True)
class _Entry:
    plan: TrialPlan
    key: str
    ready_s: float
    """Monotonic clock."""


class PlanQueue:
    """In order of arrival, except that booting is dear: see `take`."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, plan: TrialPlan, delay_s: float = 0.0) -> None:
        self._entries.append(_Entry(plan, key_of(plan), time.monotonic() + delay_s))

    def take(self, own_key: str, other_keys: Collection[str] = ()) -> TrialPlan | None:
        """The plan for a slot whose servers are up for `own_key`: the first for these, else the first that no other
        slot is up for, else the first. None if none is ready."""
        ready = [e for e in self._entries if e.ready_s <= time.monotonic()]
        own = [e for e in ready if e.key == own_key and not e.plan.is_fresh]
        free = [e for e in ready if e.plan.is_fresh or e.key not in other_keys]
        chosen = next(iter((*own, *free, *ready)), None)
        if chosen is None:
            return None
        self._entries.remove(chosen)
        return chosen.plan

    def until_ready_s(self) -> float | None:
        """Seconds until a plan may start; None if none waits."""
        if not self._entries:
            return None
        return max(0.0, min(e.ready_s for e in self._entries) - time.monotonic())

    def drain(self) -> tuple[TrialPlan, ...]:
        """Every plan, ready or not; none is left."""
        plans = tuple(e.plan for e in self._entries)
        self._entries.clear()
        return plans
