"""Records and phases for tests, built from what a client would have seen."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from objectives.measurement import Load, Measurement, PhaseMeasurement, RequestRecord


def record(scheduled_s: float, first_s: float, gaps_s: Sequence[float] = (), **fields: Any) -> RequestRecord:
    """An answered request: first token at `first_s`, then one message after each gap."""
    times = first_s + np.concatenate([[0.0], np.cumsum(np.asarray(gaps_s, np.float64))])
    asked = fields.pop("asked_output_tokens", times.size)
    return RequestRecord(
        request_id=fields.pop("request_id", 0),
        tenant=fields.pop("tenant", "default"),
        scheduled_s=scheduled_s,
        sent_s=fields.pop("sent_s", scheduled_s),
        prompt_tokens=fields.pop("prompt_tokens", 100),
        asked_output_tokens=asked,
        token_times_s=times,
        **fields,
    )


def failed(scheduled_s: float, reason: str = "HTTP 500", **fields: Any) -> RequestRecord:
    """A request that got no token."""
    fields = {"tenant": "default", "prompt_tokens": 100, "asked_output_tokens": 50, "request_id": 0} | fields
    return RequestRecord(
        scheduled_s=scheduled_s, sent_s=scheduled_s, token_times_s=np.empty(0), failure=reason, **fields
    )


def phase(records: Sequence[RequestRecord], load: Load = "steady", **fields: Any) -> PhaseMeasurement:
    arrivals = [r.scheduled_s for r in records] or [0.0]
    last = max([r.token_times_s[-1] for r in records if r.token_times_s.size], default=max(arrivals))
    return PhaseMeasurement(
        load=load,
        records=tuple(records),
        n_gpus=fields.pop("n_gpus", 1),
        offered_per_s=fields.pop("offered_per_s", None),
        counted_from_s=fields.pop("counted_from_s", min(arrivals)),
        counted_until_s=fields.pop("counted_until_s", max(arrivals)),
        end_s=fields.pop("end_s", float(last)),
        **fields,
    )


def measurement(*phases: PhaseMeasurement) -> Measurement:
    return Measurement({p.load: p for p in phases}, is_simulated=True, engine="test 0")


def served_by_slots(
    arrival_s: Sequence[float],
    output_tokens: Sequence[int],
    n_slots: int,
    *,
    prefill_s: float = 0.05,
    token_s: float = 0.02,
    tenant: str = "default",
) -> tuple[RequestRecord, ...]:
    """First come, first served by `n_slots` equal slots: the plainest queue with a known capacity."""
    free_s = [0.0] * n_slots
    found = []
    for i, (arrived, n) in enumerate(zip(arrival_s, output_tokens, strict=True)):
        start = max(arrived, heapq.heappop(free_s))
        found.append(record(arrived, start + prefill_s, [token_s] * (n - 1), request_id=i, tenant=tenant))
        heapq.heappush(free_s, float(found[-1].token_times_s[-1]))
    return tuple(found)
