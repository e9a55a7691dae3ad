"""Replays to their end, for the replay's tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from optimizer.replay.client import Replay, ReplayResult
from optimizer.replay.plan import ReplayPlan
from tests.replay.streaming_peer import Peer, Request, Script, message
from tests.replay.traces import plan_of, target_of, trace_of


def replayed(plan: ReplayPlan) -> ReplayResult:
    with Replay(plan) as replay:
        return replay.result(60)


def against(script: Script, trace: Any = None, **more: Any) -> ReplayResult:
    with Peer(script) as peer:
        return replayed(plan_of(trace or trace_of([0.0]), target_of(peer.url), **more))


def wait_for(is_so: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


async def endless(request: Request) -> None:
    request.begin()
    for i in range(1, 10_000):
        request.write(message(i, request.n_prompt))
        await asyncio.sleep(0.01)
