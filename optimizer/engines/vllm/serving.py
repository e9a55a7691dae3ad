"""Serving: a set of servers that is up, whoever started them: emptied between loads, loaded, sampled."""

from __future__ import annotations

import time
import uuid

import numpy as np

from objectives.measurement import EngineSample, PhaseMeasurement
from optimizer.engines.engine import LoadPlan
from optimizer.engines.vllm.endpoint import Endpoint
from optimizer.engines.vllm.http import reset_prefix_cache
from optimizer.engines.vllm.loading import LoadContext, drive
from optimizer.engines.vllm.metrics import scrape

RESET_WITHIN_S = 5.0


class Serving:
    """Remembers the pace of earlier loads, so that the client is given enough processes for the next."""

    def __init__(self, context: LoadContext, *, is_ours: bool = True) -> None:
        self._context, self._is_ours = context, is_ours
        self._messages_per_s: float | None = None
        self._salt: str | None = None

    def reset(self) -> None:
        """Empty prefix caches. Where a server has no such endpoint, or is not ours, prompts get a fresh `cache_salt`,
        which no block of an earlier load was hashed with."""
        is_empty = self._is_ours and all(_is_reset(e) for e in self._context.endpoints)
        self._salt = None if is_empty else uuid.uuid4().hex

    def replay(self, plan: LoadPlan) -> PhaseMeasurement:
        phase = drive(plan, self._context, self._salt, self._messages_per_s)
        self._messages_per_s = busiest_second(phase)
        return phase

    def sample(self) -> tuple[EngineSample, ...]:
        return tuple(_sample(e) for e in self._context.endpoints)


def _is_reset(endpoint: Endpoint) -> bool:
    """Blocks are held for a moment after the last answer, so it is asked again for a while."""
    until = time.monotonic() + RESET_WITHIN_S
    while True:
        found = reset_prefix_cache(endpoint.url, endpoint.api_key_variable)
        if found is not False or time.monotonic() > until:
            return found is True
        time.sleep(0.1)


def _sample(endpoint: Endpoint) -> EngineSample:
    seen = scrape(endpoint.url, api_key_variable=endpoint.api_key_variable)
    if seen is None:
        return EngineSample(time.monotonic(), endpoint.name, None, None, None)
    return EngineSample(
        seen.time_s, endpoint.name, seen.n_running, seen.n_waiting, seen.kv_usage, seen.n_preemptions_total
    )


def busiest_second(phase: PhaseMeasurement) -> float | None:
    """Most messages that came in one second; None without any."""
    times = [r.token_times_s for r in phase.records if r.token_times_s.size]
    if not times:
        return None
    joined = np.concatenate(times)
    return float(np.bincount((joined - joined.min()).astype(np.int64)).max())
