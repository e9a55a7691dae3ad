"""Small traces and plans for the replay's tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from optimizer.replay.plan import ReplayPlan, Target
from optimizer.workload.trace import Trace

VOCABULARY = 512


def trace_of(
    arrival_s: Any, prompt: Any = 40, output: Any = 5, blocks: list[list[int]] | None = None, **more: Any
) -> Trace:
    """Lengths may be one number for all rows."""
    n = len(arrival_s)
    shared = {}
    if blocks is not None:
        shared = {
            "prefix_ids": np.array([i for row in blocks for i in row], np.int64),
            "prefix_start": np.concatenate([[0], np.cumsum([len(row) for row in blocks])]).astype(np.int64),
        }
    columns = {
        "arrival_s": np.asarray(arrival_s, np.float64),
        "prompt_tokens": np.broadcast_to(np.asarray(prompt, np.int32), n).copy(),
        "output_tokens": np.broadcast_to(np.asarray(output, np.int32), n).copy(),
        "tenant": np.zeros(n, np.int16),
    }
    return Trace(**{**columns, **shared, **more})


def target_of(url: str, **more: Any) -> Target:
    return Target(**{"instance": "a", "url": url, "model": "m", "tenants": ("default",), **more})


def plan_of(trace: Trace, *targets: Target, **more: Any) -> ReplayPlan:
    return ReplayPlan(
        **{"trace": trace, "n_warmup": 0, "time_limit_s": 30.0, "targets": targets, "vocabulary": VOCABULARY, **more}
    )
