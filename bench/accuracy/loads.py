"""From a published row to what the simulator replays: model, card, requests, clients, arguments.

What a row does not record is assumed here, once, and nowhere else:
- arguments not given have the defaults of the row's vLLM version; `max_model_len` is the longest request;
- `random` lengths are fixed, `range ratio r` is uniform in [r, 1] of the length, ShareGPT log-normal about its mean;
- a closed loop without a number of requests runs four rounds after one that is not counted, whose answers have lengths
  spread evenly up to the row's: clients that start together do not stay so (the front end takes requests one by one,
  the first of a group is prefilled before the others are there), so they are counted spread over their cycle.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bench.accuracy.measured import Kind, Row, Unscorable
from optimizer.workload.trace import Trace
from search_spaces.config import Config
from search_spaces.hardware import GpuFacts, batch_defaults, find_gpu
from search_spaces.known_models import find_model
from search_spaces.model import ModelFacts

BLOCK = 16
FIRST_ASYNC = (0, 14)
"""vLLM 0.14: asynchronous scheduling became the default."""
FIRST_HIGHER_UTILIZATION = (0, 22)
FIRST_LARGE_BUDGETS = (0, 9)
"""Before, a server's budgets were SMALL_BUDGETS on every card."""
SMALL_BUDGETS = (2048, 256)
N_ROUNDS = 4
SHAREGPT_SIGMA = 1.0
SHAREGPT_LENGTHS = (4, 1024)
"""vLLM's benchmark leaves out shorter and longer requests."""
MOST_REQUESTS = 5000
MOST_TOKENS = 2_000_000


@dataclass(frozen=True)
class Case:
    """One simulation."""

    model: ModelFacts
    gpu: GpuFacts
    arguments: dict[str, int | float | bool]
    trace: Trace
    kind: Kind
    n_clients: int | None
    n_uncounted: int
    """First requests that are not counted: the round in which a closed loop starts."""

    @property
    def config(self) -> Config:
        return Config(self.arguments)


def case_of(row: Row) -> Case:
    """Raises Unscorable."""
    model, gpu = model_of(row), gpu_of(row)
    kind, n_clients, rate_per_s = load_of(row)
    n, n_uncounted = _n_requests(row, kind, n_clients)
    prompts, outputs = _lengths(row, n)
    outputs[:n_uncounted] = np.ceil(outputs[:n_uncounted] * np.random.default_rng(2).uniform(size=n_uncounted))
    trace = Trace(_arrivals(kind, n, rate_per_s), prompts, outputs, np.zeros(n, np.int16))
    longest = int((prompts + outputs).max()) + BLOCK
    if longest > model.max_position_tokens:
        raise Unscorable(
            f"requests of {longest} tokens are longer than {model.name} reads ({model.max_position_tokens})"
        )
    return Case(model, gpu, arguments_of(row, gpu, longest), trace, kind, n_clients, n_uncounted)


def model_of(row: Row) -> ModelFacts:
    name = row.cells["model"]
    try:
        model = find_model(name)
        if "fp8" in row.cells.get("dtype", "").lower() and not model.is_quantized:
            model = find_model(re.sub(r"\s*\(.*?\)\s*$", "", name) + "-FP8")
    except ValueError as error:
        raise Unscorable(str(error)) from error
    return model


def gpu_of(row: Row) -> GpuFacts:
    try:
        return find_gpu(row.cells["gpu"])
    except ValueError as error:
        raise Unscorable(str(error)) from error


def load_of(row: Row) -> tuple[Kind, int | None, float | None]:
    """(kind, clients of a closed loop, requests per second of an open one). Raises Unscorable."""
    kind, value = row.cells.get("load_kind", "").lower(), row.number("load_value")
    if "mlperf" in kind or "slo" in kind:
        raise Unscorable("the load is a search for the rate that keeps an SLO, not one load")
    if "burst" in kind or "offline" in kind or re.search(r"\binf\b", kind):
        return "burst", None, None
    if "rate" in kind or "open" in kind or "poisson" in kind or "qps" in kind:
        if value is None:
            raise Unscorable(f"no request rate in load_value {row.cells.get('load_value', '')!r}")
        return "open", None, value
    if "concurrency" in kind or "closed" in kind or "batch" in kind:
        if value is None:
            raise Unscorable(f"no concurrency in load_value {row.cells.get('load_value', '')!r}")
        return "closed", max(round(value), 1), None
    raise Unscorable(f"load_kind {row.cells.get('load_kind', '')!r} is neither a concurrency, a rate nor a burst")


