"""Roofline lint: measurements faster than physics. A figure below what the card's peaks allow was not what it says.

Usual reasons: prompts were in the prefix cache, tokens or messages were counted twice, the card or the dtype is another
than was written down. Peaks are the vendor's, dense; nothing fitted is used, so that a finding is certain.
"""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.hardware import GpuFacts
from search_spaces.model import ModelFacts

SLACK = 1.02
"""Peaks are rounded in datasheets."""


@dataclass(frozen=True, kw_only=True)
class Reported:
    """What was reported of one load; None: it was not. Tokens per second of all GPUs together."""

    tp: int = 1
    tpot_ms: float | None = None
    ttft_ms: float | None = None
    """Of requests that did not share a step with others' prefills; smaller than physics it is in any case wrong."""
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    output_tokens_per_s: float | None = None


def faster_than_physics(model: ModelFacts, gpu: GpuFacts, seen: Reported) -> tuple[str, ...]:
    """One line for each figure that the card cannot have reached; empty where all are possible."""
    return tuple(filter(None, (_decode(model, gpu, seen), _prefill(model, gpu, seen), _flops(model, gpu, seen))))


def _decode(model: ModelFacts, gpu: GpuFacts, seen: Reported) -> str | None:
    """A token reads at least the weights that one token uses."""
    if seen.tpot_ms is None:
        return None
    dense = sum(n * model.bytes_per_parameter(part) for part, n in model.parameters().items()
                if part in ("attention", "state", "mlp", "shared_experts", "lm_head"))  # fmt: skip
    experts = model.parameters()["experts"] * model.bytes_per_parameter("experts")
    if model.n_experts:
        experts *= model.n_active_experts / model.n_experts
    least_ms = 1e3 * (dense + experts) / seen.tp / gpu.hbm_bytes_per_s
    if seen.tpot_ms * SLACK >= least_ms:
        return None
    return (
        f"TPOT {seen.tpot_ms:g} ms: reading the weights alone takes {least_ms:.3g} ms on {_cards(gpu, seen)}:"
        " several tokens a message, or another card or dtype"
    )


def _prefill(model: ModelFacts, gpu: GpuFacts, seen: Reported) -> str | None:
    if seen.ttft_ms is None or seen.prompt_tokens is None:
        return None
    least_ms = 1e3 * 2.0 * _active(model) * seen.prompt_tokens / seen.tp / _peak(model, gpu)
    if seen.ttft_ms * SLACK >= least_ms:
        return None
    return (
        f"TTFT {seen.ttft_ms:g} ms: a prompt of {seen.prompt_tokens:g} tokens takes {least_ms:.3g} ms at the peak of"
        f" {_cards(gpu, seen)}: prompts were in the prefix cache"
    )


def _flops(model: ModelFacts, gpu: GpuFacts, seen: Reported) -> str | None:
    """Every token, prompt or output, costs two operations a parameter."""
    if seen.output_tokens_per_s is None or not seen.output_tokens or seen.prompt_tokens is None:
        return None
    tokens_per_s = seen.output_tokens_per_s * (1 + seen.prompt_tokens / seen.output_tokens)
    share = 2.0 * _active(model) * tokens_per_s / seen.tp / _peak(model, gpu)
    if share <= SLACK:
        return None
    return (
        f"{seen.output_tokens_per_s:g} output tokens/s with prompts of {seen.prompt_tokens:g}: {share:.2g} times the"
        f" peak FLOPs of {_cards(gpu, seen)}: prompts were in the prefix cache, or tokens counted twice"
    )


def _active(model: ModelFacts) -> float:
    """Parameters that multiply every token; the embedding is looked up, the head runs on sampled rows only."""
    parts = model.parameters()
    unread = parts["embedding"] + parts["lm_head"] + parts["vision"]
    return float(max(model.n_active_parameters - unread, 0))


def _peak(model: ModelFacts, gpu: GpuFacts) -> float:
    is_fp8 = model.weight_bytes_per_parameter <= 1 and gpu.fp8_flops is not None
    return gpu.fp8_flops if is_fp8 and gpu.fp8_flops is not None else gpu.bf16_flops


def _cards(gpu: GpuFacts, seen: Reported) -> str:
    return gpu.name if seen.tp == 1 else f"{seen.tp} x {gpu.name}"
