"""Random scenarios. Scenario `number` of a seed is the same whatever the number of scenarios drawn."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from bench.conformance.driving import Way, simulate
from bench.conformance.scenario import Request, Scenario, least_blocks

MUST_PREEMPT = (0, 2)
"""Of every five scenarios, those that are drawn again until they preempt: at least 2 in 5 of any number from 0."""
MAX_DRAWS = 60
LONG_MODEL_TOKENS = 4096


@dataclass(frozen=True)
class Shape:
    """What kind of load: each reaches corners that the others rarely do."""

    name: str
    weight: int
    n_requests: tuple[int, int]
    gaps: tuple[int, ...]
    """Steps between arrivals, drawn one by one."""
    lengths: tuple[int, ...]
    """max_model_len, drawn once."""
    prompt: Callable[[random.Random, int, int], int]
    """(rng, max_model_len, block) -> tokens"""
    output: Callable[[random.Random, int, int], int]
    shared: float
    """Chance that a request has prefix ids."""


def _any_prompt(rng: random.Random, longest: int, block: int) -> int:
    return rng.randint(1, longest // 2)


def _any_output(rng: random.Random, longest: int, block: int) -> int:
    return rng.choice([rng.randint(1, longest // 3), rng.randint(1, 6)])


def _full_blocks(rng: random.Random, longest: int, block: int) -> int:
    """On a block boundary, or one beside it."""
    n_blocks = rng.randint(1, max(1, longest // 2 // block))
    return max(1, n_blocks * block + rng.choice([0, 0, 0, -1, 1]))


def _few_or_full(rng: random.Random, longest: int, block: int) -> int:
    return rng.choice([1, 1, 2, block - 1, block, block + 1, 2 * block])


def _near_the_end(rng: random.Random, longest: int, block: int) -> int:
    """So long that the model's length cuts the output off."""
    return rng.choice([longest - 1, longest - 2, longest - block, rng.randint(longest // 2, longest - 1)])


def _short(rng: random.Random, longest: int, block: int) -> int:
    return rng.randint(1, 3 * block)


def _long_output(rng: random.Random, longest: int, block: int) -> int:
    return rng.randint(longest // 4, longest // 2)


SHAPES = (
    Shape("mixed", 8, (3, 30), (0, 0, 0, 1, 5, 20), (256, 640), _any_prompt, _any_output, 0.5),
    Shape("decoding", 6, (3, 16), (0, 0, 1, 8), (128, 256, 640), _short, _long_output, 0.4),
    Shape("boundaries", 4, (2, 16), (0, 0, 1, 3), (160, 320), _full_blocks, _few_or_full, 0.7),
    Shape("same end", 3, (4, 20), (0,), (128, 320), _full_blocks, lambda rng, longest, block: longest // 4, 0.3),
    Shape("alone", 2, (1, 6), (0, 100, 400), (200, 640), _any_prompt, _any_output, 0.6),
    Shape("cut off", 3, (2, 12), (0, 0, 2, 10), (96, 300), _near_the_end, _long_output, 0.5),
    Shape("long prompts", 2, (2, 10), (0, 0, 4), (2048, LONG_MODEL_TOKENS), _any_prompt, _few_or_full, 0.6),
    Shape("crowd", 2, (150, 400), (0, 0, 0, 0, 1), (96, 256), _short, _few_or_full, 0.5),
)


def draw(seed: int, number: int) -> Scenario:
    """A scenario that must preempt is drawn until it does, as the simulator has it; whoever runs it counts by vLLM."""
    for attempt in range(MAX_DRAWS):
        scenario = _draw(random.Random(f"{seed}/{number}/{attempt}"), is_tight=number % 5 in MUST_PREEMPT)
        if number % 5 not in MUST_PREEMPT or preempts(scenario):
            return scenario
    raise RuntimeError(f"seed {seed}, scenario {number}: {MAX_DRAWS} drawn and none preempts")


def preempts(scenario: Scenario) -> bool:
    return any(entry["victims"] for entry in simulate(scenario, Way.COASTING).log)


def _draw(rng: random.Random, is_tight: bool) -> Scenario:
    shape = rng.choices(SHAPES, [s.weight for s in SHAPES])[0]
    block = rng.choice([8, 16, 16, 16, 32, 64])
    longest = max(rng.choice(shape.lengths), 2 * block)
    prefix_block = rng.choice([16, 32, 48, 64, 512])
    requests = _requests(rng, shape, longest, block, prefix_block)
    arguments = _arguments(rng, longest)
    is_chunked = arguments["enable_chunked_prefill"]
    spare = [0, 1, 2, 4, 10] if is_tight else [0, 1, 4, 10, 40, 200, 2000] if is_chunked else [10, 40, 200]
    is_moving = is_chunked and rng.random() < 0.3
    return Scenario(
        arguments=arguments,
        block_size=block,
        n_blocks=least_blocks(longest, block) + rng.choice(spare),
        is_async=rng.random() < 0.6,
        prefix_block=prefix_block,
        requests=requests,
        budget_changes=_budget_changes(rng) if is_moving else {},
    )


def _arguments(rng: random.Random, longest: int) -> dict[str, Any]:
    """As vLLM accepts them: no threshold above the model's length, no prompt above a budget that cannot be cut."""
    is_chunked = rng.random() < 0.9
    tokens = (
        rng.choice([16, 32, 48, 64, 128, 256, 512, 2048]) if is_chunked else longest + rng.choice([0, 1, 200, 5000])
    )
    seqs = rng.choice([n for n in (1, 2, 3, 8, 16, 64, 256) if n <= tokens and (is_chunked or n > 3)])
    arguments: dict[str, Any] = {
        "max_model_len": longest,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": seqs,
        "enable_chunked_prefill": is_chunked,
        "enable_prefix_caching": rng.random() < 0.75,
        "watermark": rng.choice([0.0, 0.0, 0.01, 0.05, 0.2, 0.5]),
        "long_prefill_token_threshold": min(
            rng.choice([0, 0, 1, 16, 30, 100] if is_chunked else [0, 0, 0, 30]), longest
        ),
        "long_prefill_token_threshold_adaptive": rng.random() < 0.25,
        "scheduler_reserve_full_isl": rng.random() < 0.6,
    }
    if is_chunked and rng.random() < 0.2:
        arguments["max_num_active_seqs"] = rng.randint(1, seqs)
    if is_chunked and rng.random() < 0.25:
        arguments["max_num_scheduled_tokens"] = max(1, tokens // rng.choice([1, 2, 3, 8]))
    return arguments


def _requests(rng: random.Random, shape: Shape, longest: int, block: int, prefix_block: int) -> tuple[Request, ...]:
    requests: list[Request] = []
    arrival = 0
    for index in range(rng.randint(*shape.n_requests)):
        arrival += rng.choice(shape.gaps)
        prompt = min(shape.prompt(rng, longest, block), longest - 1)
        output = max(1, shape.output(rng, longest, block))
        ids = _prefix_ids(rng, prompt, prefix_block) if rng.random() < shape.shared else ()
        new = Request(index, arrival, prompt, output, ids)
        if requests and rng.random() < 0.15:
            twin = rng.choice(requests)
            new = replace(new, prompt=twin.prompt, prefix_ids=twin.prefix_ids)
        requests.append(new)
    return tuple(requests)


def _prefix_ids(rng: random.Random, prompt: int, prefix_block: int) -> tuple[int, ...]:
    """A chain out of few families, that parts from them somewhere, or never."""
    n_ids = -(-prompt // prefix_block)
    family = rng.randrange(2)
    n_common = rng.choice([n_ids, rng.randint(0, n_ids), 1])
    common = [1000 * family + i for i in range(min(n_common, n_ids))]
    return (*common, *(rng.randrange(10_000, 20_000) for _ in range(n_ids - len(common))))


def _budget_changes(rng: random.Random) -> dict[int, int]:
    """Down and up again, anywhere; a prompt that cannot be cut would never fit a small one."""
    return {rng.randint(1, 150): rng.choice([1, 2, 3, 5, 12, 64]) for _ in range(rng.randint(1, 6))}
