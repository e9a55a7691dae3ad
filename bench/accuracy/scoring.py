"""Rows scored: what the simulator says of each, the errors, one scalar from three rows, and the order of pairs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from bench.accuracy.loads import Case, case_of, gpu_of, model_of, with_blocks
from bench.accuracy.measured import Row, Unscorable
from bench.accuracy.predict import Prediction, predict
from optimizer.engines.simulator.lint import Reported, faster_than_physics
from optimizer.engines.simulator.residuals import LEAST, MOST
from optimizer.errors import EngineFailed
from search_spaces.capacity import Capacity, solve_capacity

N_ROWS, N_DRAWS = 3, 5
DIFFERENT = 0.05
"""True difference from which on the order of two rows must be right."""
TIERS = ("A", "B")


@dataclass(frozen=True)
class Scored:
    """A row and what the simulator says of it."""

    row: Row
    case: Case
    said: Prediction

    @property
    def group(self) -> tuple[str, str, int]:
        return self.case.gpu.name, self.case.model.name, self.row.tp

    @property
    def is_barred(self) -> bool:
        return self.row.is_dense_16_bit and self.row.tier in TIERS

    @property
    def throughput(self) -> float | None:
        return self.row.number("out_tok_s")


@dataclass(frozen=True, slots=True)
class Errors:
    """Signed relative errors of one figure."""

    values: tuple[float, ...]

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def median(self) -> float:
        return float(np.median(np.abs(self.values)))

    @property
    def p90(self) -> float:
        return float(np.percentile(np.abs(self.values), 90))

    @property
    def bias(self) -> float:
        return float(np.median(self.values))

    @property
    def cells(self) -> str:
        if not self.values:
            return "0 | - | - | -"
        return f"{self.n} | {self.median:.1%} | {self.p90:.1%} | {self.bias:+.1%}"


def score(rows: Iterable[Row]) -> tuple[list[Scored], list[str]]:
    """(scored rows, one line for each that cannot be and why)."""
    scored: list[Scored] = []
    problems: list[str] = []
    for row in rows:
        try:
            case = with_blocks(case_of(row), row.count("kv_cache_tokens"))
            scored.append(Scored(row, case, predict(case, _is_little(row))))
        except (Unscorable, EngineFailed, ValueError) as error:
            problems.append(f"{row.id}: {error}")
    return scored, problems


def _is_little(row: Row) -> bool:
    return "little" in row.cells.get("derived", "").lower()


def tpot_errors(scored: Iterable[Scored]) -> Errors:
    return _errors((s.said.tpot_ms, s.row.tpot_ms) for s in scored)


def throughput_errors(scored: Iterable[Scored]) -> Errors:
    return _errors((s.said.out_tok_s, s.throughput) for s in scored)


def ttft_errors(scored: Iterable[Scored]) -> Errors:
    """Open-loop rows only: of a closed loop or a burst, the harness decides the first tokens."""
    return _errors((s.said.ttft_ms, s.row.number("ttft_mean_ms")) for s in scored if s.case.kind == "open")


def _errors(pairs: Iterable[tuple[float | None, float | None]]) -> Errors:
    return Errors(tuple(said / true - 1 for said, true in pairs if said and true))


# ---- one scalar ------------------------------------------------------------------------------------------------------


def scalar_of(scored: Sequence[Scored]) -> float | None:
    """The factor on step times that these rows ask for: measured over said TPOT, and the inverse for throughput, their
    logarithms averaged in each row; the median over rows."""
    asked = [np.mean(logs) for s in scored if (logs := _logs(s))]
    return float(np.clip(np.exp(np.median(asked)), LEAST, MOST)) if asked else None


def _logs(s: Scored) -> list[float]:
    found = [math.log(s.row.tpot_ms / s.said.tpot_ms)] if s.row.tpot_ms and s.said.tpot_ms else []
    return found + ([math.log(s.said.out_tok_s / s.throughput)] if s.throughput else [])


def with_scalar(s: Scored, factor: float) -> Scored:
    """Simulated again with every step time multiplied."""
    return replace(s, said=_said_with(_Key(s), round(factor, 6)))


class _Key:
    """A scored row as a cache key."""

    def __init__(self, scored: Scored) -> None:
        self.scored = scored

    def __hash__(self) -> int:
        return hash(self.scored.row.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and other.scored.row.id == self.scored.row.id


@cache
def _said_with(key: _Key, factor: float) -> Prediction:
    return predict(key.scored.case, _is_little(key.scored.row), factor)


def after_three_rows(scored: Sequence[Scored]) -> list[Scored]:
    """Every (GPU, model, TP) with enough rows: a scalar from three drawn rows, the others simulated with it; five
    draws, seeded. The rows learned from are not among those returned."""
    found: list[Scored] = []
    rng = np.random.default_rng(0)
    for rows in grouped(scored, lambda s: s.group).values():
        if len(rows) <= N_ROWS:
            continue
        for _ in range(N_DRAWS):
            drawn = set(rng.choice(len(rows), N_ROWS, replace=False).tolist())
            factor = scalar_of([rows[k] for k in sorted(drawn)])
            if factor is not None:
                found += [with_scalar(r, factor) for k, r in enumerate(rows) if k not in drawn]
    return found


def leave_one_model_out(scored: Sequence[Scored]) -> list[tuple[str, int, float, Errors, Errors]]:
    """(model, rows, the scalar that all other models ask for, TPOT errors before and with it)."""
    found = []
    for name, rows in grouped(scored, lambda s: s.case.model.name).items():
        others = [s for s in scored if s.case.model.name != name]
        groups = [scalar_of(g) for g in grouped(others, lambda s: s.group).values()]
        known = [f for f in groups if f is not None]
        if not known or not tpot_errors(rows).n:
            continue
        factor = float(np.median(known))
        found.append((name, len(rows), factor, tpot_errors(rows), tpot_errors([with_scalar(r, factor) for r in rows])))
    return found


# ---- pairs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Order:
    """Pairs of rows of one workload whose true difference exceeds 5 %."""

    n_right: int
    n: int

    @property
    def text(self) -> str:
        return f"{self.n_right} of {self.n}" + (f" ({self.n_right / self.n:.1%})" if self.n else "")


def order_of(scored: Sequence[Scored], said: Callable[[Scored], Any], true: Callable[[Scored], Any]) -> Order:
    n = n_right = 0
    for rows in grouped(scored, _workload).values():
        for a, b in itertools.combinations(rows, 2):
            true_a, true_b, said_a, said_b = true(a), true(b), said(a), said(b)
            if None in (true_a, true_b, said_a, said_b) or abs(true_a / true_b - 1) <= DIFFERENT:
                continue
            n += 1
            n_right += (true_a > true_b) == (said_a > said_b)
    return Order(n_right, n)


def _workload(s: Scored) -> tuple[str, ...]:
    cells = s.row.cells
    return tuple(cells.get(name, "") for name in ("model", "dtype", "workload", "input_len", "output_len"))


def grouped(scored: Iterable[Scored], key: Callable[[Scored], Any]) -> dict[Any, list[Scored]]:
    found: dict[Any, list[Scored]] = {}
    for s in scored:
        found.setdefault(key(s), []).append(s)
    return found


# ---- capacity and physics --------------------------------------------------------------------------------------------


def false_rejections(rows: Iterable[Row]) -> list[str]:
    """Rows that ran and that the capacity arithmetic calls impossible: there must be none."""
    found = []
    for row in rows:
        try:
            case = case_of(row)
        except (Unscorable, ValueError):
            continue
        failure = capacity_of(case).failure
        if failure is not None:
            found.append(f"{row.id}: {failure.kind}, {failure.cause}")
    return found


def capacity_of(case: Case) -> Capacity:
    """As predicted, whatever KV cache the row records."""
    a: Mapping[str, Any] = case.arguments
    return solve_capacity(
        case.model, case.gpu, max_num_batched_tokens=a["max_num_batched_tokens"], max_num_seqs=a["max_num_seqs"],
        tensor_parallel_size=a["tensor_parallel_size"], utilization=a["gpu_memory_utilization"],
        max_model_len=int((case.trace.prompt_tokens + case.trace.output_tokens).max()), is_eager=a["enforce_eager"],
    )  # fmt: skip


def lint(rows: Iterable[Row]) -> list[str]:
    """Rows that are faster than physics, a line each finding."""
    found = []
    for row in rows:
        try:
            model, gpu, tp = model_of(row), gpu_of(row), row.tp
        except (Unscorable, ValueError):
            continue
        seen = Reported(
            tp=tp, tpot_ms=row.tpot_ms, ttft_ms=row.number("ttft_mean_ms"), prompt_tokens=row.number("input_len"),
            output_tokens=row.number("output_len"), output_tokens_per_s=row.number("out_tok_s"),
        )  # fmt: skip
        found += [f"{row.id}: {text}" for text in faster_than_physics(model, gpu, seen)]
    return found
