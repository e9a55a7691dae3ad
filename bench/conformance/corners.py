"""Which corners of the scheduler a run of scenarios has reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from bench.conformance.comparing import Verdict
from bench.conformance.driving import Entry, Way, simulate
from bench.conformance.scenario import Scenario

PREEMPTING = "preempt"
BINDING = {
    "watermark": 0.0,
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "scheduler_reserve_full_isl": False,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": False,
    "max_num_seqs": 1 << 20,
    "max_num_active_seqs": None,
    "max_num_scheduled_tokens": None,
}
"""Arguments and the value with which each changes nothing: an argument binds where that value gives other steps."""
ENOUGH = 50
"""Whether an argument binds costs a simulation; it is asked until this many scenarios have said yes."""
NAMES = (
    PREEMPTING,
    "several victims in one step",
    "a victim and nothing scheduled",
    "no block free (KV exhausted)",
    "contents evicted",
    "first admission hits a prefix",
    "resumed request hits its prefix",
    "one request in the system",
    "an end frees blocks that the next step needs",
    "max_model_len cuts an output off",
    "decode passed over by the token budget",
    "a hundred requests or more",
    "asynchronous",
    *(f"{name} binds" for name in BINDING),
)


class Corners:
    """Counts scenarios, one a corner at most."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, scenario: Scenario, verdict: Verdict) -> None:
        self.counts.update(set(_reached(scenario, verdict)))
        self.counts.update(self._binding(scenario, verdict.drives[Way.COASTING].log))

    def lines(self) -> list[str]:
        width = max(map(len, NAMES))
        return [f"  {name:<{width}} {self._count(name)}" for name in NAMES]

    def _count(self, name: str) -> str:
        count = self.counts[name]
        if not count:
            return "NOT REACHED"
        return f"{count} or more" if name.endswith(" binds") and count >= ENOUGH else str(count)

    def _binding(self, scenario: Scenario, log: list[Entry]) -> Iterator[str]:
        for name, value in BINDING.items():
            if scenario.arguments.get(name) in (None, value) or self.counts[f"{name} binds"] >= ENOUGH:
                continue
            arguments = dict(scenario.arguments) | {name: value}
            if simulate(replace(scenario, arguments=arguments), Way.COASTING).log != log:
                yield f"{name} binds"


def _reached(scenario: Scenario, verdict: Verdict) -> Iterator[str]:
    steps, requests = verdict.steps, scenario.requests
    n_victims = [len(step["victims"]) for step in steps]
    if any(n_victims):
        yield PREEMPTING
    if any(n > 1 for n in n_victims):
        yield "several victims in one step"
    if any(step["victims"] and not step["scheduled"] for step in steps):
        yield "a victim and nothing scheduled"
    if not all(step["free"] for step in steps):
        yield "no block free (KV exhausted)"
    if any(step["evicted"] for step in steps):
        yield "contents evicted"
    if any(step["present"] == 1 for step in steps):
        yield "one request in the system"
    yield from _admissions(steps)
    if any(_lives_off_an_end(*pair) for pair in pairwise(steps)):
        yield "an end frees blocks that the next step needs"
    if any(r.prompt + r.output > scenario.max_model_len for r in requests):
        yield "max_model_len cuts an output off"
    if verdict.drives[Way.STEPWISE].n_skipped:
        yield "decode passed over by the token budget"
    if len(requests) >= 100:
        yield "a hundred requests or more"
    if scenario.is_async:
        yield "asynchronous"


def _admissions(steps: list[Entry]) -> Iterator[str]:
    seen: set[int] = set()
    for step in steps:
        for request, hit in step["admitted"]:
            if hit:
                yield "resumed request hits its prefix" if request in seen else "first admission hits a prefix"
            seen.add(request)


def _lives_off_an_end(before: Entry, after: Entry) -> bool:
    """What was free when the step before had been scheduled would not have been enough."""
    return not after["victims"] and after["free_before"] - after["free"] > before["free"] < after["free_before"]
