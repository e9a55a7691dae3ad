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
from search_spaces.model import ModelFacts

UNREAD = ("embedding", "vision")
"""Parts that a decode step does not read whole: it looks up one row a sequence."""


@dataclass(frozen=True, slots=True)
class StepPhysics:
    """Of one decode step of the mean batch, on each of the GPUs. Seconds."""

    n_sequences: float
    memory_s: float
    compute_s: float
    kv_share: float
    """Of the bytes read, those of the KV cache."""
    step_s: float
    """As measured."""
    ridge_tokens: float
    """Tokens in a step from which on the linear layers are bound by compute."""

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


def decode_physics(s: Situation) -> StepPhysics | None:
    """None unless model, card, batch and step time are known."""
    step_s = s.decode_step_s or s.step_s
    if s.model is None or s.gpu is None or s.running is None or not step_s or not s.running.mean:
        return None
    n, tp = s.running.mean, max(s.n_gpus, 1)
    weights = weight_bytes_read(s.model, n, tp)
    kv = n * (context_tokens(s) or 0.0) * s.model.kv_bytes_per_token(tp)
    return StepPhysics(
        n_sequences=n,
        memory_s=(weights + kv) / s.gpu.hbm_bytes_per_s,
        compute_s=2.0 * s.model.n_active_parameters * n / tp / peak_flops(s.model, s.gpu),
        kv_share=kv / (weights + kv),
        step_s=step_s,
        ridge_tokens=ridge_tokens(s.model, s.gpu),
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
    """Mean tokens attended to by a running sequence: from the KV cache's use, else from lengths (half the answer)."""
    if s.kv_usage is not None and s.kv_tokens and s.running is not None and s.running.mean:
        return s.kv_usage.mean * s.kv_tokens / s.running.mean
    if s.prompts is None:
        return None
    return s.prompts.mean + (s.outputs.mean / 2 if s.outputs is not None else 0.0)


def window_mfu(s: Situation) -> float | None:
    """Floating-point work of all tokens of the window over what the cards could have done in it."""
    if s.model is None or s.gpu is None or s.output_tokens_per_s is None or s.prefill_tokens_per_s is None:
        return None
    tokens = s.output_tokens_per_s + s.prefill_tokens_per_s
    return 2.0 * s.model.n_active_parameters * tokens / (max(s.n_gpus, 1) * peak_flops(s.model, s.gpu))
