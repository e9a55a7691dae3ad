"""Driving one load against running servers: client, watcher and watchdog together, until it drained or something died.

The client knows the requests, the watcher the servers' counters and the machine; neither can tell a dead or frozen
engine from a slow one alone. Here they are read together, five times a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from objectives.measurement import PhaseMeasurement
from optimizer.engines.engine import LoadPlan
from optimizer.engines.vllm.cold_kernels import ColdKernels
from optimizer.engines.vllm.devices import Devices
from optimizer.engines.vllm.endpoint import Endpoint
from optimizer.engines.vllm.finding import Finding
from optimizer.engines.vllm.findings import fault_of, findings_of
from optimizer.engines.vllm.http import health
from optimizer.engines.vllm.metrics import scrape
from optimizer.engines.vllm.phase import phase_of
from optimizer.engines.vllm.spec import HANG_AFTER_S
from optimizer.engines.vllm.watch import Watch, WatchLog
from optimizer.errors import EngineFailed
from optimizer.replay.client import Replay, ReplayResult
from optimizer.replay.keeping_up import processes_for
from optimizer.replay.plan import ReplayPlan, Target

LOOK_EVERY_S = 0.2
DRAIN_WITHIN_S = 20.0
"""What servers get to finish or abort what is still running when the client is done."""
CANCELLED_WITHIN_S = 5.0
DYING_S = 15.0
"""From the engine's death to the end of its front (vLLM 0.32 stops itself within about 5 s)."""
MESSAGES_PER_S_AND_STREAM = 50.0
"""A guess for a load whose pace is not known yet: 20 ms a token."""
HEAD_ROOM = 1.5
USUAL_SEQS = 256
"""Streams of a server whose limit is not known (vLLM 0.32 engine/arg_utils.py:2894)."""


@dataclass(frozen=True)
class LoadContext:
    """What is the same for every load of a set of servers that is up."""

    endpoints: tuple[Endpoint, ...]
    devices: Devices
    n_gpus: int
    vocabulary: int
    seed: int
    client_cores: tuple[int, ...]
    judge_hang: Callable[[str], EngineFailed]
    """Makes the error for a hang, with what logs and processes say."""
    kv_tokens: Mapping[str, int] = field(default_factory=dict)
    hang_after_s: float = HANG_AFTER_S


def drive(
    plan: LoadPlan, context: LoadContext, cache_salt: str | None, messages_per_s: float | None
) -> PhaseMeasurement:
    """Replay one load to its end. `messages_per_s`: the pace of an earlier load on these servers, if there was one.

    Raises EngineFailed when a server dies or hangs (everything in flight is cancelled then), and when what was measured
    is worth nothing: the client was behind, the cache was warm, other work was done."""
    with Replay(_replay_plan(plan, context, cache_salt, messages_per_s)) as replay:
        watch = Watch(
            context.endpoints,
            context.devices,
            replay.start_monotonic_s,
            client_pids=lambda: replay.pids,
            hang_after_s=context.hang_after_s,
        )
        watch.start()
        cold = ColdKernels(context.endpoints)
        try:
            _see_through(replay, watch, context, len(plan.trace) - plan.n_warmup, cold)
            result = replay.result()
            _drain(context.endpoints)
        finally:
            log = watch.stop()
    return _judged(plan, result, log, context, tuple(cold.findings()))


def _replay_plan(
    plan: LoadPlan, context: LoadContext, cache_salt: str | None, messages_per_s: float | None
) -> ReplayPlan:
    expected = expected_messages_per_s(plan, context.endpoints, messages_per_s)
    return ReplayPlan(
        trace=plan.trace,
        n_warmup=plan.n_warmup,
        time_limit_s=plan.time_limit_s,
        targets=tuple(
            Target(e.name, e.url, e.model, e.tenants, api_key_variable=e.api_key_variable) for e in context.endpoints
        ),
        vocabulary=context.vocabulary,
        seed=context.seed,
        cache_salt=cache_salt,
        style=plan.style,
        n_processes=processes_for(expected, max(len(context.client_cores), 1)),
        cores=context.client_cores,
    )


def _see_through(replay: Replay, watch: Watch, context: LoadContext, n_measured: int, cold: ColdKernels) -> None:
    """Until the replay is over; warm-up rows that outlast the measured ones are not waited for.

    Raises EngineFailed as soon as a server is dead or frozen."""
    while not replay.is_over():
        time.sleep(LOOK_EVERY_S)
        seen = replay.progress()
        if seen.time_s <= 0:
            cold.skip()
        if seen.n_measured_over >= n_measured:
            replay.release()
        failure = next((f for e in context.endpoints if (f := e.failure()) is not None), None)
        if failure is None and (hang := watch.hang(seen.n_open, seen.last_message_monotonic_s)) is not None:
            failure = context.judge_hang(hang)
        if failure is not None:
            raise _with_in_flight(failure, replay)


