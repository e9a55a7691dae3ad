"""How much device memory one server takes on one GPU, term by term: the arithmetic that capacity and simulator share.

Formulas follow vLLM 0.32 v1/worker/gpu_worker.py:634: within `gpu_memory_utilization` vLLM counts weights, buffers that
appear while profiling, the activation peak and the CUDA graphs, and gives the rest to the KV cache. The CUDA context
and NCCL's buffers exist before it looks and lie outside that budget.

Constants are intervals (low, likely, high). They were checked against one recorded run (RTX 4090, Llama-3.1-8B,
vLLM 0.19: 41,408 KV tokens); other cards and models differ, which is why only the optimistic end may reject.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from search_spaces.hardware import GIB, MIB
from search_spaces.model import ModelFacts

OomKind = Literal["weights", "kv_capacity", "runtime_peak"]
BLOCK_TOKENS = 16
"""vLLM's KV block where the backend does not ask for another size."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Bytes: the optimistic, the likely and the pessimistic end of a cost (low <= likely <= high)."""

    low: float
    likely: float
    high: float

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.likely + other.likely, self.high + other.high)

    def times(self, n: float) -> Interval:
        return Interval(self.low * n, self.likely * n, self.high * n)

    def taken_from(self, total: float) -> Interval:
        """What is left of `total`: the most is left when the cost is lowest."""
        return Interval(total - self.high, total - self.likely, total - self.low)


CONTEXT = Interval(0.30 * GIB, 0.45 * GIB, 0.70 * GIB)
"""CUDA context of one process."""
NCCL = Interval(0.15 * GIB, 0.35 * GIB, 0.80 * GIB)
"""Added to the context when tensor parallel size > 1."""
BUFFERS = Interval(0.20 * GIB, 0.60 * GIB, 1.20 * GIB)
"""Persistent buffers, lazily loaded kernels and workspaces that appear while vLLM profiles."""
CPU_BUFFERS = Interval(0.02 * GIB, 0.05 * GIB, 0.20 * GIB)
"""The same on a CPU: scratchpads. What the processes hold by themselves (2.7 GB of imports a server) lies outside."""
FORWARD_BYTES = Interval(4, 6, 8)
"""Per batched token and unit of width (hidden + MLP), 2-byte activations."""
SAMPLER_BYTES = Interval(10, 16, 25)
"""Per row and vocabulary entry: fp32 logits, and for top-p their sort (values 4, indices 8, cumulated 4)."""
GRAPH_BASE = 48 * MIB
GRAPH_PER_LAYER_AND_SIZE = 0.19 * MIB
"""Fitted to 0.3 to 0.4 GiB for 51 capture sizes of a 32-layer model."""
SPIKE_BASE = 150 * MIB
"""What vLLM itself keeps aside when it suggests a KV size (0.32 v1/worker/gpu_worker.py:994): fragmentation."""


@dataclass(frozen=True, slots=True)
class Demand:
    """One server's size: what decides its memory besides the KV cache."""

    model: ModelFacts
    max_num_batched_tokens: int
    max_num_seqs: int
    tensor_parallel_size: int = 1
    is_eager: bool = False
    n_draft_tokens: int = 0
    """Speculative tokens per step; they widen the sampler's rows and the captured graphs."""
    are_graphs_counted: bool = True
    """vLLM >= 0.21 takes the graphs from the KV budget; before, they had to fit beside it."""
    is_cpu: bool = False
    """No CUDA context and no graphs."""

    @property
    def weights(self) -> Interval:
        size, slack = self.model.weight_bytes(self.tensor_parallel_size), self.model.weight_uncertainty
        return Interval(size * (1 - slack), size, size * (1 + slack))

    @property
    def context(self) -> Interval:
        if self.is_cpu:
            return Interval(0, 0, 0)
        return CONTEXT + NCCL if self.tensor_parallel_size > 1 else CONTEXT

    @property
    def forward_width(self) -> float:
        """Elements alive per batched token at the widest point of a layer, for FORWARD_BYTES."""
        m, tp = self.model, self.tensor_parallel_size
        routed = m.n_active_experts * (m.moe_ffn / tp + m.hidden / 3) + m.shared_ffn / tp
        return max(m.ffn / tp, routed) + m.hidden

    @property
    def activations(self) -> Interval:
        """Peak of the profile run: the forward pass of a full budget, then the sampler over max_num_seqs rows.

        They follow each other, so the larger counts; the pessimistic end adds them (memory torch keeps reserved)."""
        forward = self.max_num_batched_tokens * self.forward_width
        sampler = self.n_rows * self.model.vocab
        return Interval(
            max(forward * FORWARD_BYTES.low, sampler * SAMPLER_BYTES.low / self.tensor_parallel_size),
            max(forward * FORWARD_BYTES.likely, sampler * SAMPLER_BYTES.likely),
            forward * FORWARD_BYTES.high + sampler * SAMPLER_BYTES.high,
        )

    @property
    def n_rows(self) -> int:
        return self.max_num_seqs * (1 + self.n_draft_tokens)

    @property
    def graphs(self) -> Interval:
        if self.is_eager or self.is_cpu:
            return Interval(0, 0, 0)
        n = n_capture_sizes(self.n_rows, self.max_num_batched_tokens)
        likely = GRAPH_BASE + n * self.model.n_layers * GRAPH_PER_LAYER_AND_SIZE
        return Interval(likely / 2, likely, likely * 2)

    @property
    def buffers(self) -> Interval:
        return CPU_BUFFERS if self.is_cpu else BUFFERS

    @property
    def inside(self) -> Interval:
        """What vLLM subtracts from its budget before it sizes the KV cache."""
        base = self.weights + self.buffers + self.activations
        return base + self.graphs if self.are_graphs_counted else base

    @property
    def outside(self) -> Interval:
        """What lies beside vLLM's budget."""
        return self.context if self.are_graphs_counted else self.context + self.graphs

    @property
    def spike(self) -> Interval:
        """Beyond the profiled peak while serving: fragmentation; log-probabilities over every row at the high end."""
        logprobs = self.n_rows * self.model.vocab * 4
        return Interval(0, SPIKE_BASE, SPIKE_BASE + logprobs)


def n_capture_sizes(n_rows: int, max_num_batched_tokens: int) -> int:
    """vLLM 0.32 config/vllm.py:2292: 1, 2, 4, 8..248 by 8, 256.. by 16, up to min(2 x rows, 512, token budget)."""
    largest = min(2 * n_rows, 512, max_num_batched_tokens)
    small = sum(1 for s in (1, 2, 4) if s <= largest)
    return small + min(largest, 255) // 8 + max(0, (largest - 256) // 16 + 1 if largest >= 256 else 0)
