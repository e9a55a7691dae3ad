"""MemorySeen: what one real start said about a server's memory, beside the arguments that decide it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

GIB = 1024**3
OTHERWISE_LOADED = frozenset(
    {
        "quantization", "dtype", "cpu_offload_gb", "enable_lora", "lora_modules", "pipeline_parallel_size",
        "data_parallel_size", "decode_context_parallel_size", "enable_expert_parallel", "model", "hf_overrides",
    }
)  # fmt: skip
"""With one of these a server is another than the memory arithmetic is about: it says nothing of the others."""


def is_loaded_otherwise(arguments: Mapping[str, Any], allowed: frozenset[str] = frozenset()) -> bool:
    """Whether one of OTHERWISE_LOADED that is not `allowed` is set to more than its default."""
    values = (arguments.get(name) for name in OTHERWISE_LOADED - allowed)
    return any(v is True or v not in (None, False, 1) for v in values)


@dataclass(frozen=True, slots=True)
class MemorySeen:
    """Of one GPU, in bytes; None: the start did not say. Holds for one model on one kind of card.

    Raises ValueError for sizes that no start has."""

    max_num_batched_tokens: int
    n_rows: int
    """max_num_seqs, times 1 + draft tokens."""
    tensor_parallel_size: int = 1
    is_eager: bool = False
    are_graphs_counted: bool = True
    """vLLM >= 0.21: `non_kv_bytes` holds the CUDA graphs."""
    non_kv_bytes: float | None = None
    """gpu_memory_utilization x the card - what was left for the KV cache: weights, buffers and the activation peak."""
    weights_bytes: float | None = None
    graph_bytes: float | None = None
    """As counted, else as captured."""

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "n_rows", "tensor_parallel_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)!r} is below 1")
        for name in ("non_kv_bytes", "weights_bytes", "graph_bytes"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} {value!r} is no size")

    @property
    def is_empty(self) -> bool:
        return self.non_kv_bytes is None and self.weights_bytes is None and self.graph_bytes is None

    @property
    def key(self) -> tuple[int, int, int, bool, bool]:
        """Starts that agree in it took the same memory."""
        return (
            self.max_num_batched_tokens,
            self.n_rows,
            self.tensor_parallel_size,
            self.is_eager,
            self.are_graphs_counted,
        )

    def distance(self, max_num_batched_tokens: int, n_rows: int) -> float:
        """How far its budgets are from these: doublings of both together."""
        return abs(math.log2(self.max_num_batched_tokens / max_num_batched_tokens)) + abs(
            math.log2(self.n_rows / n_rows)
        )

    @property
    def text(self) -> str:
        sizes = {"weights": self.weights_bytes, "CUDA graphs": self.graph_bytes, "all but KV": self.non_kv_bytes}
        told = ", ".join(f"{name} {size / GIB:.2f} GiB" for name, size in sizes.items() if size is not None)
        return (
            f"TP {self.tensor_parallel_size}, max_num_batched_tokens {self.max_num_batched_tokens},"
            f" {self.n_rows} sequences: {told}"
        )

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def seen_from(fields: Any) -> tuple[MemorySeen, ...]:
    """From a JSON list. Raises ValueError or TypeError for what is none."""
    return tuple(MemorySeen(**dict(one)) for one in fields)
