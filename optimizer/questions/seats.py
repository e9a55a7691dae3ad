"""Seats: how many sequences may run at once, and whether more of them would do anything."""

from __future__ import annotations

from optimizer.questions.answer import Change
from optimizer.questions.physics import is_compute_full
from optimizer.questions.pool import kv_demand
from optimizer.questions.processes import limiting_roles
from optimizer.questions.situation import Situation
from search_spaces.vllm import MAX_SEQS

FULL_KV = 0.95
"""Use of the KV cache at its most from which on the cache binds, not the seats."""


def seats_of(s: Situation) -> int | None:
    return s.whole("max_num_active_seqs") or s.whole("max_num_seqs")


def are_seats_taken(s: Situation) -> bool:
    """Every seat was taken at some time, while the KV cache was not full."""
    seats, has_room = seats_of(s), s.kv_usage is None or s.kv_usage.most < FULL_KV
    return has_room and seats is not None and s.running is not None and s.running.most >= seats * s.n_replicas


def more_seats(s: Situation) -> Change | None:
    """Twice the seats, as far as the pool and the token budget go; None where more of them only lengthen steps: the
    card's arithmetic or a process is full already."""
    seats, demand = s.whole("max_num_seqs"), kv_demand(s)
    if seats is None or is_compute_full(s) or limiting_roles(s):
        return None
    ends = [2 * seats, MAX_SEQS, s.whole("max_num_batched_tokens") or MAX_SEQS]
    ends += [int(demand.n_fit / s.n_replicas)] if demand is not None else []
    if min(ends) <= seats:
        return None
    return Change(
        "max_num_seqs", min(ends), "requests wait while memory is free", "throughput rises, TTFT falls, ITL rises"
    )
