"""Where servers fit: the tensor parallel sizes that are not refused, and the KV ceiling a space is built to.

A model is only refused when even the smallest budgets of the space fail at the optimistic end.
"""

from __future__ import annotations

from collections.abc import Sequence

from search_spaces.capacity import Capacity, solve_capacity
from search_spaces.hardware import GpuFacts, batch_defaults
from search_spaces.model import ModelFacts
from search_spaces.space import Server

MOST_UTILIZATION = 0.98
"""The largest share the search may ask for; exact KV bytes reach about as far."""


def fitting(
    model: ModelFacts, gpu: GpuFacts, servers: Sequence[Server], margin: int, n_gpus: int, smallest: tuple[int, int]
) -> dict[int, Capacity]:
    """Tensor parallel size -> capacity, ascending, for the sizes that are not refused; ValueError when none is left."""
    sizes = [n for n in (1, 2, 4, 8) if n <= max(1, n_gpus) and (not model.n_heads or model.n_heads % n == 0)]
    solved = {n: _capacity(model, gpu, servers, margin, n, smallest) for n in sizes}
    fitting = {n: c for n, c in solved.items() if c.failure is None}
    if not fitting:
        failure = solved[sizes[-1]].failure
        assert failure is not None
        raise ValueError(failure.cause)
    return fitting


def _capacity(
    model: ModelFacts, gpu: GpuFacts, servers: Sequence[Server], margin: int, tp: int, smallest: tuple[int, int]
) -> Capacity:
    """At vLLM's default budgets; where those do not fit, at the smallest ones of the space."""
    for budget in (batch_defaults(gpu), smallest):
        capacity = solve_capacity(
            model,
            gpu,
            max_num_batched_tokens=budget[0],
            max_num_seqs=budget[1],
            tensor_parallel_size=tp,
            utilization=MOST_UTILIZATION,
            n_instances=len(servers),
            max_model_len=max(s.max_model_len for s in servers),
            margin_bytes=margin,
        )
        if capacity.failure is None:
            break
    return capacity


def ceiling(capacity: Capacity) -> int:
    """The solved ceiling; where only the optimistic end holds one request per server, that end."""
    needed = capacity.n_instances * capacity.model.kv_bytes(
        (capacity.max_model_len or 1) + 32, capacity.demand.tensor_parallel_size, capacity.kv_dtype_bytes
    )
    return capacity.ceiling_bytes if capacity.ceiling_bytes >= needed else capacity.optimistic_bytes


def fit_notes(capacity: Capacity) -> tuple[str, ...]:
    if ceiling(capacity) == capacity.ceiling_bytes:
        return ()
    return ("memory is so tight that only optimistic costs leave room for one request: expect failed starts",)
