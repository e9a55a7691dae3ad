"""What a decode step must at least cost on the card, by its vendor's peaks, and how much of them a server used.

MBU (memory bandwidth utilisation) is the bytes a step must read over what the card could have read in that time; MFU
the same for floating-point work. Both are lower bounds: a byte read twice counts once. Serving reaches an MBU of 0.60
to 0.85 in decode and an MFU of 0.40 to 0.60 in prefill (measured runs on H100, A100 and RTX 4090); a server far below
both waits for something else. Nothing here uses fitted efficiencies.
"""

from __future__ import annotations

from dataclasses import dataclass

from optimizer.questions.situation import Situation
from search_spaces.hardware import GpuFacts
from search_spaces.memory_use import kv_dtype_bytes, n_draft_tokens
from search_spaces.model import ModelFacts

UNREAD = ("embedding", "vision")
"""Parts that a decode step does not read whole: it looks up one row a sequence."""
BUSY_MBU, BUSY_MFU = 0.45, 0.30
"""From here on the card itself is the limit: serving reaches 0.60 to 0.85 and 0.40 to 0.60 when it is saturated."""
FULL_MFU = 0.40
"""From here on more of anything only waits."""
IMPOSSIBLE, IMPOSSIBLE_MOE = 1.05, 1.6
"""No card does more than its peak: such a step is misread (a gap a token though steps bring several, another card).
Tokens of a batch choose the same experts more often than by chance, so fewer of those are read than counted here."""


@dataclass(frozen=True, slots=True)
class StepPhysics:
    """Of one decode step of the mean batch, on each of the GPUs. Seconds."""

    n_sequences: float
    n_prefill_tokens: float
    """Of prompts that ride along, on average."""
    memory_s: float
    compute_s: float
    kv_share: float
    """Of the bytes read, those of the KV cache."""
    step_s: float
    """As measured."""
    ridge_tokens: float
    """Tokens in a step from which on the linear layers are bound by compute."""
    is_moe: bool = False

    @property
    def mbu(self) -> float:
        return self.memory_s / self.step_s

    @property
    def mfu(self) -> float:
        return self.compute_s / self.step_s

    @property
    def times_floor(self) -> float:
        """How many times longer the step took than the card needs."""
        return self.step_s / max(self.memory_s, self.compute_s)

    @property
    def is_possible(self) -> bool:
        return self.times_floor * (IMPOSSIBLE_MOE if self.is_moe else IMPOSSIBLE) >= 1

    @property
    def is_card_busy(self) -> bool:
        return self.mbu >= BUSY_MBU or self.mfu >= BUSY_MFU


def decode_physics(s: Situation) -> StepPhysics | None:
    """None unless model, card, batch and step time are known. A host's CPU has no roofline: its rates are guesses."""
    step_s = s.decode_step_s or s.step_s
    if s.model is None or s.gpu is None or s.gpu.is_cpu or s.running is None or not step_s or not s.running.mean:
        return None
    n, tp = max(s.running.mean / s.n_replicas, 1.0), s.tensor_parallel_size
    n_prefill = (s.prefill_tokens_per_s or 0.0) * step_s / s.n_replicas
    weights = weight_bytes_read(s.model, n, tp)
    kv = n * (context_tokens(s) or 0.0) * s.model.kv_bytes_per_token(tp, kv_dtype_bytes(s.model, s.config))
    flops = 2.0 * s.model.n_active_parameters * (n * (1 + n_draft_tokens(s.config)) + n_prefill)
    return StepPhysics(
        n_sequences=n,
        n_prefill_tokens=n_prefill,
        memory_s=(weights + kv) / s.gpu.hbm_bytes_per_s,
        compute_s=flops / tp / peak_flops(s.model, s.gpu),
        kv_share=kv / (weights + kv),
        step_s=step_s,
        ridge_tokens=ridge_tokens(s.model, s.gpu),
        is_moe=s.model.n_experts > 0,
    )


def weight_bytes_read(model: ModelFacts, n_tokens: float, tp: int = 1) -> float:
    """By a step of `n_tokens`: everything dense, and the experts that at least one token is expected to choose."""
    parts = {k: v * model.bytes_per_parameter(k) / tp for k, v in model.parameters().items() if k not in UNREAD}
    experts = parts.pop("experts", 0.0)
    if model.n_experts:
        experts *= 1.0 - (1.0 - model.n_active_experts / model.n_experts) ** n_tokens
    return sum(parts.values()) + experts


def peak_flops(model: ModelFacts, gpu: GpuFacts) -> float:
    is_fp8 = model.weight_bytes_per_parameter == 1 and gpu.fp8_flops is not None
    return gpu.fp8_flops if is_fp8 and gpu.fp8_flops is not None else gpu.bf16_flops


def ridge_tokens(model: ModelFacts, gpu: GpuFacts) -> float:
    return peak_flops(model, gpu) * model.weight_bytes_per_parameter / (2.0 * gpu.hbm_bytes_per_s)


def context_tokens(s: Situation) -> float | None:
    """Mean tokens attended to by a running sequence: from the KV cache's use, else from lengths (half the answer).

    By use a shared prefix counts once, which is right for a lower bound: it stays in the card's own cache."""
    if s.kv_usage is not None and s.kv_tokens and s.is_busy and s.running is not None:
        return s.kv_usage.mean * s.kv_tokens / s.running.mean
    return None if s.prompts is None else s.prompts.mean + (s.outputs.mean / 2 if s.outputs is not None else 0.0)


def window_mfu(s: Situation) -> float | None:
    """Floating-point work of all tokens of the window over what the cards could have done in it."""
    if s.model is None or s.gpu is None or s.gpu.is_cpu:
        return None
    if s.output_tokens_per_s is None or s.prefill_tokens_per_s is None:
        return None
    flops_per_s = 2.0 * s.model.n_active_parameters * (s.output_tokens_per_s + s.prefill_tokens_per_s)
    if s.prompts is not None:
        flops_per_s += s.prefill_tokens_per_s * attention_flops(s.model, s.prompts.mean)
    return flops_per_s / (max(s.n_gpus, 1) * peak_flops(s.model, s.gpu))


def attention_flops(model: ModelFacts, prompt_tokens: float) -> float:
    """Of one prompt token, scores and values over the half of the prompt before it, on average. At 36,000 tokens an
    8B model spends as much on them as on its linear layers."""
    full = sum(g.n_layers for g in model.groups if g.kind in ("full", "mla"))
    return 4.0 * full * model.n_heads * model.head_dim * prompt_tokens / 2


def is_compute_full(s: Situation) -> bool:
    """Whether the card's arithmetic is the limit, over the window or in its decode steps."""
    if (window_mfu(s) or 0.0) >= FULL_MFU:
        return True
    p = decode_physics(s)
    return p is not None and p.is_possible and p.compute_s > p.memory_s and p.mfu >= FULL_MFU
