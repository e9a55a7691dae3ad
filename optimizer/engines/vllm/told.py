"""What a running server tells of its arguments and of the model behind its name."""

from __future__ import annotations

import math
from collections.abc import Mapping

from optimizer.engines.vllm.http import cache_config, server_info

TOLD = (
    "max_num_batched_tokens", "max_num_seqs", "max_model_len", "kv_cache_memory_bytes", "gpu_memory_utilization",
    "block_size", "tensor_parallel_size", "watermark", "long_prefill_token_threshold",
)  # fmt: skip
"""Arguments that are read back from a server, under the names of `/server_info` and `vllm:cache_config_info`."""


def told_arguments(url: str, api_key_variable: str = "") -> dict[str, int | float]:
    """By their names: all of TOLD with development endpoints, else those of its KV cache."""
    resolved = (server_info(url, api_key_variable) or {}).get("vllm_config", {})
    sections = [s for s in resolved.values() if isinstance(s, Mapping)]
    told = {name: s[name] for s in sections for name in TOLD if isinstance(s.get(name), int | float)}
    labels = cache_config(url, api_key_variable)
    told |= {name: _number(labels[name]) for name in TOLD if name not in told and _is_number(labels.get(name))}
    return {name: told[name] for name in TOLD if name in told}


def _is_number(text: str | None) -> bool:
    try:
        return text is not None and math.isfinite(float(text))
    except ValueError:
        return False


def _number(text: str) -> int | float:
    return int(text) if text.isdigit() else float(text)
