"""Clients of the streaming server, each run as a program of its own by `bench.replay_client`.

    python -m bench.stream_clients ours|plain N_STREAMS N_PROCESSES

Prints one line of JSON: request hash -> when each message was read (CLOCK_MONOTONIC), and the P99 send lag.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from typing import Any

import numpy as np

from bench.streaming_server import PORT
from optimizer.replay.bodies import Bodies
from optimizer.replay.client import Replay
from optimizer.replay.plan import ReplayPlan, Target
from optimizer.workload.trace import Trace

PROMPT_TOKENS, TOKENS = 64, 300
ARRIVE_WITHIN_S = 1.0


def arrivals(n_streams: int) -> Trace:
    return Trace(
        arrival_s=np.linspace(0.0, ARRIVE_WITHIN_S, n_streams),
        prompt_tokens=np.full(n_streams, PROMPT_TOKENS, np.int32),
        output_tokens=np.full(n_streams, TOKENS, np.int32),
        tenant=np.zeros(n_streams, np.int16),
    )


def plan_of(trace: Trace, n_processes: int = 1) -> ReplayPlan:
    target = Target("bench", f"http://127.0.0.1:{PORT}", "m", trace.tenants)
    return ReplayPlan(trace, 0, 300.0, (target,), vocabulary=32_000, n_processes=n_processes)


def ours(trace: Trace, n_processes: int) -> dict[str, Any]:
    plan = plan_of(trace, n_processes)
    with Replay(plan) as replay:
        result = replay.result()
    failed = [r.failure for r in result.records if r.failure]
    if failed:
        raise SystemExit(f"{len(failed)} requests failed: {failed[0]}")
    bodies = Bodies(plan)
    times = {
        hashlib.sha256(bodies.body(r.request_id)).hexdigest(): (r.token_times_s + replay.start_monotonic_s).tolist()
        for r in result.records
    }
    return {"times": times, "send_lag_p99_ms": result.client.send_lag_p99_ms, "fault": result.client.fault}


def plain(trace: Trace, _: int) -> dict[str, Any]:
    """aiohttp as its manual shows it, each event through json.loads."""
    return asyncio.run(_plain(trace))


async def _plain(trace: Trace) -> dict[str, Any]:
    import aiohttp

    times: dict[str, list[float]] = {}
    lags_s: list[float] = []
    begin_s = time.monotonic() + 0.1

    async def ask(row: int, body: bytes) -> None:
        due_s = begin_s + float(trace.arrival_s[row])
        await asyncio.sleep(due_s - time.monotonic())
        lags_s.append(time.monotonic() - due_s)
        stamps = times.setdefault(hashlib.sha256(body).hexdigest(), [])
        async with session.post(f"http://127.0.0.1:{PORT}/v1/completions", data=body) as response:
            async for line in response.content:
                if line.startswith(b"data: {") and json.loads(line[6:])["choices"]:
                    stamps.append(time.monotonic())

    fields = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    bodies = [
        json.dumps(fields | {"prompt": [row] * PROMPT_TOKENS, "max_tokens": n}).encode()
        for row, n in enumerate(trace.output_tokens.tolist())
    ]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(ask(row, body) for row, body in enumerate(bodies)))
    return {"times": times, "send_lag_p99_ms": 1e3 * float(np.percentile(lags_s, 99))}


def main() -> None:
    name, n_streams, n_processes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    print(json.dumps({"ours": ours, "plain": plain}[name](arrivals(n_streams), n_processes)))


if __name__ == "__main__":
    main()
