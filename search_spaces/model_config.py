"""One reader for every model: a config.json as a mapping -> ModelFacts. Known models and directories pass through it.

Refuses, naming the field or the model_type, whatever it would have to guess: see `CannotEstimate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.layers import CannotEstimate, read_layer_groups
from search_spaces.model import LayerGroup, ModelFacts
from search_spaces.model_types import (
    ARCHITECTURES,
    CLASS_DEFAULTS,
    FIELD_ALIASES,
    PLAIN_MLP,
    SUPPORTED,
    TEXT_CONFIGS,
    TIED_BY_DEFAULT,
    UNREADABLE,
)
from search_spaces.quantization import Quantization, read_quantization
from search_spaces.state import state_shape

Config = Mapping[str, Any]

__all__ = ["CannotEstimate", "read_model", "text_config"]


def read_model(config: Config, name: str, *, measured_weight_bytes: int | None = None) -> ModelFacts:
    """Facts of the checkpoint `name` whose config.json is `config`. Raises ValueError in one line."""
    text = text_config(config)
    model_type = _check_type(config, text, name)
    _check_fields(text, name)
    try:
        groups = read_layer_groups(text)
        quantization = read_quantization(config.get("quantization_config") or text.get("quantization_config"))
    except CannotEstimate as error:
        raise CannotEstimate(f"cannot estimate {name} (model_type {model_type!r}): {error}") from error
    except (TypeError, KeyError, ZeroDivisionError) as error:
        raise CannotEstimate(f"cannot estimate {name}: a field of config.json has an odd value ({error})") from error
    return _facts(config, text, name, model_type, groups, quantization, measured_weight_bytes)


def text_config(config: Config) -> dict[str, Any]:
    """The language model's part: nested in multimodal configs (text_config, llm_config, thinker_config, ...), with old
    field names replaced and the class defaults that published configs leave out filled in."""
    outer: Config = config
    text: Config = config
    while nested := next((text[k] for k in TEXT_CONFIGS if isinstance(text.get(k), Mapping)), None):
        outer, text = text, nested
    merged = dict(text)
    if text is not config:
        kind = merged.get("model_type") or f"{outer.get('model_type', '')}_text"
        merged["model_type"] = kind if kind in SUPPORTED else merged.get("model_type", outer.get("model_type", ""))
        for field in ("tie_word_embeddings", "vocab_size", "quantization_config"):
            if field not in merged and outer.get(field) is not None:
                merged[field] = outer[field]
    for field, others in FIELD_ALIASES.items():
        found = next((merged[o] for o in others if merged.get(o) is not None), None)
        if merged.get(field) is None and found is not None:
            merged[field] = found
    defaults = CLASS_DEFAULTS.get(str(merged.get("model_type", "")), {})
    return {**defaults, **{k: v for k, v in merged.items() if v is not None or k not in defaults}}


def _check_type(config: Config, text: Config, name: str) -> str:
    model_type = str(text.get("model_type", ""))
    if model_type in UNREADABLE:
        raise CannotEstimate(f"cannot estimate {name}: model_type {model_type!r}: {UNREADABLE[model_type]}")
    architectures = config.get("architectures") or []
    is_known_class = any(a in ARCHITECTURES for a in architectures if isinstance(a, str))
    is_explicit = isinstance(text.get("layer_types"), list)
    if model_type in SUPPORTED or is_known_class or is_explicit:
        return model_type or "unknown"
    what = f"model_type {model_type!r} is not known" if model_type else "config.json names no model_type"
    raise CannotEstimate(
        f"cannot estimate {name}: {what} and it lists no layer_types, so its KV cache per token cannot be told; "
        f"measure it: start vLLM once and read 'GPU KV cache size' in its log"
    )


REQUIRED = ("num_hidden_layers", "hidden_size", "vocab_size")


def _check_fields(text: Config, name: str) -> None:
    needed = list(REQUIRED)
    if text.get("model_type") not in ("mamba", "mamba2", "falcon_mamba"):
        needed.append("num_attention_heads")
    missing = [f for f in needed if text.get(f) is None]
    if missing:
        raise ValueError(f"{name}: config.json lacks {', '.join(missing)}; is it the model's own config.json?")
    numbers = (*needed, "num_key_value_heads", "head_dim", "intermediate_size", "moe_intermediate_size")
    for field in numbers:
        value = text.get(field)
        if value is None or (field == "num_key_value_heads" and isinstance(value, list)):
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0 or (value == 0 and field in needed):
            raise ValueError(f"{name}: config.json: {field} must be a positive whole number, got {value!r}")


def _facts(
    config: Config,
    text: Config,
    name: str,
    model_type: str,
    groups: tuple[LayerGroup, ...],
    quantization: Quantization,
    measured: int | None,
) -> ModelFacts:
    n_layers, hidden, heads = (
        int(text["num_hidden_layers"]),
        int(text["hidden_size"]),
        int(text.get("num_attention_heads") or 0),
    )
    head_dim = _head_dim(text, name, hidden, heads)
    moe = _moe(text, n_layers)
    position, notes = max_positions(text)
    has_state = any(g.kind == "state" for g in groups)
    attention, replicated = _attention_parameters(text, hidden, heads, head_dim)
    return ModelFacts(
        name=name,
        architecture=model_type,
        n_layers=n_layers,
        hidden=hidden,
        n_heads=heads,
        n_kv_heads=_kv_heads(text, heads, name),
        head_dim=head_dim,
        vocab=-(-int(text["vocab_size"]) // 64) * 64,
        is_tied=bool(text.get("tie_word_embeddings", model_type in TIED_BY_DEFAULT)),
        max_position_tokens=position,
        weight_bytes_per_parameter=quantization.bytes_per_parameter,
        kv_dtype_bytes=quantization.kv_dtype_bytes,
        layer_groups=groups,
        mla_latent=int(text.get("kv_lora_rank") or 0)
        + (int(text["qk_rope_head_dim"]) if text.get("kv_lora_rank") else 0),
        measured_weight_bytes=measured,
        is_quantized=quantization.method != "none",
        notes=(*notes, *_quantization_notes(quantization)),
        n_mlp_matrices=2 if model_type in PLAIN_MLP or text.get("mlp_hidden_act") == "relu2" else 3,
        attention_parameters_per_layer=attention,
        replicated_attention_parameters=replicated,
        state_parameters_per_layer=state_shape(text).n_parameters if has_state else 0,
        vision_parameters=_vision_parameters(config),
        unquantized_parts=quantization.unquantized_parts,
        weight_uncertainty=0.002 if measured is not None else quantization.uncertainty,
        memory_seen=(),
        **moe,
    )


def _quantization_notes(quantization: Quantization) -> tuple[str, ...]:
    if quantization.kv_dtype_bytes == 2.0:
        return ()
    return (f"the checkpoint asks for a {quantization.kv_dtype_bytes:g}-byte KV cache",)


def _kv_heads(text: Config, heads: int, name: str) -> int:
    value = text.get("num_key_value_heads")
    if isinstance(value, list):
        raise CannotEstimate(f"cannot estimate {name}: num_key_value_heads differs from layer to layer")
    if value is not None:
        return int(value)
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1
    return heads


def _head_dim(text: Config, name: str, hidden: int, heads: int) -> int:
    if text.get("kv_lora_rank"):
        return _nope(text) + int(text.get("qk_rope_head_dim") or 0)
    if text.get("head_dim"):
        return int(text["head_dim"])
    if not heads:
        return 0
    if hidden % heads:
        raise ValueError(
            f"{name}: config.json: head_dim is missing and hidden_size {hidden} is no multiple of {heads} heads"
        )
    return hidden // heads


def _nope(text: Config) -> int:
    """MLA: a head's width without rotary part; the value width where the config does not say."""
    return int(text.get("qk_nope_head_dim") or text.get("v_head_dim") or 128)


