"""How much device memory one server takes on one GPU, term by term: the arithmetic that capacity and simulator share.

Formulas follow vLLM 0.32 v1/worker/gpu_worker.py:634: within `gpu_memory_utilization` vLLM counts weights, buffers that
appear while profiling, the activation peak and the CUDA graphs, and gives the rest to the KV cache. The CUDA context
and NCCL's buffers exist before it looks and lie outside that budget.

Constants are intervals (low, likely, high). They were checked against one recorded run (RTX 4090, Llama-3.1-8B,
vLLM 0.19: 41,408 KV tokens); other cards and models differ, which is why only the optimistic end may reject. What a
real start of the same model said (`ModelFacts.memory_seen`) takes their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from search_spaces.hardware import GIB, MIB
from search_spaces.memory_seen import MemorySeen
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
LOGGED = 0.01 * GIB
"""vLLM logs sizes in GiB with two digits."""
BETWEEN_STARTS = Interval(-64 * MIB, 0, SPIKE_BASE)
"""What one start may take more than another with the same arguments. Assumed; the upper end is vLLM's own reserve."""
OTHER_SIZE_SLACK = 0.02
"""On weights that were seen at another tensor parallel size."""
GRAPHS_SLACK = 0.25
"""On what graphs take more or less than those that were seen, for other batch sizes."""


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
        logged = {s.tensor_parallel_size: s.weights_bytes for s in reversed(self.model.memory_seen) if s.weights_bytes}
        own = logged.get(self.tensor_parallel_size)
        if own is not None:
            return Interval(own - LOGGED, own, own + LOGGED)
        for tp, other in logged.items():
            size, slack = round(size * other / self.model.weight_bytes(tp)), OTHER_SIZE_SLACK
        return Interval(size * (1 - slack), size, size * (1 + slack))

    @property
    def seen(self) -> MemorySeen | None:
        """The start nearest to these budgets that tells what profiling takes, at the same tensor parallel size."""
        telling = [
            s
            for s in self.model.memory_seen
            if s.non_kv_bytes is not None and s.tensor_parallel_size == self.tensor_parallel_size
        ]
        return min(telling, key=lambda s: s.distance(self.max_num_batched_tokens, self.n_rows), default=None)

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
        return self._activations.times(self._seen_share)

    @property
    def _activations(self) -> Interval:
        forward, sampler = self._forward, self._sampler
        return Interval(
            max(forward * FORWARD_BYTES.low, sampler * SAMPLER_BYTES.low / self.tensor_parallel_size),
            max(forward * FORWARD_BYTES.likely, sampler * SAMPLER_BYTES.likely),
            forward * FORWARD_BYTES.high + sampler * SAMPLER_BYTES.high,
        )

    @property
    def _forward(self) -> float:
        return self.max_num_batched_tokens * self.forward_width

    @property
    def _sampler(self) -> float:
        return self.n_rows * self.model.vocab

    @property
    def n_rows(self) -> int:
        return self.max_num_seqs * (1 + self.n_draft_tokens)

    @property
    def graphs(self) -> Interval:
        if self.is_eager or self.is_cpu:
            return Interval(0, 0, 0)
        seen = min(
            (s for s in self.model.memory_seen if s.graph_bytes is not None and not s.is_eager
             and s.tensor_parallel_size == self.tensor_parallel_size),
            key=lambda s: s.distance(self.max_num_batched_tokens, self.n_rows),
            default=None,
        )  # fmt: skip
        likely = self._modelled_graphs
        if seen is None or seen.graph_bytes is None:
            return Interval(likely / 2, likely, likely * 2)
        there = self._as_seen(seen)._modelled_graphs
        size = seen.graph_bytes * likely / there
        slack = GRAPHS_SLACK * abs(size - seen.graph_bytes) + LOGGED
        return Interval(size - slack, size, size + slack)

    @property
    def _modelled_graphs(self) -> float:
        n = n_capture_sizes(self.n_rows, self.max_num_batched_tokens)
        return GRAPH_BASE + n * self.model.n_layers * GRAPH_PER_LAYER_AND_SIZE

    @property
    def buffers(self) -> Interval:
        return self._buffers.times(self._seen_share)

    @property
    def _buffers(self) -> Interval:
        return CPU_BUFFERS if self.is_cpu else BUFFERS

    @property
    def profiled(self) -> Interval:
        """What profiling adds to the weights: buffers that stay, and the activation peak."""
        seen = self.seen
        return self._buffers + self._activations if seen is None else self._carried_over(seen)

    @property
    def _seen_share(self) -> float:
        """A start says the sum of buffers and activations; both are stretched to it alike."""
        return 1.0 if self.seen is None else self.profiled.likely / (self._buffers + self._activations).likely

    def profiled_at(self, seen: MemorySeen) -> Interval:
        """What that start took for buffers and activations: its sum without the likely weights and graphs."""
        assert seen.non_kv_bytes is not None
        there = self._as_seen(seen)
        rest = seen.non_kv_bytes - there.weights.likely - (there.graphs.likely if seen.are_graphs_counted else 0.0)
        found = Interval(rest, rest, rest) + BETWEEN_STARTS
        return Interval(max(found.low, 0.0), max(found.likely, 0.0), max(found.high, 0.0))

    def _carried_over(self, seen: MemorySeen) -> Interval:
        """That start's buffers as they were, its activations moved to these budgets.

        The optimistic end is one that no split between the two undercuts, nor constants up to twice off: with larger
        budgets what was seen and the least growth, with a smaller one what was seen in proportion (all of it
        activations), or half of the least that is assumed anyway."""
        rest, there = self.profiled_at(seen), self._as_seen(seen)
        share = min(self._forward / there._forward, self._sampler / max(there._sampler, 1.0), 1.0)
        here, before = self._buffers + self._activations, there._buffers + there._activations
        is_as_assumed = before.low <= rest.likely <= before.high
        low = rest.low + max(min(self._moves_from(there, doubt=2.0)), 0.0) if share == 1 else rest.low * share
        most = max(self._moves_from(there))
        high = rest.high + most * (1.5 if most > 0 else 0.5)
        if is_as_assumed:
            low, high = max(low, here.low / 2), min(high, here.high)
        likely = rest.likely + self._activations.likely - there._activations.likely
        likely = min(max(likely, low), max(low, high))
        return Interval(low, likely, max(high, likely))

    def _moves_from(self, there: Demand, doubt: float = 1.0) -> Iterator[float]:
        """By how much activations differ from another size's, at every corner of what is assumed of them, and of what
        is `doubt` times off."""
        least = SAMPLER_BYTES.low / self.tensor_parallel_size
        tokens = (FORWARD_BYTES.low / doubt, FORWARD_BYTES.likely, FORWARD_BYTES.high * doubt)
        for f, s in product(tokens, (least / doubt, SAMPLER_BYTES.likely, SAMPLER_BYTES.high * doubt)):
            yield max(f * self._forward, s * self._sampler) - max(f * there._forward, s * there._sampler)
        yield self._activations.high - there._activations.high

    def _as_seen(self, seen: MemorySeen) -> Demand:
        """This demand with the sizes of a start."""
        return replace(
            self,
            max_num_batched_tokens=seen.max_num_batched_tokens,
            max_num_seqs=seen.n_rows,
            n_draft_tokens=0,
            is_eager=seen.is_eager,
            are_graphs_counted=seen.are_graphs_counted,
        )

    @property
    def inside(self) -> Interval:
        """What vLLM subtracts from its budget before it sizes the KV cache."""
        seen = self.seen
        if seen is not None:
            return self._inside_as(seen)
        base = self.weights + self.profiled
        return base + self.graphs if self.are_graphs_counted else base

    def _inside_as(self, seen: MemorySeen) -> Interval:
        """The start told their sum: how it divides between weights, graphs and the rest adds no uncertainty, only by
        how much the graphs differ from there does."""
        weights, graphs = self.weights.likely, self.graphs
        base = Interval(weights, weights, weights) + self.profiled
        if not self.are_graphs_counted:
            return base
        if seen.are_graphs_counted and seen.graph_bytes is None and not (self.is_eager or seen.is_eager):
            moved = abs(graphs.likely - self._as_seen(seen).graphs.likely)
            graphs = Interval(graphs.likely - moved, graphs.likely, graphs.likely + moved)
        return base + graphs

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
