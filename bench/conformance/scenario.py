"""A scenario: one engine's arguments, its KV blocks, and requests that arrive after so many steps.

Plain integers only, so that it can be printed, sent to the oracle and pasted into a test.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from optimizer.engines.simulator.budgets import Budgets
from optimizer.engines.simulator.prefixes import content_keys
from optimizer.engines.simulator.sequence import Sequence
from optimizer.workload.trace import Trace


@dataclass(frozen=True)
class Request:
    """Lengths in tokens; joins before the first schedule() at which `arrival` non-empty steps were scheduled, or at
    once when nothing is left to do."""

    id: int
    arrival: int
    prompt: int
    output: int
    """max_tokens; the model's length can end it earlier."""
    prefix_ids: tuple[int, ...] = ()
    """Names of its leading `prefix_block` tokens each; equal names are equal tokens, the rest is its own."""


@dataclass(frozen=True)
class Scenario:
    """What both sides run."""

    arguments: Mapping[str, Any]
    """vLLM's engine arguments, by its names."""
    block_size: int
    n_blocks: int
    is_async: bool
    prefix_block: int
    requests: tuple[Request, ...]
    budget_changes: Mapping[int, int] = field(default_factory=dict)
    """After so many non-empty steps, so many tokens a step. Below the decodes running it is the one way in which vLLM
    passes over a decode."""

    @property
    def max_model_len(self) -> int:
        return int(self.arguments["max_model_len"])

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def least_blocks(max_model_len: int, block_size: int) -> int:
    """Below this vLLM does not boot: the null block and one request of the greatest length."""
    return -(-max_model_len // block_size) + 1


def budgets_of(scenario: Scenario) -> Budgets:
    a = scenario.arguments
    return Budgets(
        max_num_batched_tokens=a["max_num_batched_tokens"],
        max_num_seqs=a["max_num_seqs"],
        max_model_len=a["max_model_len"],
        block_size=scenario.block_size,
        max_num_active_seqs=a.get("max_num_active_seqs"),
        max_num_scheduled_tokens=a.get("max_num_scheduled_tokens"),
        long_prefill_token_threshold=a.get("long_prefill_token_threshold", 0),
        is_threshold_adaptive=a.get("long_prefill_token_threshold_adaptive", False),
        is_prefill_chunked=a.get("enable_chunked_prefill", True),
        reserves_full_prompt=a.get("scheduler_reserve_full_isl", True),
        watermark=a.get("watermark", 0.0),
        is_async=scenario.is_async,
        is_prefix_cached=a.get("enable_prefix_caching", True),
    )


def sequences_of(scenario: Scenario) -> list[Sequence]:
    """The requests as the simulated engine would hold them, shared prefixes included."""
    rows = scenario.requests
    ids = [np.array(r.prefix_ids, np.int64) for r in rows]
    trace = Trace(
        arrival_s=np.array([float(r.arrival) for r in rows]),
        prompt_tokens=np.array([r.prompt for r in rows], np.int32),
        output_tokens=np.array([r.output for r in rows], np.int32),
        tenant=np.zeros(len(rows), np.int16),
        prefix_ids=np.concatenate(ids),
        prefix_start=np.concatenate([[0], np.cumsum([i.size for i in ids])]).astype(np.int64),
        prefix_block_tokens=scenario.prefix_block,
    )
    prefixes = content_keys(trace, range(len(rows)), scenario.block_size)
    most = scenario.max_model_len
    return [
        Sequence(r.id, r.prompt, min(r.output, most - r.prompt), float(r.arrival), p)
        for r, p in zip(rows, prefixes, strict=True)
    ]