def _n_requests(row: Row, kind: Kind, n_clients: int | None) -> tuple[int, int]:
    n = row.count("n_requests")
    if kind == "closed" and n_clients is not None:
        if n is None:
            return min(n_clients * (N_ROUNDS + 1), MOST_REQUESTS), n_clients
        return min(max(n, n_clients), MOST_REQUESTS), 0
    if n is None and kind == "burst":
        n = row.count("load_value")
    if n is None:
        raise Unscorable("the number of requests is not recorded, and the figures of this load depend on it")
    return min(n, MOST_REQUESTS), 0


def _arrivals(kind: Kind, n: int, rate_per_s: float | None) -> NDArray[np.float64]:
    if kind != "open" or rate_per_s is None:
        return np.zeros(n)
    gaps = np.random.default_rng(0).exponential(1.0 / rate_per_s, n)
    return np.cumsum(gaps) - gaps[0]


def _lengths(row: Row, n: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    means = row.number("input_len"), row.number("output_len")
    if any(m is not None and m > MOST_TOKENS for m in means):
        raise Unscorable(f"requests of {max(m for m in means if m is not None):g} tokens")
    for column, mean in zip(("input_len", "output_len"), means, strict=True):
        if mean is None:
            raise Unscorable(f"{column} {row.cells.get(column, '')!r} is no number of tokens")
    rng = np.random.default_rng(1)
    prompts, outputs = (_spread(row, rng, float(m), n) for m in means if m is not None)
    return prompts, outputs


def _spread(row: Row, rng: np.random.Generator, mean: float, n: int) -> NDArray[np.int32]:
    text = row.text.lower()
    ratio = re.search(r"range ratio (0?\.\d+)", text)
    if ratio:
        lengths = rng.uniform(float(ratio.group(1)) * mean, mean, n)
    elif "sharegpt" in text:
        lengths = _log_normal(rng, mean, n)
    else:
        lengths = np.full(n, mean)
    return np.maximum(np.round(lengths), 1).astype(np.int32)


def _log_normal(rng: np.random.Generator, mean: float, n: int) -> NDArray[np.float64]:
    """Clipped as the benchmark clips, then scaled so that the mean is right."""
    low, high = SHAREGPT_LENGTHS
    lengths = np.exp(SHAREGPT_SIGMA * rng.standard_normal(n))
    for _ in range(20):
        lengths = np.clip(lengths * mean / lengths.mean(), low, max(high, 2 * mean))
    return np.asarray(lengths, np.float64)


def arguments_of(row: Row, gpu: GpuFacts, longest: int) -> dict[str, int | float | bool]:
    version = row.version
    tokens, seqs = SMALL_BUDGETS if version is not None and version < FIRST_LARGE_BUDGETS else batch_defaults(gpu)
    utilization = row.number("gpu_mem_util") or _utilization(version)
    if utilization > 1:
        raise Unscorable(f"gpu_mem_util {row.cells['gpu_mem_util']!r} is no share of a card's memory")
    told = re.search(r"max[-_]model[-_]len[ =]+(\d+)", row.text)
    is_async = version is None or version >= FIRST_ASYNC or "async" in row.text.lower()
    arguments: dict[str, int | float | bool] = {
        "max_num_batched_tokens": row.count("max_num_batched_tokens") or max(tokens, row.count("max_num_seqs") or 0),
        "max_model_len": max(longest, int(told.group(1)) if told else 0),
        "gpu_memory_utilization": utilization,
        "tensor_parallel_size": row.tp,
        "async_scheduling": is_async,
        "enforce_eager": bool(re.search(r"enforce[-_]eager(?![ =:]*false)|\beager-c\d", row.text.lower())),
    }
    seqs = row.count("max_num_seqs") or min(seqs, int(arguments["max_num_batched_tokens"]))
    return arguments | {"max_num_seqs": seqs}


def _utilization(version: tuple[int, int] | None) -> float:
    return 0.92 if version is None or version >= FIRST_HIGHER_UTILIZATION else 0.9


def with_blocks(case: Case, kv_tokens: int | None) -> Case:
    """The recorded KV cache instead of the predicted one."""
    if kv_tokens is None:
        return case
    return replace(case, arguments=case.arguments | {"num_gpu_blocks_override": kv_tokens // BLOCK})
