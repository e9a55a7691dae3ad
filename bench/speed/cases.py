"""What `bench.simulator_speed` runs: requests, card, model and one configuration each, and the bars."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from optimizer.engines.engine import Instance, LoadPlan, Placement
from optimizer.engines.simulator.engine import SimulatedEngine, SimulatorSpec
from optimizer.errors import UserError
from optimizer.workload.packaged import packaged
from optimizer.workload.reader import open_trace
from optimizer.workload.trace import Trace
from search_spaces.config import Config
from search_spaces.hardware import GIB, find_gpu
from search_spaces.known_models import find_model

RTX_4090 = Path(__file__).parents[1] / "data" / "llmservingsim_rtx4090_llama-3.1-8b" / "requests.jsonl"
MODEL = "Llama-3.1-8B"
N_AZURE = 2000
WHOLE_MOONCAKE = 12_031
GET_MOONCAKE = (
    "give --mooncake FILE: github.com/kvcache-ai/Mooncake, FAST25-release/traces/conversation_trace.jsonl "
    f"({WHOLE_MOONCAKE:,} rows; the package holds a window of 2,500)"
)


@dataclass(frozen=True)
class Case:
    """One replay. `wall_s` and `rss_mb` are bars: at most."""

    name: str
    title: str
    gpu: str
    arguments: dict[str, int]
    trace: Callable[[str | None], Trace]
    wall_s: float | None = None
    rss_mb: float | None = None
    n_instances: int = 1

    def placement(self) -> Placement:
        if self.n_instances == 1:
            return Placement((Instance("server", Config(self.arguments), ("default",)),))
        names = [f"i{n}" for n in range(self.n_instances)]
        return Placement(tuple(Instance(n, Config(self.arguments), (n,)) for n in names), "mps")

    def requests(self, file: str | None) -> Trace:
        """Round robin over the instances, one tenant each."""
        trace = self.trace(file)
        if self.n_instances == 1:
            return trace
        owners = np.arange(len(trace)) % self.n_instances
        names = tuple(f"i{n}" for n in range(self.n_instances))
        return Trace(trace.arrival_s, trace.prompt_tokens, trace.output_tokens, owners.astype(np.int16), names)

    def engine(self) -> SimulatedEngine:
        """With its noise on, as a study runs it."""
        return SimulatedEngine(SimulatorSpec(find_model(MODEL), find_gpu(self.gpu)))


def plan_for(trace: Trace) -> LoadPlan:
    return LoadPlan("steady", trace, 0, trace.rate_per_s, time_limit_s=1e9)


def _rtx_4090(_: str | None) -> Trace:
    rows = [json.loads(line) for line in RTX_4090.read_text("utf-8").splitlines()]
    rows.sort(key=lambda r: r["arrival_time"])
    arrivals = np.array([r["arrival_time"] for r in rows])
    return Trace(
        arrivals - arrivals[0],
        np.array([r["input_toks"] for r in rows], np.int32),
        np.array([r["output_toks"] for r in rows], np.int32),
        np.zeros(len(rows), np.int16),
    )


def _azure(_: str | None) -> Trace:
    return open_trace(packaged("azure-conv")).trace.take(slice(0, N_AZURE))


def _mooncake(file: str | None) -> Trace:
    if file is None:
        raise UserError(f"mooncake: {GET_MOONCAKE}")
    return open_trace(Path(file)).trace


def _shared(n: int) -> Case:
    budgets = {"max_num_batched_tokens": 2048, "max_num_seqs": 128, "max_model_len": 16384}
    title = f"{N_AZURE:,} requests of Azure conv over {n} instances, MPS"
    return Case(f"mps-{n}", title, "H200-141", {**budgets, "kv_cache_memory_bytes": 8 * GIB}, _azure, n_instances=n)


CASES: tuple[Case, ...] = (
    Case(
        "rtx-4090",
        "the RTX 4090 run, 300 requests, 2,588 blocks",
        "RTX-4090-24",
        {
            "max_num_batched_tokens": 2048,
            "max_num_seqs": 256,
            "max_model_len": 32768,
            "num_gpu_blocks_override": 2588,
        },
        _rtx_4090,
        wall_s=0.3,
    ),
    Case(
        "azure",
        f"{N_AZURE:,} requests of Azure conv",
        "A100-80",
        {"max_num_batched_tokens": 2048, "max_num_seqs": 256, "max_model_len": 16384},
        _azure,
        wall_s=1.0,
    ),
    Case(
        "mooncake",
        "a whole Mooncake conversation trace, prefix caching on",
        "H200-141",
        {"max_num_batched_tokens": 8192, "max_num_seqs": 256, "max_model_len": 131072},
        _mooncake,
        wall_s=20.0,
        rss_mb=1024.0,
    ),
    _shared(2),
    _shared(4),
)


def find_case(name: str) -> Case:
    for case in CASES:
        if case.name == name:
            return case
    raise UserError(f"{name}: no such case; expected one of {', '.join(c.name for c in CASES)}")