def _with_in_flight(failure: EngineFailed, replay: Replay) -> EngineFailed:
    """The failure with what was being served when it came: a single request may be what did it."""
    at_s = replay.progress().time_s
    replay.cancel("the server is gone")
    try:
        records = replay.result(CANCELLED_WITHIN_S).records
    except (TimeoutError, EngineFailed):
        return failure
    cut = [r for r in records if r.failure and r.sent_s <= at_s and not r.is_finished]
    if cut:
        largest = max(cut, key=lambda r: r.prompt_tokens + r.asked_output_tokens)
        sizes = f"the largest of {largest.prompt_tokens} + {largest.asked_output_tokens} tokens"
        failure.evidence += (f"{at_s:.1f} s into the load, {len(cut)} measured requests unanswered, {sizes}",)
    return failure


def _drain(endpoints: Sequence[Endpoint]) -> None:
    """Preemptions are only counted at the victim's next output, so counters are read once nothing runs any more."""
    until = time.monotonic() + DRAIN_WITHIN_S
    for endpoint in endpoints:
        while time.monotonic() < until:
            seen = scrape(endpoint.url, api_key_variable=endpoint.api_key_variable)
            if seen is None or not (seen.n_running or seen.n_waiting):
                break
            time.sleep(LOOK_EVERY_S)


def _judged(
    plan: LoadPlan, result: ReplayResult, log: WatchLog, context: LoadContext, cold: tuple[Finding, ...]
) -> PhaseMeasurement:
    phase = phase_of(plan, result, log, context.n_gpus, most_running(plan, context.endpoints))
    if plan.style == "chat":  # lengths are the model's own there, and the words of all prompts are alike
        return phase
    fault = _death(result, context.endpoints) or fault_of(phase, plan)
    if fault is not None:
        raise fault
    found = sorted((*findings_of(phase, plan, context.kv_tokens), *cold), key=lambda f: f.rank)
    disturbed = tuple(f.text for f in found if f.severity == "disturbed")
    return replace(phase, notes=tuple(f.text for f in found), disturbances=disturbed)


def most_running(plan: LoadPlan, endpoints: Sequence[Endpoint]) -> int | None:
    """Requests that the servers of this load's tenants run at once; None where one does not tell."""
    present = {plan.trace.tenants[i] for i in np.unique(plan.trace.tenant[plan.n_warmup :])}
    limits = [e.max_num_seqs for e in endpoints if present & set(e.tenants)]
    return None if None in limits else sum(n for n in limits if n is not None)


def _death(result: ReplayResult, endpoints: Sequence[Endpoint]) -> EngineFailed | None:
    """A server that died, or is dying: its front answers 500 and its health 503 for seconds after its engine's end."""
    until = time.monotonic() + (DYING_S if any(r.failure and not r.is_timed_out for r in result.records) else 0.0)
    while True:
        dead = next((f for e in endpoints if (f := e.failure()) is not None), None)
        if dead is not None or all(health(e.url, e.api_key_variable) for e in endpoints):
            return dead
        if time.monotonic() > until:
            sick = next(e.name for e in endpoints if not health(e.url, e.api_key_variable))
            return EngineFailed("killed", "serving", f"{sick}: says that its engine is dead", is_config_fault=False)
        time.sleep(LOOK_EVERY_S)


def expected_messages_per_s(plan: LoadPlan, endpoints: Sequence[Endpoint], seen_per_s: float | None) -> float:
    """How many messages a second the client must read: the pace seen before, else what arrives (steady, stress) or
    what the running sets can emit at 20 ms a token."""
    rows = plan.trace.output_tokens[plan.n_warmup :].astype(np.int64)
    span_s = float(plan.trace.arrival_s[-1]) if len(plan.trace) else 0.0
    n_streams = sum(e.max_num_seqs or USUAL_SEQS for e in endpoints)
    most = min(n_streams, rows.size) * MESSAGES_PER_S_AND_STREAM
    if seen_per_s is not None:
        most = max(seen_per_s * HEAD_ROOM, 1.0)
    if plan.load == "saturation" or span_s <= 0:
        return most
    return min(float(rows.sum()) / span_s * HEAD_ROOM, most) if seen_per_s is None else most
