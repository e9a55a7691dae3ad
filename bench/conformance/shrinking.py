"""Makes a failing scenario small: fewer requests, shorter ones, fewer arguments that do anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from bench.conformance.corners import BINDING
from bench.conformance.scenario import Request, Scenario, least_blocks

MAX_TRIES = 1500
MAX_S = 120.0


@dataclass(frozen=True)
class Shrunk:
    """The smallest failing scenario found, and how many were tried."""

    scenario: Scenario
    n_tries: int


def shrink(
    scenario: Scenario, is_failing: Callable[[Scenario], bool], max_tries: int = MAX_TRIES, max_s: float = MAX_S
) -> Shrunk:
    """Takes any step down that still fails, from the widest, until none does or the tries or the time are used up."""
    n_tries, deadline = 0, time.monotonic() + max_s
    candidates = smaller(scenario)
    while n_tries < max_tries and time.monotonic() < deadline:
        candidate = next(candidates, None)
        if candidate is None:
            break
        n_tries += 1
        if is_failing(candidate):
            scenario, candidates = candidate, smaller(candidate)
    return Shrunk(scenario, n_tries)


def smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Every scenario one step down, the boldest steps first. No step can be undone by another."""
    yield from _fewer_requests(scenario)
    yield from _fewer_arguments(scenario)
    for number in range(len(scenario.requests)):
        for request in _shorter(scenario.requests[number], scenario.prefix_block):
            yield replace(scenario, requests=(*scenario.requests[:number], request, *scenario.requests[number + 1 :]))


def _fewer_requests(scenario: Scenario) -> Iterator[Scenario]:
    requests = scenario.requests
    size = len(requests) // 2
    while size:
        for start in range(0, len(requests), size):
            left = requests[:start] + requests[start + size :]
            if left:
                yield replace(scenario, requests=left)
        size //= 2


def _fewer_arguments(scenario: Scenario) -> Iterator[Scenario]:
    if scenario.budget_changes:
        yield replace(scenario, budget_changes={})
    if scenario.is_async:
        yield replace(scenario, is_async=False)
    arguments = dict(scenario.arguments)
    for name, value in BINDING.items():
        if name != "max_num_seqs" and arguments.get(name) not in (None, value):
            left = {k: v for k, v in arguments.items() if k != name} | ({} if value is None else {name: value})
            yield replace(scenario, arguments=left)
    if any(r.prefix_ids for r in scenario.requests):
        yield replace(scenario, requests=tuple(replace(r, prefix_ids=()) for r in scenario.requests))
    if any(r.arrival for r in scenario.requests):
        yield replace(scenario, requests=tuple(replace(r, arrival=0) for r in scenario.requests))
    if scenario.n_blocks > least_blocks(scenario.max_model_len, scenario.block_size):
        yield replace(scenario, n_blocks=least_blocks(scenario.max_model_len, scenario.block_size))


def _shorter(request: Request, prefix_block: int) -> Iterator[Request]:
    if request.prefix_ids:
        yield replace(request, prefix_ids=())
    for prompt in sorted({1, request.prompt // 2, request.prompt - 1}):
        if 0 < prompt < request.prompt:
            ids = request.prefix_ids[: -(-prompt // prefix_block)]
            yield replace(request, prompt=prompt, prefix_ids=ids)
    for output in sorted({1, request.output // 2, request.output - 1}):
        if 0 < output < request.output:
            yield replace(request, output=output)
