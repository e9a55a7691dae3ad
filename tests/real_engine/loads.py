"""Small loads for a tiny model on two cores: a few seconds each."""

from __future__ import annotations

import numpy as np

from objectives.measurement import Load
from optimizer.engines.engine import Engine, Instance, LoadPlan, Placement
from optimizer.trial import Broken, Measured, TrialPlan, run_trial
from optimizer.workload.trace import Trace
from search_spaces.config import Config


def trace(n: int, span_s: float, *, prompt: tuple[int, int] = (20, 120), output: tuple[int, int] = (4, 24)) -> Trace:
    """`n` requests over `span_s`, evenly, of uniform lengths; one tenant."""
    rng = np.random.default_rng(n)
    return Trace(
        np.linspace(0.0, span_s, n),
        rng.integers(*prompt, n).astype(np.int32),
        rng.integers(*output, n).astype(np.int32),
        np.zeros(n, np.int16),
    )


def plan(of: Trace, load: Load = "steady", time_limit_s: float = 120.0) -> LoadPlan:
    return LoadPlan(load, of, 0, of.rate_per_s, time_limit_s)


def saturated(of: Trace) -> LoadPlan:
    return plan(of.at(np.zeros(len(of))), "saturation")


def one_server(config: Config) -> Placement:
    return Placement((Instance("server", config, ("default",)),))


def measured(of: TrialPlan, engine: Engine) -> Measured:
    """As a study does it: a run that the machine broke (the client read late) is made again, at most twice."""
    for _ in range(3):
        outcome = run_trial(of, engine)
        if not isinstance(outcome, Broken):
            break
        print(outcome.cause)
    assert isinstance(outcome, Measured), outcome
    return outcome
