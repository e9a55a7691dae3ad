"""Who has the card when: one instance alone, or several sharing it.

time-slice: contexts of different processes take turns; kernels of two never overlap. Slices are short (about 2 ms)
    against a step, so while k instances have a step to run, each progresses at 1/k of its own speed (the limit of
    round robin for short slices). The cost of switching is not modelled.
mps: kernels overlap. A step alone keeps shares c of the card's compute and b of its bandwidth busy; together all
    steps are stretched by max(1, sum of c, sum of b): the scarcer resource is split in proportion to demand. Losses by
    cache and shared-memory contention are not modelled, so MPS here is the optimistic end.

MIG is refused: its slices are other cards, to be simulated as such. Host time is stretched like device time.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from optimizer.engines.engine import Sharing
from optimizer.engines.simulator.replica import FOREVER, Replica
from optimizer.errors import UserError

Speed = Callable[[Seq[Replica]], float]
"""Busy replicas -> the factor on the speed of each (0..1]."""


def time_slice(busy: Seq[Replica]) -> float:
    return 1.0 / len(busy)


def mps(busy: Seq[Replica]) -> float:
    demands = [r.head_demand() for r in busy]
    return 1.0 / max(1.0, sum(c for c, _ in demands), sum(b for _, b in demands))


def speed_of(sharing: Sharing, n_instances: int) -> Speed:
    """Raises UserError for a way of sharing that cannot be simulated."""
    if sharing == "mig":
        raise UserError("sharing 'mig' is not simulated: name the MIG slice's own memory and rates as a GPU instead")
    if n_instances > 1 and sharing == "exclusive":
        raise UserError(f"{n_instances} instances cannot share a card exclusively; use time-slice or mps")
    return mps if sharing == "mps" else time_slice


def run(replicas: Seq[Replica], speed: Speed, start_s: float, limit_s: float, is_stepwise: bool = False) -> float:
    """Let virtual time pass until every measured request is answered, or `limit_s`. Returns the time it stopped."""
    now_s = start_s
    while any(r.n_open for r in replicas) and now_s < limit_s:
        for replica in replicas:
            replica.fill(now_s)
        busy = [r for r in replicas if r.pending]
        wake_s = min([r.next_arrival_s for r in replicas if not r.pending], default=FOREVER)
        if not busy:
            if wake_s == FOREVER:
                break
            now_s = wake_s
        elif len(busy) == 1:
            now_s = _run_alone(busy[0], now_s, min(wake_s, limit_s), is_stepwise)
        else:
            now_s = _run_together(busy, speed(busy), now_s, min(wake_s, limit_s))
    return min(now_s, limit_s) if any(r.n_open for r in replicas) else now_s


def _run_alone(replica: Replica, now_s: float, wake_s: float, is_stepwise: bool) -> float:
    """Until its step ends and the uniform steps after it, or until `wake_s`."""
    end_s = now_s + replica.head_left_s
    if end_s > wake_s:
        replica.head_left_s = end_s - wake_s
        return wake_s
    replica.complete(end_s)
    return end_s if is_stepwise else replica.coast(end_s, wake_s)


def _run_together(busy: Seq[Replica], speed: float, now_s: float, wake_s: float) -> float:
    """Until the first step ends, or until `wake_s`."""
    first = min(busy, key=_left)
    end_s = now_s + first.head_left_s / speed
    if end_s > wake_s:
        for replica in busy:
            replica.head_left_s -= (wake_s - now_s) * speed
        return wake_s
    done_s = first.head_left_s
    for replica in busy:
        replica.head_left_s = max(replica.head_left_s - done_s, 0.0)
    first.complete(end_s)
    return end_s


def _left(replica: Replica) -> float:
    return replica.head_left_s
