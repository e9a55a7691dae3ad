"""How long one engine step takes: a roofline of model, GPU and tensor-parallel size.

Symbols: L layers, d hidden, H/Hk query/KV heads, dh head size, p tensor-parallel size, F peak FLOP/s, B memory bytes/s,
T tokens in the step, n sequences. Kernel efficiencies live in `search_spaces.kernels`; what the host costs is here.
Sum of: linear layers (smooth maximum of compute and weight traffic, the experts' traffic by expected coverage), LM head
on sampled rows, elementwise kernels, prefill attention, decode attention (slower beside a prefill on FlashAttention-2
cards), all-reduce, host overhead and sampler. Forms follow published rooflines (Vidur, BLIS inference-sim, GenZ);
constants name their source. Times are seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from search_spaces.hardware import GpuFacts
from search_spaces.model import ModelFacts

STEP_HOST_S = 0.4e-3
"""Per step: input preparation and launch of one CUDA graph (0.3-0.5 ms; BLIS inference-sim fits, vLLM 0.15)."""
LAYER_S = 6 * 3e-6
"""Per layer: two norms, rotary embedding with the norms of q and k, activation, KV write and the rest of the fusions,
six small kernels of 3 us with their gap (1.9-3.3 us at decode in LLMServingSim's RTX 4090 profile; AIConfigurator adds
3 us to every memory-bound kernel). What GEMMs and attention cost at least is in their own entries."""
SEQUENCE_HOST_S = 4.5e-6
"""Per sequence: input batch update (4-5 us; same fits)."""
SYNC_STEP_S, SCHEDULER_S = 0.45e-3, 17.7e-6
"""Per step and per scheduled sequence, only without async scheduling, which hides them: what the host does while the
GPU waits. Measured in the loop of vLLM 0.32's own engine on an EPYC host (CPU backend, model forward left out): 0.87 ms
a step at one sequence, of which STEP_HOST_S is counted above; schedule and update 17.7 us a sequence at 32 and at 64
(10.6 us with nothing between them). One host, one run, +-30 %; messages to workers at TP > 1 are not in it."""
EAGER_LAYER_S = 0.55e-3
"""Per layer, --enforce-eager: launch-bound floor (0.4-0.7 ms; Qwen2-1.5B on A100, SLO-Guard's published runs)."""
OFF_GRAPH_LAYER_S = 0.1e-3
"""Per layer, compiled but outside the captured sizes: launch-bound floor. Assumed: ~10 fused kernels of ~10 us."""
SAMPLER_S, SAMPLER_ROW_S = 24e-6, 1.12e-6
"""25 us for 1 row to 311 us for 256."""
ELEMENTWISE_MBU = 0.85


class StepTimeModel(Protocol):
    """What the simulator asks of a step-time model. Equal arguments give equal times."""

    @property
    def windows(self) -> tuple[int, ...]:
        """Distinct attention windows of the layers (0: none); context sums come in this order."""
        ...

    def decode_line(self, n_decodes: int) -> tuple[float, tuple[float, ...]]:
        """(a, b): a step of `n_decodes` decodes and nothing else takes a + sum(b[g] * contexts[g])."""
        ...

    def mixed_s(self, prefills: Seq[tuple[int, int]], n_sampled: int, n_decodes: int, contexts: Seq[int]) -> float:
        """A step that also prefills. `prefills`: (tokens now, tokens before); `contexts`: tokens attended to by all
        decodes, per window; `n_sampled`: rows that yield a token."""
        ...

    def demand(self, n_tokens: int, n_prefill_tokens: int, seconds: float) -> tuple[float, float]:
        """Shares (0..1) of the card's compute and of its memory bandwidth that such a step keeps busy when alone."""
        ...


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """How the server was booted, as far as step time depends on it."""

    max_num_batched_tokens: int
    max_num_seqs: int
    tp: int = 1
    is_eager: bool = False
    is_async: bool = True
    kv_dtype_bytes: float | None = None
    max_graph_tokens: int | None = None
    """--max-cudagraph-capture-size; None: vLLM's default."""


def graph_sizes(max_num_batched_tokens: int, max_num_seqs: int, most: int | None = None) -> tuple[int, ...]:
    """Captured CUDA-graph sizes (vLLM 0.32 config/vllm.py:2292-2540, decode without speculation)."""
    top = min(max_num_batched_tokens, most if most is not None else min(2 * max_num_seqs, 512))
    sizes = {n for n in (1, 2, 4) if n <= top} | set(range(8, min(top + 1, 256), 8)) | set(range(256, top + 1, 16))
    if max_num_batched_tokens <= top:
        sizes.add(max_num_batched_tokens)
    if max_num_seqs <= top:
        sizes.add(max_num_seqs)
    return tuple(sorted(sizes))


class Roofline:
    """The default step-time model. No residual factor: calibration multiplies its result elsewhere."""

    def __init__(self, model: ModelFacts, gpu: GpuFacts, shape: StepShape) -> None:
        self._model, self._gpu, self._shape, p = model, gpu, shape, shape.tp
        self._sizes = (
            ()
            if shape.is_eager
            else graph_sizes(shape.max_num_batched_tokens, shape.max_num_seqs, shape.max_graph_tokens)
        )
        parts = model.parameters()
        self._experts = parts["experts"] / p
        self._expert_bytes = self._experts * model.bytes_per_parameter("experts")
        self._matrices = _matrices(model, p)
        self._active = sum(m.n * m.k * m.count for m in self._matrices)
        if model.n_experts:
            self._active += self._experts * model.n_active_experts / model.n_experts
        self._fixed_bytes = sum(m.n * m.k * m.count * m.width for m in self._matrices)
        self._is_fp8 = model.weight_bytes_per_parameter == 1 and gpu.fp8_flops is not None
        self._gemm = (gpu.kernels.gemm_fp8 if self._is_fp8 else None) or gpu.kernels.gemm
        self._peak = gpu.fp8_flops if self._is_fp8 and gpu.fp8_flops else gpu.bf16_flops
        self._attention = _AttentionCosts(model, gpu, shape)
        self._linear_cache: dict[int, float] = {}
        self._line_cache: dict[int, tuple[float, tuple[float, ...]]] = {}

    @property
    def windows(self) -> tuple[int, ...]:
        return self._attention.windows

    def decode_line(self, n_decodes: int) -> tuple[float, tuple[float, ...]]:
        line = self._line_cache.get(n_decodes)
        if line is None:
            base = self._common_s(n_decodes, n_decodes, n_decodes) + self._attention.decode_base_s(n_decodes)
            line = self._line_cache[n_decodes] = (base, self._attention.slopes)
        return line

    def mixed_s(self, prefills: Seq[tuple[int, int]], n_sampled: int, n_decodes: int, contexts: Seq[int]) -> float:
        n_tokens = n_decodes
        attention = 0.0
        for chunk, prior in prefills:
            n_tokens += chunk
            attention += self._attention.prefill_s(chunk, prior)
        attention += self._gpu.kernels.prefill.t0_s * self._model.n_attention_layers
        if n_decodes:
            beside = self._attention.decode_base_s(n_decodes)
            for slope, context in zip(self._attention.slopes, contexts, strict=True):
                beside += slope * context
            attention += self._gpu.kernels.mixed.factor * beside
        return self._common_s(n_tokens, n_decodes + len(prefills), n_sampled) + attention

    def demand(self, n_tokens: int, n_prefill_tokens: int, seconds: float) -> tuple[float, float]:
        compute_s = 2.0 * self._active * n_tokens / (self._peak * self._gemm.mfu)
        weights_s = self._weight_bytes(n_tokens) / (self._gpu.hbm_bytes_per_s * self._gemm.mbu)
        rest_s = max(seconds - max(compute_s, weights_s), 0.0)
        share = n_prefill_tokens / n_tokens if n_tokens else 0.0
        compute = min((compute_s + share * rest_s) / seconds, 1.0)
        bandwidth = min((weights_s + (1.0 - share) * rest_s) / seconds, 1.0)
        return compute, bandwidth

    # ---- parts ----------------------------------------------------------------------------------------------------

    def _common_s(self, n_tokens: int, n_sequences: int, n_sampled: int) -> float:
        """Everything but attention."""
        model, shape = self._model, self._shape
        padded, floor = self._on_graph(n_tokens)
        device = self._linear_s(padded) + self._head_s(n_sampled)
        host = STEP_HOST_S + LAYER_S * model.n_layers + SEQUENCE_HOST_S * n_sequences
        sampler = SAMPLER_S + SAMPLER_ROW_S * n_sampled
        if not shape.is_async:
            host += SYNC_STEP_S + SCHEDULER_S * n_sequences
        return max(device, floor * model.n_layers) + host + sampler

    def _on_graph(self, n_tokens: int) -> tuple[int, float]:
        """(tokens after padding to a captured size, launch-bound floor per layer)."""
        if self._shape.is_eager:
            return n_tokens, EAGER_LAYER_S
        if not self._sizes or n_tokens > self._sizes[-1]:
            return n_tokens, OFF_GRAPH_LAYER_S
        return self._sizes[bisect_left(self._sizes, n_tokens)], 0.0

    def _weight_bytes(self, n_tokens: int) -> float:
        """Weights read: all dense ones, and the experts that at least one token is expected to choose."""
        model = self._model
        if not model.n_experts:
            return self._fixed_bytes
        missed = (1.0 - model.n_active_experts / model.n_experts) ** n_tokens
        return self._fixed_bytes + self._expert_bytes * (1.0 - missed)

    def _linear_s(self, n_tokens: int) -> float:
        cached = self._linear_cache.get(n_tokens)
        if cached is not None:
            return cached
        seconds = sum(m.count * self._gemm_s(n_tokens, m) for m in self._matrices) + self._experts_s(n_tokens)
        seconds += self._elementwise_s(n_tokens) + self._all_reduce_s(n_tokens)
        self._linear_cache[n_tokens] = seconds
        return seconds

    def _gemm_s(self, n_tokens: int, m: _Matrix) -> float:
        n_bytes = m.width * m.n * m.k + n_tokens * (m.width * m.k + 2 * m.n)
        return self._gemm.seconds(2.0 * m.n * m.k * n_tokens / self._peak, n_bytes / self._gpu.hbm_bytes_per_s)

    def _experts_s(self, n_tokens: int) -> float:
        """Two grouped GEMMs a layer."""
        model = self._model
        if not model.n_experts:
            return 0.0
        active = self._experts * model.n_active_experts / model.n_experts
        read = self._weight_bytes(n_tokens) - self._fixed_bytes
        launches = 2 * model.n_moe_layers
        compute_s = 2.0 * active * n_tokens / self._peak / launches
        return launches * self._gemm.seconds(compute_s, read / self._gpu.hbm_bytes_per_s / launches)

    def _elementwise_s(self, n_tokens: int) -> float:
        model, p = self._model, self._shape.tp
        width = model.ffn or model.moe_ffn * model.n_active_experts + model.shared_ffn
        n_bytes = model.n_layers * n_tokens * 2 * (10 * model.hidden + 3 * width / p)
        return n_bytes / (ELEMENTWISE_MBU * self._gpu.hbm_bytes_per_s)

    def _all_reduce_s(self, n_tokens: int) -> float:
        """After attention and after the MLP of each layer."""
        model, p = self._model, self._shape.tp
        if p == 1:
            return 0.0
        return 2 * model.n_layers * self._gpu.all_reduce_of(p).seconds(n_tokens * model.hidden * 2)

    def _head_s(self, n_sampled: int) -> float:
        model, gpu, p = self._model, self._gpu, self._shape.tp
        size = model.vocab * model.hidden / p
        compute_s, memory_s = 2.0 * size * n_sampled / gpu.bf16_flops, 2.0 * size / gpu.hbm_bytes_per_s
        return gpu.kernels.gemm.seconds(compute_s, memory_s)


@dataclass(frozen=True)
class _Matrix:
    """`count` linear layers of n x k weights on one GPU, `width` bytes each."""

    n: float
    k: float
    count: int
    width: float


def _matrices(model: ModelFacts, tp: int) -> tuple[_Matrix, ...]:
    """A part's weights as one matrix from the hidden size and one back to it; the sizes sum to the part's count.

    Attention: q, k and v in one, the output projection; MLPs: gate and up in one, down."""
    parts, d = model.parameters(), model.hidden
    heads = model.n_heads + model.n_kv_heads
    into = {"attention": (model.n_heads + 2 * model.n_kv_heads) / (2 * heads) if heads else 0.5}
    layers = {"attention": model.n_attention_layers, "shared_experts": model.n_moe_layers, "router": model.n_moe_layers}
    found = []
    for part in ("attention", "state", "mlp", "shared_experts", "router"):
        if not parts[part]:
            continue
        count = layers.get(part) or model.n_layers
        width, inner = model.bytes_per_parameter(part), parts[part] / count / d / tp
        share = into.get(part, (model.n_mlp_matrices - 1) / model.n_mlp_matrices)
        found.append(_Matrix(inner * share, d, count, width))
        found.append(_Matrix(d, inner * (1 - share), count, width))
    return tuple(found)


class _AttentionCosts:
    """Attention of one model on one card, per group of layers with the same window."""

    def __init__(self, model: ModelFacts, gpu: GpuFacts, shape: StepShape) -> None:
        p = shape.tp
        kv_bytes = shape.kv_dtype_bytes if shape.kv_dtype_bytes is not None else model.kv_dtype_bytes
        layers: dict[int, int] = {}
        read: dict[int, float] = {}
        for group in model.groups:
            if group.kind == "state":
                continue
            window = group.window_tokens if group.kind in ("sliding", "chunked") else 0
            layers[window] = layers.get(window, 0) + group.n_layers
            read[window] = read.get(window, 0.0) + model.group_bytes_per_token(group, p, kv_bytes)
        if not layers:
            layers, read = {0: 0}, {0: 0.0}
        self.windows = tuple(sorted(layers))
        decode, prefill = gpu.kernels.decode, gpu.kernels.prefill
        bandwidth = gpu.hbm_bytes_per_s * decode.mbu
        self.slopes = tuple(read[w] / bandwidth for w in self.windows)
        n_layers = sum(layers.values())
        heads = max(model.n_kv_heads / p, 1.0)
        self._decode_fixed_s = n_layers * decode.t0_s
        self._decode_sequence_s = n_layers * heads * decode.sequence_head_s
        pair_s = 4.0 * (model.n_heads / p) * model.head_dim / (gpu.bf16_flops * prefill.mfu)
        token_bytes = 4.0 * model.head_dim * (model.n_heads / p + heads)
        self._chunk_token_s = n_layers * prefill.n_passes * token_bytes / gpu.hbm_bytes_per_s
        self._groups = tuple((w, layers[w] * pair_s, read[w] / bandwidth) for w in self.windows)

    def decode_base_s(self, n_decodes: int) -> float:
        return self._decode_fixed_s + n_decodes * self._decode_sequence_s

    def prefill_s(self, chunk: int, prior: int) -> float:
        """Compute over all (query, key) pairs, or the traffic of the keys read again, whichever is longer; the chunk's
        own queries, keys, values and outputs come on top."""
        seconds = chunk * self._chunk_token_s
        for window, pair_s, token_s in self._groups:
            seconds += max(
                pair_s * _pairs(chunk, prior, window), token_s * (prior if not window else min(prior, window))
            )
        return seconds


def _pairs(chunk: int, prior: int, window: int) -> float:
    """Sum over the chunk's tokens of the keys each attends to."""
    if not window or prior + chunk <= window:
        return chunk * (prior + chunk / 2)
    growing = max(window - prior, 0)
    return growing * (prior + growing / 2) + (chunk - growing) * window