def _attention_parameters(t: Config, d: int, heads: int, head_dim: int) -> tuple[int, int]:
    """(per layer, of it on every rank); (0, 0): the plain GQA formula holds."""
    if t.get("kv_lora_rank"):
        rope, nope = int(t.get("qk_rope_head_dim") or 0), _nope(t)
        value = int(t.get("v_head_dim") or nope)
        latent, q_rank = int(t["kv_lora_rank"]), t.get("q_lora_rank")
        down = d * (latent + rope) + (d * int(q_rank) if q_rank else 0)
        up_q = (int(q_rank) if q_rank else d) * heads * (nope + rope)
        return down + up_q + latent * heads * (nope + value) + heads * value * d, down
    if t.get("model_type") in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text") or t.get("attn_output_gate"):
        kv = int(t.get("num_key_value_heads") or heads)
        return d * head_dim * (3 * heads + 2 * kv), 0
    return 0, 0


def _moe(t: Config, n_layers: int) -> dict[str, int]:
    """The MLP side: which layers are MoE, expert widths, dense width."""
    width = int(t.get("intermediate_size") or 0)
    n_experts = int(t.get("num_experts") or 0)
    if t.get("hybrid_override_pattern"):
        return _nemotron_h(t, width, n_experts)
    if not n_experts:
        return {"ffn": int(t.get("shared_intermediate_size") or width or 4 * int(t["hidden_size"]))}
    moe_width = int(t.get("moe_intermediate_size") or width)
    n_moe = sum(_is_moe_layer(t, i) for i in range(n_layers))
    dense = int(t.get("intermediate_size_mlp") or width) if n_moe < n_layers else 0
    return {
        "ffn": dense,
        "n_moe_layers": n_moe,
        "n_experts": n_experts,
        "n_active_experts": int(t.get("num_experts_per_tok") or 0),
        "moe_ffn": moe_width,
        "shared_ffn": _shared_width(t, moe_width),
    }


