"""Whole recorded runs: a folder with meta.json and requests.jsonl, replayed arrival by arrival.

requests.jsonl: a JSON object a line with input_toks, output_toks, queued_ts, first_token_ts, last_token_ts (seconds on
one clock). meta.json: model, vllm_version, engine_kwargs and, where it was recorded, kv_cache.num_gpu_blocks. The card
is in meta.json (hardware.device_name) or in config.json (nodes[0].instances[0].hardware). Times count from the engine's
queue.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.accuracy.loads import FIRST_ASYNC
from bench.accuracy.measured import Unscorable
from optimizer.engines.engine import Instance, LoadPlan, Placement
from optimizer.engines.simulator.engine import SimulatedEngine, SimulatorSpec
from optimizer.engines.simulator.recording import OUTBOUND_S, inbound_s
from optimizer.errors import EngineFailed
from optimizer.workload.trace import Trace
from search_spaces.config import Config
from search_spaces.hardware import GpuFacts, batch_defaults, find_gpu
from search_spaces.known_models import find_model
from search_spaces.model import ModelFacts

TIME_LIMIT_S = 1e8


@dataclass(frozen=True)
class RunFigures:
    """Of a whole run. TTFT and TPOT in milliseconds."""

    makespan_s: float
    ttft_mean_ms: float
    ttft_p99_ms: float
    tpot_mean_ms: float
    tpot_p99_ms: float
    n_preemptions: float | None = None
    kv_tokens: int | None = None


@dataclass(frozen=True)
class ScoredRun:
    name: str
    are_blocks_given: bool
    measured: RunFigures
    simulated: RunFigures


def find_runs(folder: Path) -> list[Path]:
    return sorted(p.parent for p in folder.glob("*/requests.jsonl"))


def score_run(folder: Path) -> ScoredRun:
    """Raises Unscorable with the file and what is wrong with it."""
    meta, rows = _json(folder / "meta.json"), _rows(folder / "requests.jsonl")
    try:
        model, gpu = find_model(str(meta["model"])), find_gpu(_device(folder, meta))
        config = _config(meta, gpu, model, rows)
    except (KeyError, ValueError, TypeError) as error:
        raise Unscorable(f"{folder.name}/meta.json: {error}") from None
    measured = _figures(rows["queued"], rows["first"], rows["last"], rows["output"])
    return ScoredRun(folder.name, "num_gpu_blocks_override" in config, measured, _simulate(model, gpu, config, rows))


def _config(meta: dict[str, Any], gpu: GpuFacts, model: ModelFacts, rows: dict[str, NDArray[np.float64]]) -> Config:
    given = {k: v for k, v in meta.get("engine_kwargs", {}).items() if v is not None}
    cache = meta.get("kv_cache") or {}
    tokens, seqs = batch_defaults(gpu)
    major, minor = (int(x) for x in str(meta.get("vllm_version", "0.19")).split(".")[:2])
    utilization = given.get("gpu_memory_utilization", 0.9)
    length = int(given.get("max_model_len") or min(model.max_position_tokens, 131_072))
    fields: dict[str, Any] = {
        "max_num_batched_tokens": int(given.get("max_num_batched_tokens", tokens)),
        "max_num_seqs": int(given.get("max_num_seqs", seqs)),
        "max_model_len": max(length, int((rows["prompt"] + rows["output"]).max())),
        "tensor_parallel_size": int(given.get("tensor_parallel_size", 1)),
        "gpu_memory_utilization": float(cache.get("gpu_memory_utilization") or utilization),
        "async_scheduling": (major, minor) >= FIRST_ASYNC,
    }
    if cache.get("num_gpu_blocks"):
        fields["num_gpu_blocks_override"] = int(cache["num_gpu_blocks"])
    return Config(fields)


def _device(folder: Path, meta: dict[str, Any]) -> str:
    named = (meta.get("hardware") or {}).get("device_name")
    if named:
        return str(named)
    return str(_json(folder / "config.json")["nodes"][0]["instances"][0]["hardware"])


def _simulate(model: ModelFacts, gpu: GpuFacts, config: Config, rows: dict[str, NDArray[np.float64]]) -> RunFigures:
    """The queue's times are handed to the engine as they were, so the front end's part is taken off."""
    tp = int(config["tensor_parallel_size"])  # type: ignore[arg-type]
    arrived = rows["queued"] - rows["queued"].min()
    order = np.argsort(arrived, kind="stable")
    trace = Trace(
        arrived[order],
        rows["prompt"][order].astype(np.int32),
        rows["output"][order].astype(np.int32),
        np.zeros(order.size, np.int16),
    )
    engine = SimulatedEngine(SimulatorSpec(model, gpu, noise=0.0))
    try:
        report = engine.boot(Placement((Instance("server", config, ("default",)),)), 0)
    except EngineFailed as error:
        raise Unscorable(f"the simulator cannot boot it: {error}") from None
    phase = engine.replay(LoadPlan("steady", trace, 0, trace.rate_per_s, TIME_LIMIT_S))
    front_s = inbound_s(tp) + OUTBOUND_S
    first = np.array([r.token_times_s[0] - front_s for r in phase.records])
    last = np.array([r.token_times_s[-1] - front_s for r in phase.records])
    found = _figures(trace.arrival_s, first, last, trace.output_tokens.astype(float))
    counters = phase.counters["server"]
    return RunFigures(
        found.makespan_s, found.ttft_mean_ms, found.ttft_p99_ms, found.tpot_mean_ms, found.tpot_p99_ms,
        counters.n_preemptions, report.kv_tokens["server"],
    )  # fmt: skip


def _figures(
    queued: NDArray[np.float64], first: NDArray[np.float64], last: NDArray[np.float64], output: NDArray[np.float64]
) -> RunFigures:
    ttft, many = 1e3 * (first - queued), output > 1
    tpot = 1e3 * (last - first)[many] / (output[many] - 1)
    return RunFigures(
        float(last.max() - queued.min()), float(ttft.mean()), float(np.percentile(ttft, 99)), float(tpot.mean()),
        float(np.percentile(tpot, 99)),
    )  # fmt: skip


def _json(path: Path) -> dict[str, Any]:
    try:
        body = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise Unscorable(f"{path.parent.name}/{path.name}: cannot be read ({error})") from None
    if not isinstance(body, dict):
        raise Unscorable(f"{path.parent.name}/{path.name}: no JSON object")
    return body


def _rows(path: Path) -> dict[str, NDArray[np.float64]]:
    names = {"prompt": "input_toks", "output": "output_toks", "queued": "queued_ts", "first": "first_token_ts",
             "last": "last_token_ts"}  # fmt: skip
    found = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            found.append([float(fields[name]) for name in names.values()])
        except (ValueError, KeyError, TypeError) as error:
            raise Unscorable(f"{path.parent.name}/{path.name}, line {number}: no request ({error})") from None
    table = np.array(found)
    if len(found) < 2 or not np.isfinite(table).all() or (table[:, :2] < 1).any():
        raise Unscorable(f"{path.parent.name}/{path.name}: fewer than two whole requests")
    return dict(zip(names, table.T, strict=True))
