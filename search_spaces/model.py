"""Model facts from a Hugging Face config.json: what capacity and step-time arithmetic need, for any architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from search_spaces.memory_seen import MemorySeen

AttentionKind = Literal["full", "sliding", "chunked", "mla", "state"]

PARTS = ("attention", "state", "mlp", "experts", "shared_experts", "router", "embedding", "lm_head", "norms", "vision")
LINEAR_PARTS = frozenset({"attention", "state", "mlp", "experts", "shared_experts"})
"""Parts that a quantised checkpoint stores quantised, unless it says otherwise; the rest stays at 2 bytes."""


@dataclass(frozen=True, kw_only=True)
class LayerGroup:
    """Layers that keep the same kind of cache. Layers that keep none (MLP only, shared KV) belong to no group."""

    kind: AttentionKind
    n_layers: int
    window_tokens: int = 0
    """Sliding window or chunk; 0 for kinds that keep everything or keep a constant state."""
    state_bytes_per_sequence: int = 0
    """`state` layers (Mamba, GDN, linear attention): bytes per layer and sequence, constant in length."""
    n_kv_heads: int = 0
    """0: the model's."""
    key_dim: int = 0
    """Cached key elements per head and token; 0: the model's head_dim."""
    value_dim: int = 0
    """0: the same as the key's."""


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """One checkpoint. Sizes in elements unless named otherwise."""

    name: str
    """Hugging Face id or directory."""
    architecture: str
    """model_type of the config, e.g. `llama`."""
    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ffn: int
    """Width of the dense MLP (SwiGLU: three matrices); 0 if every layer is MoE."""
    vocab: int
    is_tied: bool
    max_position_tokens: int
    weight_bytes_per_parameter: float
    """2 for bf16/fp16, 1 for fp8, about 0.5 for 4-bit (with scales)."""
    kv_dtype_bytes: float = 2.0
    layer_groups: tuple[LayerGroup, ...] = ()
    """Empty: every layer is full attention (MLA if `mla_latent` is set)."""
    n_moe_layers: int = 0
    n_experts: int = 0
    n_active_experts: int = 0
    moe_ffn: int = 0
    shared_ffn: int = 0
    mla_latent: int = 0
    """MLA: kv_lora_rank + qk_rope_head_dim, the elements cached per token and layer; 0 otherwise."""
    measured_weight_bytes: int | None = None
    """Size of the checkpoint's weight files, where they are there; preferred over the count."""
    is_quantized: bool = False
    notes: tuple[str, ...] = ()
    n_dense_layers: int | None = None
    """Layers with a dense MLP; None: all that are not MoE."""
    n_mlp_matrices: int = 3
    """3 for a gated MLP (SwiGLU, GeGLU), 2 for a plain one."""
    attention_parameters_per_layer: int = 0
    """0: by the GQA formula. Set for MLA and gated attention."""
    replicated_attention_parameters: int = 0
    """Of those, what every tensor-parallel rank holds in full (MLA's down projections)."""
    state_parameters_per_layer: int = 0
    vision_parameters: int = 0
    unquantized_parts: frozenset[str] = frozenset()
    """Linear parts that a quantised checkpoint leaves at 2 bytes, e.g. gpt-oss attention."""
    weight_uncertainty: float = 0.005
    """Relative half-width of the weight size; larger where scales or packing are assumed."""
    memory_seen: tuple[MemorySeen, ...] = field(default=(), repr=False)
    """What real starts on the study's card said; corrects the memory arithmetic. No part of what the model is."""

    @property
    def groups(self) -> tuple[LayerGroup, ...]:
        if self.layer_groups:
            return self.layer_groups
        return (LayerGroup(kind="mla" if self.mla_latent else "full", n_layers=self.n_layers),)

    @property
    def n_attention_layers(self) -> int:
        return sum(g.n_layers for g in self.groups if g.kind != "state")

    @property
    def has_state(self) -> bool:
        """True if some layers keep a constant state: vLLM then needs one state block for every running sequence."""
        return any(g.kind == "state" for g in self.groups)

    # ---- weights -----------------------------------------------------------------------------------------------

    def parameters(self) -> dict[str, int]:
        """Parameter count by part (see PARTS). Biases and rotary tables are left out: below 0.1 %."""
        d, per_mlp = self.hidden, self.n_mlp_matrices * self.hidden
        n_dense = self.n_dense_layers if self.n_dense_layers is not None else self.n_layers - self.n_moe_layers
        return {
            "attention": self.n_attention_layers * self._attention_parameters(),
            "state": sum(g.n_layers for g in self.groups if g.kind == "state") * self.state_parameters_per_layer,
            "mlp": n_dense * per_mlp * self.ffn,
            "experts": self.n_moe_layers * self.n_experts * per_mlp * self.moe_ffn,
            "shared_experts": self.n_moe_layers * per_mlp * self.shared_ffn,
            "router": self.n_moe_layers * d * self.n_experts,
            "embedding": self.vocab * d,
            "lm_head": 0 if self.is_tied else self.vocab * d,
            "norms": (2 * self.n_layers + 1) * d,
            "vision": self.vision_parameters,
        }

    @property
    def n_parameters(self) -> int:
        return sum(self.parameters().values())

    @property
    def n_active_parameters(self) -> int:
        """Parameters one token passes through: all but the experts that are not chosen."""
        idle = self.n_moe_layers * (self.n_experts - self.n_active_experts) * self.n_mlp_matrices * self.hidden
        return self.n_parameters - idle * self.moe_ffn

    def bytes_per_parameter(self, part: str) -> float:
        is_stored_small = part in LINEAR_PARTS and part not in self.unquantized_parts
        return self.weight_bytes_per_parameter if is_stored_small else 2.0

    def weight_bytes(self, tp: int = 1) -> int:
        """Weights on one GPU of a tensor-parallel group: the measured files where they are there, else the count."""
        counted = self._counted_weight_bytes(tp)
        if self.measured_weight_bytes is None:
            return round(counted)
        return round(self.measured_weight_bytes * counted / self._counted_weight_bytes(1))

    def _counted_weight_bytes(self, tp: int) -> float:
        total = 0.0
        for part, count in self.parameters().items():
            share = 1.0 if part in ("norms", "router") else 1.0 / tp
            if part == "attention" and count:
                share = self._attention_share(tp)
            total += count * share * self.bytes_per_parameter(part)
        return total

    def _attention_parameters(self) -> int:
        if self.attention_parameters_per_layer:
            return self.attention_parameters_per_layer
        return self.hidden * self.head_dim * 2 * (self.n_heads + self.n_kv_heads)

    def _attention_share(self, tp: int) -> float:
        """Part of a layer's attention weights on one of `tp` ranks; KV heads are replicated when tp exceeds them."""
        total = self._attention_parameters()
        if self.replicated_attention_parameters:
            return (self.replicated_attention_parameters + (total - self.replicated_attention_parameters) / tp) / total
        kv = 2 * self.hidden * self.head_dim * self.n_kv_heads
        return (max(total - kv, 0) / tp + min(kv, total) * _head_share(self.n_kv_heads, tp)) / total

    # ---- KV cache ----------------------------------------------------------------------------------------------

    def group_bytes_per_token(self, group: LayerGroup, tp: int = 1, kv_dtype_bytes: float | None = None) -> float:
        """Cache bytes one token adds on one GPU over the group's layers, while it is inside the window; 0 for state.

        vLLM 0.32 v1/kv_cache_interface.py: K and V per KV head, heads split over tp but never below one; MLA keeps
        one latent, the same on every rank."""
        size = self.kv_dtype_bytes if kv_dtype_bytes is None else kv_dtype_bytes
        if group.kind == "state":
            return 0.0
        if group.kind == "mla":
            return group.n_layers * self.mla_latent * size
        key = group.key_dim or self.head_dim
        heads = group.n_kv_heads or self.n_kv_heads
        return group.n_layers * heads * _head_share(heads, tp) * (key + (group.value_dim or key)) * size

    def kv_bytes_per_token(self, tp: int = 1, kv_dtype_bytes: float | None = None) -> float:
        """What one more token costs on one GPU at long context: windows are full and state is constant."""
        growing = (g for g in self.groups if g.kind in ("full", "mla"))
        return sum(self.group_bytes_per_token(g, tp, kv_dtype_bytes) for g in growing)

    def kv_bytes(self, tokens: int, tp: int = 1, kv_dtype_bytes: float | None = None) -> int:
        """Cache of one sequence of `tokens` on one GPU, windows and constant state included."""
        total = 0.0
        for group in self.groups:
            kept = min(tokens, group.window_tokens) if group.kind in ("sliding", "chunked") else tokens
            total += kept * self.group_bytes_per_token(group, tp, kv_dtype_bytes)
            total += group.n_layers * group.state_bytes_per_sequence / tp
        return round(total)

    def tokens_in(self, kv_bytes: float, tp: int = 1, kv_dtype_bytes: float | None = None) -> int:
        """Longest single sequence whose cache fits into `kv_bytes`; 0 if not even its state does."""
        if self.kv_bytes(1, tp, kv_dtype_bytes) > kv_bytes:
            return 0
        low, high = 1, 2
        while self.kv_bytes(high, tp, kv_dtype_bytes) <= kv_bytes and high < 2**40:
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.kv_bytes(middle, tp, kv_dtype_bytes) <= kv_bytes else (low, middle)
        return low


def _head_share(n_heads: int, tp: int) -> float:
    """Part of the KV heads on one rank: heads / tp, floored at one head (the rest is replication)."""
    return max(1.0, n_heads / tp) / n_heads if n_heads else 0.0


def describe_parameters(counts: Mapping[str, int]) -> str:
    """`8.03 B = attention 1.34 + mlp 5.64 + ...`, parts below 0.5 % left out."""
    total = sum(counts.values())
    shown = [f"{part} {count / 1e9:.2f}" for part, count in counts.items() if count > 0.005 * total]
    return f"{total / 1e9:.2f} B = {' + '.join(shown)}"
