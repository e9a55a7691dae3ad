"""The preemption checklist, in its order: which budget is wrong when requests are preempted. Each line has its number.

vLLM's V1 engine preempts by recomputing: the last admitted running request gives up its blocks and starts over later.
That is no error and no out-of-memory, and it is in no log: only the counter `vllm:num_preemptions` knows of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from optimizer.questions.answer import Change
from optimizer.questions.pool import kv_demand, larger_pool, most_wanted_tokens
from optimizer.questions.situation import Situation

Verdict = Literal["cause", "not the cause", "unknown"]
LARGE_BUDGET = 0.25
"""Of the pool that the chunks of one step may take: from here on admission itself empties it."""
UNEVEN = 3.0
"""P99 length over the mean from which on the mean plans for too little."""
HARDLY_FITS = 0.5
"""Share of the pool that one request may hold before it alone decides how many run beside it."""


@dataclass(frozen=True, slots=True)
class Line:
    """One item of the checklist."""

    name: str
    verdict: Verdict
    text: str
    changes: tuple[Change, ...] = ()
    """What is worth a trial if it is the cause."""

    def to_json(self) -> dict[str, Any]:
        changes = [c.to_json() for c in self.changes]
        return {"name": self.name, "verdict": self.verdict, "text": self.text, "changes": changes}


@dataclass(frozen=True, slots=True)
class Checklist:
    is_preempting: bool | None
    """None: the counter could not be read, which is not the same as 0."""
    text: str
    lines: tuple[Line, ...]

    @property
    def changes(self) -> tuple[Change, ...]:
        return tuple(c for line in self.lines if line.verdict == "cause" for c in line.changes)

    def to_json(self) -> dict[str, Any]:
        return {"is_preempting": self.is_preempting, "text": self.text, "lines": [x.to_json() for x in self.lines]}


def preemption_checklist(s: Situation) -> Checklist:
    lines = _with_a_cause(s, tuple(check(s) for check in _CHECKS))
    load = f" under the {s.load} load" if s.load else ""
    if s.n_preemptions is None:
        return Checklist(None, f"preemptions{load}: unknown, the counter could not be read; never taken for 0", lines)
    if not s.n_preemptions:
        return Checklist(False, f"preemptions{load}: 0", lines)
    rate = s.preemptions_per_request
    of = "" if rate is None else f", {rate:.3g} per finished request"
    return Checklist(s.n_preemptions > 0, f"preemptions{load}: {s.n_preemptions:.0f}{of}", lines)


def _with_a_cause(s: Situation, lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """A preemption means that the pool had no block left. Where no line says why on average, its peak filled it."""
    if not s.n_preemptions or any(x.verdict == "cause" for x in lines) or lines[0].verdict == "unknown":
        return lines
    text = f"{lines[0].text}: enough on average, and full at moments, or nothing would be preempted"
    changes = larger_pool(s, 1.5 * (s.kv_tokens or 0))
    return (replace(lines[0], verdict="cause", text=text, changes=(changes,) if changes else ()), *lines[1:])


def _kv_budget(s: Situation) -> Line:
    name, demand = "KV budget too small", kv_demand(s)
    if demand is None or not s.kv_tokens:
        return Line(name, "unknown", "needs the size of the KV cache and the lengths of requests")
    wanted, at_most = demand.wanted_tokens, most_wanted_tokens(s)
    if s.n_preemptions and wanted <= s.kv_tokens < at_most:  # a burst inside the time watched
        wanted = at_most
    ratio = wanted / s.kv_tokens
    usage = "" if s.kv_usage is None else f", used {s.kv_usage.most:.0%} at most"
    what = "what ran holds in full" if s.load in ("saturation", "stress") else "demand"
    what += " at most" if wanted > demand.wanted_tokens else ""
    text = f"{what} {wanted:.0f} of {s.kv_tokens} tokens ({ratio:.0%}){usage}"
    larger = larger_pool(s, wanted) if ratio > 1.0 else None
    return Line(name, _verdict(s, ratio > 1.0), text, (larger,) if larger else ())


def _sequences(s: Situation) -> Line:
    name, demand, seats = "too many sequences", kv_demand(s), s.whole("max_num_seqs")
    if demand is None or seats is None:
        return Line(name, "unknown", "needs max_num_seqs, the size of the KV cache and the lengths of requests")
    running = "" if s.running is None else f"; {s.running.most:.0f} ran at most"
    text = f"max_num_seqs {seats}, the pool holds {demand.n_fit:.0f} requests of mean length{running}"
    most = seats * s.n_replicas if s.running is None else min(seats * s.n_replicas, s.running.most)
    fewer = Change("max_num_seqs", max(int(demand.n_fit / s.n_replicas), 1), "so many fit", "fewer preemptions")
    return Line(name, _verdict(s, most > demand.n_fit), text, (fewer,))


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
    share = budget / (s.kv_tokens / s.n_replicas)
    text = f"one step may admit {budget} tokens, {share:.1%} of the pool"
    return Line(name, _verdict(s, share > LARGE_BUDGET), text, _smaller_budget(s, budget))


def _smaller_budget(s: Situation, budget: int) -> tuple[Change, ...]:
    """Down to an eighth of the pool a step, never below the seats, which vLLM refuses."""
    size = int((s.kv_tokens or 0) / s.n_replicas / 8) // 64 * 64
    value = max(size, s.whole("max_num_seqs") or 0, 256)
    why = "admission takes less of the pool at once"
    then = "fewer preemptions, longer TTFT of long prompts"
    return (Change("max_num_batched_tokens", value, why, then),) if value < budget else ()


def _model_len(s: Situation) -> Line:
    name, limit = "max_model_len far above the workload", s.whole("max_model_len")
    if limit is None or not s.kv_tokens:
        return Line(name, "unknown", "needs max_model_len and the size of the KV cache")
    longest, pool = (s.totals.longest if s.totals is not None else None), s.kv_tokens / s.n_replicas
    if longest is not None and longest > HARDLY_FITS * pool:
        text = f"one request of {longest:.0f} tokens hardly fits {pool:.0f}: it alone preempts others"
        return Line(name, _verdict(s, True), text)
    text = (
        f"ruled out by mechanism: the paged cache takes blocks as tokens come, so max_model_len {limit} reserves"
        " nothing; it only has to fit once, at boot"
    )
    return Line(name, "not the cause", text)


_CHECKS: tuple[Callable[[Situation], Line], ...] = (_kv_budget, _sequences, _lengths, _token_budget, _model_len)


def _verdict(s: Situation, is_beyond: bool) -> Verdict:
    """What is beyond its bound makes preemptions if there are any: unknown where nobody counted them."""
    if not is_beyond:
        return "not the cause"
    return "unknown" if s.n_preemptions is None else "cause" if s.n_preemptions else "not the cause"
