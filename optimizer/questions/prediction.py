"""What a change would do, by simulation: the recorded requests of a load replayed with and without it.

Never a measurement. Both sides are simulated, so that the simulator's own error mostly falls out of the comparison.
Servers that share a card are simulated together, each with the requests that it got: alone it would look far better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from objectives.measurement import Measurement, PhaseMeasurement
from objectives.metric import compute_metrics
from optimizer.engines.engine import Instance, LoadPlan, Placement, Sharing
from optimizer.engines.simulator.engine import SimulatedEngine, SimulatorSpec
from optimizer.errors import EngineFailed, OptimizerError
from optimizer.questions.answer import Answer, Change
from optimizer.questions.diagnosis import Diagnosis
from optimizer.questions.of_phase import Server, own_part
from optimizer.workload.trace import Trace
from search_spaces.config import Config

MOST_PREDICTED = 6
"""Changes a server that are simulated: each costs tenths of a second."""
Figures = Mapping[str, float | None]
MOST_REQUESTS = 1500
"""Of a load that are replayed: a prediction must cost a second, not a minute."""
SHOWN = ("ttft_p99_ms", "itl_p99_ms", "preemptions_per_request", "requests_per_s_per_gpu")


@dataclass(frozen=True)
class Beside:
    """The other servers of its card, each with its tenants, and how they share it."""

    servers: tuple[Server, ...] = ()
    sharing: Sharing = "exclusive"


ALONE = Beside()


def predict(
    changes: Sequence[Change], server: Server, phase: PhaseMeasurement, beside: Beside = ALONE
) -> tuple[Change, ...]:
    """The changes with their predicted figures; as they came where they cannot be simulated."""
    if not changes or server.model is None or server.gpu is None or server.gpu.is_cpu:
        return tuple(changes)
    now = _figures(server, dict(server.config), phase, beside)
    if now is None or isinstance(now, str):
        return tuple(changes)
    return tuple(_predicted(change, now, server, phase, beside) for change in changes)


def with_predictions(
    found: Diagnosis, server: Server, phase: PhaseMeasurement, most: int = MOST_PREDICTED, beside: Beside = ALONE
) -> Diagnosis:
    """The same with figures beside its first `most` changes. Equal changes are simulated once."""
    first = predict(found.changes[:most], server, phase, beside)
    done = {(change.name, str(change.value)): change for change in first}

    def with_figures(changes: Sequence[Change]) -> tuple[Change, ...]:
        return tuple(done.get((c.name, str(c.value)), c) for c in changes)

    answers = tuple(_reconciled(replace(a, changes=with_figures(a.changes))) for a in found.answers)
    lines = tuple(replace(line, changes=with_figures(line.changes)) for line in found.checklist.lines)
    spikes = replace(found.spikes, changes=with_figures(found.spikes.changes))
    return replace(found, answers=answers, checklist=replace(found.checklist, lines=lines), spikes=spikes)


def _reconciled(answer: Answer) -> Answer:
    """An answer that rests on changes of which none gains anything by simulation says so, and is less sure, unless it
    rests on what was measured: trouble that was seen, or what other trials did."""
    if answer.question < 4 or not answer.changes or not all(c.is_in_vain for c in answer.changes):
        return answer
    tried = ", ".join(f"{c.name} = {c.value}" for c in answer.changes)
    text = f"{answer.text}; by simulation {tried} gains nothing at this load, though"
    verdict = "balanced" if answer.verdict == "faster" else answer.verdict
    return replace(answer, text=text, verdict=verdict, confidence="high" if answer.confidence == "high" else "low")


def _predicted(change: Change, now: Figures, server: Server, phase: PhaseMeasurement, beside: Beside) -> Change:
    then = _figures(server, {**server.config, change.name: change.value}, phase, beside)
    if isinstance(then, str):
        return replace(change, refused=then)
    if then is None:
        return change
    both = {name: (a, b) for name in SHOWN if (a := now.get(name)) is not None and (b := then.get(name)) is not None}
    return replace(change, predicted=both)


def _figures(
    server: Server, config: Mapping[str, Any], phase: PhaseMeasurement, beside: Beside
) -> Figures | str | None:
    """A string says why it does not start."""
    assert server.model is not None and server.gpu is not None
    engine = SimulatedEngine(SimulatorSpec(server.model, server.gpu, noise=0.0))
    instances = [_instance(server, config), *(_instance(x, x.config) for x in beside.servers)]
    try:
        report = engine.boot(Placement(tuple(instances), beside.sharing), 0)
    except EngineFailed as error:
        return f"it does not start: {error.cause}" if error.is_config_fault else None
    except OptimizerError:
        return None
    try:
        again = engine.replay(_plan(phase, [t for x in instances for t in x.tenants]))
    except OptimizerError:
        return None
    finally:
        engine.stop()
    own = {phase.load: own_part(again, server)}
    metrics = compute_metrics(Measurement(own, True, engine.identity, report.kv_tokens))
    return {name: metrics.get(f"{phase.load}_{name}") for name in SHOWN}


def _instance(server: Server, config: Mapping[str, Any]) -> Instance:
    return Instance(server.name, Config(dict(config)), server.tenants or ("default",))


def _plan(phase: PhaseMeasurement, tenants: Sequence[str]) -> LoadPlan:
    """The first of the requests of these tenants; of everybody where it is one server's own load."""
    is_shared = tuple(tenants) != ("default",)
    records = sorted((r for r in phase.records if not is_shared or r.tenant in tenants), key=lambda r: r.scheduled_s)
    records = records[:MOST_REQUESTS]
    trace = Trace(
        np.array([r.scheduled_s for r in records]),
        np.array([r.prompt_tokens for r in records], np.int32),
        np.array([max(r.asked_output_tokens, 1) for r in records], np.int32),
        np.array([tenants.index(r.tenant) if is_shared else 0 for r in records], np.int16),
        tuple(tenants),
    )
    return LoadPlan(phase.load, trace, 0, trace.rate_per_s, phase.end_s * 3 + 60.0)
