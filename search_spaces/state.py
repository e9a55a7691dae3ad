"""Layers with a constant state (Mamba 1 and 2, gated DeltaNet, KDA, short convolution): bytes and parameters per layer.

Shapes as in vLLM 0.32 model_executor/layers/mamba/mamba_utils.py (one rank); `KeyError` names a missing field.
The convolution state has the model's dtype (2 bytes); the recurrent state too, unless the config asks for float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]

DELTANET_DEFAULTS = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
"""Class defaults of Qwen3-Next in transformers, for configs that leave them out."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """Elements of one layer's state for one sequence, and the layer's parameters."""

    conv_elements: int
    recurrent_elements: int
    n_parameters: int


def state_bytes(text: Config) -> int:
    """Bytes per layer and sequence on one GPU."""
    shape = state_shape(text)
    wide = text.get("mamba_ssm_dtype", text.get("mamba_ssm_cache_dtype")) == "float32"
    return 2 * shape.conv_elements + (4 if wide else 2) * shape.recurrent_elements


def state_shape(text: Config) -> StateShape:
    """By the fields present; KeyError names the one that is missing."""
    if text.get("linear_attn_config"):
        return _kda(text["linear_attn_config"], int(text.get("hidden_size", 0)))
    if text.get("conv_L_cache"):
        return _short_conv(text)
    if text.get("attn_type_list"):
        return _lightning(text)
    if any(k in text for k in ("mamba_n_heads", "mamba_num_heads", "mamba2_num_heads")):
        return _mamba2(text)
    if text.get("model_type") == "mamba2":
        return _mamba2(text)
    if any(k in text for k in ("mamba_d_state", "state_size", "ssm_state_size")):
        return _mamba1(text)
    if _is_deltanet(text):
        return _deltanet({**DELTANET_DEFAULTS, **{k: v for k, v in text.items() if v is not None}})
    raise KeyError("mamba_d_state")


def _is_deltanet(text: Config) -> bool:
    return (
        any(k.startswith("linear_") for k in text)
        or bool(text.get("full_attention_interval"))
        or "linear_attention" in (text.get("layer_types") or ())
    )


def _first(text: Config, *names: str) -> int:
    """The first of these fields that holds a number; KeyError with the first name when none does."""
    for name in names:
        if isinstance(text.get(name), int | float):
            return int(text[name])
    raise KeyError(names[0])


def _deltanet(t: Config) -> StateShape:
    d, kernel = int(t.get("hidden_size", 0)), _first(t, "linear_conv_kernel_dim")
    keys = _first(t, "linear_num_key_heads") * _first(t, "linear_key_head_dim")
    value_heads, value_dim = _first(t, "linear_num_value_heads"), _first(t, "linear_value_head_dim")
    values = value_heads * value_dim
    conv = 2 * keys + values
    weights = d * (2 * keys + 2 * values + 2 * value_heads) + conv * kernel + values * d
    return StateShape(conv * (kernel - 1), value_heads * value_dim * _first(t, "linear_key_head_dim"), weights)


def _mamba2(t: Config) -> StateShape:
    d, kernel = int(t.get("hidden_size", 0)), _first(t, "mamba_d_conv", "conv_kernel")
    state = _first(t, "mamba_d_state", "ssm_state_size", "state_size")
    heads = _first(t, "mamba_n_heads", "mamba_num_heads", "num_heads")
    inner = _mamba2_inner(t, heads)
    groups = int(t.get("mamba_n_groups", t.get("n_groups", 1)))
    conv = inner + 2 * groups * state
    weights = d * (inner + conv + heads) + conv * kernel + inner * d
    return StateShape(conv * (kernel - 1), inner * state, weights)


def _mamba2_inner(t: Config, heads: int) -> int:
    if isinstance(t.get("mamba_d_ssm"), int):
        return int(t["mamba_d_ssm"])
    for name in ("mamba_d_head", "mamba_head_dim", "head_dim"):
        if isinstance(t.get(name), int) and (name != "head_dim" or t.get("model_type") == "mamba2"):
            return heads * int(t[name])
    return _first(t, "mamba_expand", "expand") * _first(t, "hidden_size")


def _mamba1(t: Config) -> StateShape:
    d, kernel = _first(t, "hidden_size"), _first(t, "mamba_d_conv", "conv_kernel", "d_conv")
    state = _first(t, "mamba_d_state", "state_size", "ssm_state_size")
    inner = _first(t, "intermediate_size") if t.get("state_size") else _first(t, "mamba_expand", "expand") * d
    rank = t.get("mamba_dt_rank", t.get("time_step_rank"))
    rank = int(rank) if isinstance(rank, int) else -(-d // 16)
    weights = d * 2 * inner + inner * kernel + inner * (rank + 2 * state) + rank * inner + inner * state + inner * d
    return StateShape(inner * (kernel - 1), inner * state, weights)


def _kda(t: Config, d: int) -> StateShape:
    heads, dim = _first(t, "num_heads"), _first(t, "head_dim")
    kernel, width = _first(t, "short_conv_kernel_size"), heads * dim
    return StateShape(3 * width * (kernel - 1), heads * dim * dim, 4 * d * width + 2 * (d * dim + dim * width))


def _short_conv(t: Config) -> StateShape:
    d = _first(t, "conv_dim", "hidden_size")
    return StateShape(d * (_first(t, "conv_L_cache") - 1), 0, d * 3 * d + d * d)


def _lightning(t: Config) -> StateShape:
    """MiniMax-01 linear attention: one head_dim x head_dim state per head."""
    d, heads = _first(t, "hidden_size"), _first(t, "num_attention_heads")
    dim = _first(t, "head_dim") if t.get("head_dim") else d // heads
    return StateShape(0, heads * dim * dim, 5 * d * heads * dim)
