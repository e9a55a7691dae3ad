"""The preemption checklist, in its order: which budget is wrong when requests are preempted. Each line has its number.

vLLM's V1 engine preempts by recomputing: the last admitted running request gives up its blocks and starts over later.
That is no error and no out-of-memory, and it is in no log: only the counter `vllm:num_preemptions` knows of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from optimizer.questions.demand import HARDLY_FITS, kv_demand
from optimizer.questions.situation import Situation

Verdict = Literal["cause", "not the cause", "unknown"]
LARGE_BUDGET = 0.25
"""Of the pool that the chunks of one step may take: from here on admission itself empties it."""
UNEVEN = 3.0
"""P99 length over the mean from which on the mean plans for too little."""


@dataclass(frozen=True, slots=True)
class Line:
    """One item of the checklist."""

    name: str
    verdict: Verdict
    text: str

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "verdict": self.verdict, "text": self.text}


@dataclass(frozen=True, slots=True)
class Checklist:
    is_preempting: bool | None
    """None: the counter could not be read, which is not the same as 0."""
    text: str
    lines: tuple[Line, ...]

    def to_json(self) -> dict[str, Any]:
        return {"is_preempting": self.is_preempting, "text": self.text, "lines": [x.to_json() for x in self.lines]}


def preemption_checklist(s: Situation) -> Checklist:
    lines = tuple(check(s) for check in _CHECKS)
    load = f" under the {s.load} load" if s.load else ""
    if s.n_preemptions is None:
        return Checklist(None, f"preemptions{load}: unknown, the counter could not be read; never taken for 0", lines)
    rate = s.preemptions_per_request
    of = "" if rate is None else f", {rate:.3g} per finished request"
    return Checklist(s.n_preemptions > 0, f"preemptions{load}: {s.n_preemptions:.0f}{of}", lines)


def _kv_budget(s: Situation) -> Line:
    name, demand = "KV budget too small", kv_demand(s)
    if demand is None or not s.kv_tokens:
        return Line(name, "unknown", "needs the size of the KV cache and the lengths of requests")
    ratio = demand.wanted_tokens / s.kv_tokens
    usage = "" if s.kv_usage is None else f", used {s.kv_usage.most:.0%} at most"
    text = f"demand {demand.wanted_tokens:.0f} of {s.kv_tokens} tokens ({ratio:.0%}){usage}"
    return Line(name, _verdict(s, ratio > 1.0), text)


def _sequences(s: Situation) -> Line:
    name, demand, seats = "too many sequences", kv_demand(s), s.whole("max_num_seqs")
    if demand is None or seats is None:
        return Line(name, "unknown", "needs max_num_seqs, the size of the KV cache and the lengths of requests")
    running = "" if s.running is None else f"; {s.running.most:.0f} ran at most"
    text = f"max_num_seqs {seats}, the pool holds {demand.n_fit:.0f} requests of mean length{running}"
    most = seats if s.running is None else min(seats, s.running.most)
    return Line(name, _verdict(s, most > demand.n_fit), text)


def _lengths(s: Situation) -> Line:
    name, totals = "lengths beyond expectation", s.totals
    if totals is None or totals.p99 is None or not totals.mean:
        return Line(name, "unknown", "needs the lengths of requests")
    ratio = totals.p99 / totals.mean
    longest = "" if not s.kv_tokens or totals.longest is None else (
        f"; the longest holds {totals.longest / s.kv_tokens:.0%} of the pool"
    )  # fmt: skip
    text = f"P99 {totals.p99:.0f} tokens, {ratio:.1f} times the mean of {totals.mean:.0f}{longest}"
    return Line(name, _verdict(s, ratio > UNEVEN), text)


def _token_budget(s: Situation) -> Line:
    name, budget = "token budget too large", s.whole("max_num_batched_tokens")
    if budget is None or not s.kv_tokens:
        return Line(name, "unknown", "needs max_num_batched_tokens and the size of the KV cache")
    share = budget / s.kv_tokens
    text = f"one step may admit {budget} tokens, {share:.1%} of the pool"
    return Line(name, _verdict(s, share > LARGE_BUDGET), text)


def _model_len(s: Situation) -> Line:
    name, limit = "max_model_len far above the workload", s.whole("max_model_len")
    if limit is None or not s.kv_tokens:
        return Line(name, "unknown", "needs max_model_len and the size of the KV cache")
    longest = s.totals.longest if s.totals is not None else None
    if longest is not None and longest > HARDLY_FITS * s.kv_tokens:
        text = f"one request of {longest:.0f} tokens hardly fits {s.kv_tokens}: it alone preempts others"
        return Line(name, _verdict(s, True), text)
    text = (
        f"ruled out by mechanism: the paged cache takes blocks as tokens come, so max_model_len {limit} reserves"
        " nothing; it only has to fit once, at boot"
    )
    return Line(name, "not the cause", text)


_CHECKS: tuple[Callable[[Situation], Line], ...] = (_kv_budget, _sequences, _lengths, _token_budget, _model_len)


def _verdict(s: Situation, is_beyond: bool) -> Verdict:
    return "cause" if is_beyond and s.n_preemptions else "not the cause"
