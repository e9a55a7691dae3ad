"""The simulator's scheduler against vLLM's own, step by step, over random scenarios."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer.engines.simulator.budgets import Budgets
from optimizer.engines.simulator.prefixes import content_keys
from optimizer.engines.simulator.scheduler import Scheduler
from optimizer.engines.simulator.sequence import Sequence
from optimizer.workload.trace import Trace

sys.path.insert(0, str(Path(__file__).parent))
from driving import drive

N_SCENARIOS = int(os.environ.get("N_VLLM_SCENARIOS", "80"))
MAX_MODEL_LEN = 640


def make_scenario(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    max_num_batched_tokens = rng.choice([16, 32, 48, 64, 128, 256, 2048])
    max_num_seqs = rng.choice([n for n in (2, 3, 8, 16, 64) if n <= max_num_batched_tokens])
    block = rng.choice([16, 16, 16, 32])
    arguments = {
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_num_seqs": max_num_seqs,
        "max_model_len": MAX_MODEL_LEN,
        "enable_prefix_caching": rng.random() < 0.7,
        "watermark": rng.choice([0.0, 0.0, 0.05, 0.2]),
        "long_prefill_token_threshold": rng.choice([0, 0, 16, 30, 100]),
        "long_prefill_token_threshold_adaptive": rng.random() < 0.2,
        "scheduler_reserve_full_isl": rng.random() < 0.7,
    }
    if rng.random() < 0.2:
        arguments["max_num_active_seqs"] = max(1, max_num_seqs // 2)
    if rng.random() < 0.2:
        arguments["max_num_scheduled_tokens"] = max(1, max_num_batched_tokens // rng.choice([2, 8]))
    prefix_block = rng.choice([16, 32, 48, 64])
    requests = []
    now = 0
    for index in range(rng.randint(3, 30)):
        now += rng.choice([0, 0, 0, 1, 5, 20])
        prompt = rng.randint(1, 300)
        n_ids = -(-prompt // prefix_block) if rng.random() < 0.5 else 0
        ids = [rng.choice([7, 8]) if i < 2 else 10 + i for i in range(n_ids)]
        if n_ids and prompt % prefix_block:
            ids[-1] = 1000 + prompt  # a partial trace block has an id of its own
        requests.append(
            {
                "id": index,
                "arrival": now,
                "prompt": prompt,
                "output": rng.choice([rng.randint(1, 120), rng.randint(1, 6)]),
                "prefix_ids": ids,
            }
        )
    least = -(-MAX_MODEL_LEN // block) + 1
    return {
        "arguments": arguments,
        "block_size": block,
        "n_blocks": least + rng.choice([0, 1, 4, 10, 40, 200]),
        "is_async": rng.random() < 0.6,
        "prefix_block": prefix_block,
        "budget_changes": {rng.randint(1, 60): rng.randint(1, 12), 100: 64} if seed % 3 == 0 else {},
        "requests": requests,
    }


def budgets_of(scenario: dict[str, Any]) -> Budgets:
    a = scenario["arguments"]
    return Budgets(
        max_num_batched_tokens=a["max_num_batched_tokens"],
        max_num_seqs=a["max_num_seqs"],
        max_model_len=a["max_model_len"],
        block_size=scenario["block_size"],
        max_num_active_seqs=a.get("max_num_active_seqs"),
        max_num_scheduled_tokens=a.get("max_num_scheduled_tokens"),
        long_prefill_token_threshold=a["long_prefill_token_threshold"],
        is_threshold_adaptive=a["long_prefill_token_threshold_adaptive"],
        reserves_full_prompt=a["scheduler_reserve_full_isl"],
        watermark=a["watermark"],
        is_async=scenario["is_async"],
        is_prefix_cached=a["enable_prefix_caching"],
    )


def sequences_of(scenario: dict[str, Any]) -> list[Sequence]:
    rows = scenario["requests"]
    ids = [np.array(r["prefix_ids"], np.int64) for r in rows]
    trace = Trace(
        arrival_s=np.array([float(r["arrival"]) for r in rows]),
        prompt_tokens=np.array([r["prompt"] for r in rows], np.int32),
        output_tokens=np.array([r["output"] for r in rows], np.int32),
        tenant=np.zeros(len(rows), np.int16),
        prefix_ids=np.concatenate(ids),
        prefix_start=np.concatenate([[0], np.cumsum([i.size for i in ids])]).astype(np.int64),
        prefix_block_tokens=scenario["prefix_block"],
    )
    keys = content_keys(trace, range(len(rows)), scenario["block_size"])
    return [
        Sequence(r["id"], r["prompt"], min(r["output"], MAX_MODEL_LEN - r["prompt"]), float(r["arrival"]), k)
        for r, k in zip(rows, keys, strict=True)
    ]


def simulate(scenario: dict[str, Any]) -> list[dict[str, Any]]:
    scheduler = Scheduler(budgets_of(scenario), scenario["n_blocks"])

    def change_budget() -> None:
        """A budget below the decodes running is the one way in which vLLM passes over a decode."""
        tokens = scenario["budget_changes"].get(scheduler.n_steps)
        if tokens is not None:
            scheduler.budgets = replace(scheduler.budgets, max_num_scheduled_tokens=tokens)

    requests = sequences_of(scenario)
    log = drive(scheduler, requests, change_budget)
    for request in requests:
        steps = [i for first, end in request.ranges for i in range(first, end)]
        assert len(steps) == request.limit, "every token is delivered once"
    return log


@pytest.mark.vllm
def test_every_step_equals_vllm(tmp_path: Path, vllm_python: str) -> None:
    scenarios = [make_scenario(seed) for seed in range(N_SCENARIOS)]
    (tmp_path / "in.json").write_text(json.dumps(scenarios))
    script = Path(__file__).with_name("vllm_oracle.py")
    command = [vllm_python, str(script), str(tmp_path / "in.json"), str(tmp_path / "out.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = json.loads((tmp_path / "out.json").read_text())
    n_steps = n_preemptions = 0
    for seed, (scenario, theirs) in enumerate(zip(scenarios, expected, strict=True)):
        ours = simulate(scenario)
        for number, (mine, vllm) in enumerate(zip(ours, theirs, strict=False)):
            vllm["tokens"] = {int(k): v for k, v in vllm["tokens"].items()}
            assert mine == vllm, f"scenario {seed}, step {number}: {scenario['arguments']}"
        assert len(ours) == len(theirs), f"scenario {seed}"
        n_steps += len(ours)
        n_preemptions += sum(len(e["victims"]) for e in ours)
    print(f"{N_SCENARIOS} scenarios, {n_steps} steps, {n_preemptions} preemptions: no difference")
    assert n_preemptions > 0
