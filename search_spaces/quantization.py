"""Bytes per weight from `quantization_config` (or ModelOpt's hf_quant_config.json). Refuses unknown methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.layers import CannotEstimate

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Quantization:
    """How linear layers are stored. Embeddings, lm_head, routers and norms stay at 2 bytes (a few methods differ:
    covered by `uncertainty`)."""

    method: str
    bytes_per_parameter: float
    unquantized_parts: frozenset[str] = frozenset()
    kv_dtype_bytes: float = 2.0
    uncertainty: float = 0.02
    """Relative half-width of the weight size."""


NONE = Quantization("none", 2.0, uncertainty=0.005)


def read_quantization(quant: Config | None) -> Quantization:
    """Raises CannotEstimate (a ValueError) for a method whose size is not known."""
    if not quant:
        return NONE
    method = str(quant.get("quant_method", quant.get("quant_algo", ""))).lower()
    if method.startswith("modelopt") or "quant_algo" in quant:
        return _modelopt(quant)
    reader = _METHODS.get(method)
    if reader is None:
        raise CannotEstimate(
            f"quantization method {method!r} is not known (known: {', '.join(sorted(_METHODS))}, modelopt)"
        )
    return reader(quant)


def _fp8(q: Config) -> Quantization:
    return Quantization("fp8", 1.0, _kept(q), uncertainty=0.02)


def _int(q: Config) -> Quantization:
    """AWQ and GPTQ: packed integers, one fp16 scale and one packed zero point per group."""
    bits = int(q.get("bits", q.get("w_bit", 4)))
    group = int(q.get("group_size", q.get("q_group_size", 128)))
    return Quantization(f"int{bits}", _packed(bits, group), _kept(q))


def _packed(bits: int, group: int) -> float:
    return bits / 8 + ((2 + bits / 8) / group if group > 0 else 0.0)


def _mxfp4(q: Config) -> Quantization:
    """4-bit floats, one 8-bit scale per 32 (OCP MX)."""
    return Quantization("mxfp4", 0.5 + 1 / 32, _kept(q), uncertainty=0.02)


def _bitsandbytes(q: Config) -> Quantization:
    if q.get("load_in_8bit"):
        return Quantization("bnb-int8", 1.0, _kept(q), uncertainty=0.04)
    return Quantization("bnb-4bit", 0.5 + 4 / 64, _kept(q), uncertainty=0.06)


def _compressed_tensors(q: Config) -> Quantization:
    groups = q.get("config_groups") or {}
    weights = [g["weights"] for g in groups.values() if isinstance(g, Mapping) and g.get("weights")]
    if not weights:
        raise CannotEstimate("compressed-tensors without config_groups.*.weights")
    sizes = [_tensor_bytes(w) for w in weights]
    kv = q.get("kv_cache_scheme") or {}
    return Quantization(
        "compressed-tensors",
        max(sizes),
        _kept(q),
        kv_dtype_bytes=int(kv["num_bits"]) / 8 if kv.get("num_bits") else 2.0,
        uncertainty=0.02 if len(set(sizes)) == 1 else 0.25,
    )


def _tensor_bytes(weights: Config) -> float:
    bits, group = int(weights.get("num_bits", 8)), int(weights.get("group_size") or 0)
    if bits == 4 and weights.get("type") == "float":
        return 0.5 + 1 / (group or 16)
    return _packed(bits, group) if bits < 8 else 1.0


def _modelopt(q: Config) -> Quantization:
    inner = q.get("quantization", q)
    algo = str(inner.get("quant_algo", "")).upper()
    sizes = {
        "FP8": 1.0,
        "NVFP4": 0.5 + 1 / 16,
        "W4A8_AWQ": _packed(4, 128),
        "W4A16_AWQ": _packed(4, 128),
        "MXFP8": 1 + 1 / 32,
    }
    sizes |= {"FP8_PER_CHANNEL_PER_TOKEN": 1.0, "FP8_PB_WO": 1.0, "W4A16_NVFP4": 0.5 + 1 / 16}
    if algo not in sizes:
        raise CannotEstimate(f"ModelOpt quant_algo {algo!r} is not known (known: {', '.join(sorted(sizes))})")
    kv_scheme = inner.get("kv_cache_quant_algo") or ("FP8" if inner.get("kv_cache_scheme") else None)
    kv = {"FP8": 1.0, "NVFP4": 0.5 + 1 / 16}.get(str(kv_scheme).upper(), 2.0)
    return Quantization(f"modelopt {algo.lower()}", sizes[algo], _kept(inner), kv_dtype_bytes=kv, uncertainty=0.05)


def _kept(q: Config) -> frozenset[str]:
    """Linear parts the checkpoint leaves at 2 bytes: those that an exclusion names as a whole (not single layers)."""
    names: list[str] = []
    for field in ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers", "llm_int8_skip_modules"):
        value = q.get(field)
        names += [str(v) for v in value] if isinstance(value, list) else []
    kept = set()
    for name in names:
        is_pattern = "*" in name or name.startswith("re:")
        if is_pattern and ("self_attn" in name or "attention" in name):
            kept.add("attention")
        if is_pattern and "linear_attn" in name:
            kept.add("state")
        if is_pattern and "shared_expert" in name and "gate" not in name.split("shared_expert")[-1]:
            kept.add("shared_experts")
        if name in ("self_attn", "model.layers.*.self_attn"):
            kept.add("attention")
    return frozenset(kept)


_METHODS = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "awq": _int,
    "awq_marlin": _int,
    "gptq": _int,
    "gptq_marlin": _int,
    "auto-round": _int,
    "mxfp4": _mxfp4,
    "gpt_oss_mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
}

BY_SUFFIX: Mapping[str, Mapping[str, Any]] = {
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "int4": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "int8": {"quant_method": "gptq", "bits": 8, "group_size": 128},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "w4a16": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "w8a8": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "w8a16": {"quant_method": "gptq", "bits": 8, "group_size": 128},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "fp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},
    "mxfp4": {"quant_method": "mxfp4"},
    "bnb": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "4bit": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "8bit": {"quant_method": "bitsandbytes", "load_in_8bit": True},
}
"""Ending of a checkpoint's name -> the quantization_config such checkpoints usually carry."""