def _nemotron_h(t: Config, width: int, n_experts: int) -> dict[str, int]:
    pattern = str(t["hybrid_override_pattern"])
    return {
        "ffn": width,
        "n_dense_layers": pattern.count("-"),
        "n_moe_layers": pattern.count("E"),
        "n_experts": n_experts,
        "n_active_experts": int(t.get("num_experts_per_tok") or 0),
        "moe_ffn": int(t.get("moe_intermediate_size") or 0),
        "shared_ffn": int(t.get("moe_shared_expert_intermediate_size") or 0),
    }


def _is_moe_layer(t: Config, i: int) -> bool:
    if i in (t.get("mlp_only_layers") or []):
        return False
    if isinstance(t.get("moe_layers"), list):
        return i in t["moe_layers"]
    if t.get("expert_layer_period"):
        return i % int(t["expert_layer_period"]) == int(t.get("expert_layer_offset", 0))
    start = int(t.get("first_k_dense_replace") or t.get("moe_layer_start_index") or 0)
    if i < start:
        return False
    every = t.get("decoder_sparse_step") or t.get("interleave_moe_layer_step")
    if every:
        return (i + 1) % int(every) == 0
    frequency: int | list[int] = t.get("moe_layer_freq") or t.get("moe_layer_interval") or 1
    if isinstance(frequency, list):  # one flag per layer
        return bool(frequency[i])
    return i % frequency == 0


def _shared_width(t: Config, moe_width: int) -> int:
    for field in ("shared_expert_intermediate_size", "shared_intermediate_size"):
        if t.get(field):
            return int(t[field])
    if str(t.get("model_type", "")).startswith("llama4"):
        return moe_width
    return int(t.get("n_shared_experts") or 0) * moe_width


def max_positions(t: Config) -> tuple[int, tuple[str, ...]]:
    """The longest context vLLM derives (0.32 config/model.py): YaRN and linear scaling multiply, Llama 3's does not."""
    base = t.get("max_position_embeddings")
    if base is None:
        return 2048, ("config.json gives no maximum length; vLLM then assumes 2048",)
    found = t.get("rope_scaling") or t.get("rope_parameters")
    rope: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    kind = rope.get("rope_type", rope.get("type"))
    if kind == "yarn":
        return round(int(rope.get("original_max_position_embeddings") or base) * float(rope.get("factor", 1))), ()
    if kind in ("linear", "dynamic") and not str(t.get("model_type", "")).startswith("gemma3"):
        return round(int(base) * float(rope.get("factor", 1))), ()
    return int(base), ()


def _vision_parameters(config: Config) -> int:
    """A ViT by its own config: 4 d² + MLP per block, patch and projector within 5 %. 0 when there is none."""
    vision = next((config[k] for k in ("vision_config", "visual") if isinstance(config.get(k), Mapping)), None)
    if vision is None:
        return 0
    d = int(vision.get("hidden_size") or vision.get("embed_dim") or 0)
    depth = int(vision.get("num_hidden_layers") or vision.get("depth") or vision.get("layers") or 0)
    width = int(vision.get("intermediate_size") or 4 * d)
    n_matrices = 3 if vision.get("hidden_act") in ("silu", "swish") else 2
    return round(depth * (4 * d * d + n_matrices * d * width) * 1.05)
