"""Which cache each layer of a config.json keeps: full, sliding window, chunk, MLA latent or constant state.

Refuses to guess: a layer kind it does not know raises `CannotEstimate`, never counts as full attention.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from search_spaces.model import AttentionKind, LayerGroup
from search_spaces.state import state_bytes

Config = Mapping[str, Any]


class CannotEstimate(ValueError):
    """The config's attention cannot be told, so no number is better than a wrong one."""


KINDS: Mapping[str, AttentionKind | None] = {
    "full_attention": "full",
    "global_attention": "full",
    "attention": "full",
    "*": "full",
    "sliding_attention": "sliding",
    "local_attention": "sliding",
    "sliding_window": "sliding",
    "chunked_attention": "chunked",
    "linear_attention": "state",
    "gated_deltanet": "state",
    "mamba": "state",
    "mamba2": "state",
    "M": "state",
    "conv": "state",
    "kda": "state",
    "mlp": None,
    "-": None,
    "moe": None,
    "E": None,
}
"""Names used in layer_types, layers_block_type and hybrid_override_pattern -> cache kind; None keeps nothing."""

DEFAULT_PATTERN = {"gemma2": 2, "gemma3_text": 6, "cohere2": 4}
"""Every n-th layer is full attention where the published config leaves the class default out (transformers)."""
SLIDING_UNLESS_TOLD = frozenset({"mistral", "mixtral", "phi3", "phimoe", "starcoder2", "ministral", "granite_swa"})
"""Types whose `sliding_window`, when set, applies to every layer; others need use_sliding_window: true."""
ALL_STATE = frozenset({"mamba", "mamba2", "falcon_mamba"})


def read_layer_groups(text: Config) -> tuple[LayerGroup, ...]:
    """Groups in the order full, sliding, chunked, mla, state. Needs only the fields about attention.

    Raises CannotEstimate (a ValueError) naming the field that is missing or unknown."""
    n_layers = int(_need(text, "num_hidden_layers"))
    if text.get("model_type") == "falcon_h1":  # attention and Mamba side by side in every layer
        return (LayerGroup(kind="full", n_layers=n_layers), _group("state", n_layers, text))
    kinds = layer_kinds(text, n_layers)
    if len(kinds) != n_layers:
        raise CannotEstimate(f"layer kinds are given for {len(kinds)} layers but num_hidden_layers is {n_layers}")
    if text.get("kv_lora_rank"):
        kinds = ["mla" if k == "full" else k for k in kinds]
    counts = Counter(k for k in kinds if k is not None)
    order: tuple[AttentionKind, ...] = ("full", "sliding", "chunked", "mla", "state")
    return tuple(_group(kind, counts[kind], text) for kind in order if counts[kind])


def layer_kinds(text: Config, n_layers: int) -> list[AttentionKind | None]:
    """The cache kind of each layer; the first rule whose field is present decides."""
    for field, rule in _RULES.items():
        if text.get(field) is not None:
            return rule(text, n_layers)
    kind = str(text.get("model_type", ""))
    if kind in ALL_STATE:
        return ["state"] * n_layers
    if kind in DEFAULT_PATTERN and text.get("sliding_window"):
        return _every(DEFAULT_PATTERN[kind], "full", "sliding", n_layers)
    return _by_window(text, n_layers)


def _by_window(text: Config, n_layers: int) -> list[AttentionKind | None]:
    """`sliding_window` with `use_sliding_window` and `max_window_layers` (Qwen2: the first layers stay full)."""
    is_on = text.get("use_sliding_window", text.get("model_type") in SLIDING_UNLESS_TOLD)
    window, longest = text.get("sliding_window"), text.get("max_position_embeddings")
    if not window or not is_on or (longest and window >= longest):  # a window that never binds is full attention
        return ["full"] * n_layers
    n_full = int(text["max_window_layers"]) if text.get("max_window_layers") is not None else 0
    return [("full" if i < n_full else "sliding") for i in range(n_layers)]


def _named(names: list[str], text: Config) -> list[AttentionKind | None]:
    unknown = sorted({n for n in names if n not in KINDS})
    if unknown:
        raise CannotEstimate(f"layer kind {', '.join(map(repr, unknown))} is not known")
    kinds = [KINDS[n] for n in names]
    if text.get("use_sliding_window") is False or ("sliding" in kinds and not text.get("sliding_window")):
        kinds = ["full" if k == "sliding" else k for k in kinds]
    return kinds


def _every(n: int, hit: AttentionKind, miss: AttentionKind, n_layers: int) -> list[AttentionKind | None]:
    """Layer i is `hit` when i + 1 is a multiple of n."""
    return [hit if (i + 1) % n == 0 else miss for i in range(n_layers)]


def _chunked(text: Config, n_layers: int) -> list[AttentionKind | None]:
    """Llama 4: layers with rotary positions attend inside a chunk, every fourth (no rope) to everything."""
    uses_rope = text.get("no_rope_layers") or []
    if not uses_rope:
        uses_rope = [int((i + 1) % int(text.get("no_rope_layer_interval", 4)) != 0) for i in range(n_layers)]
    return ["chunked" if flag else "full" for flag in uses_rope]


def _kimi(text: Config, n_layers: int) -> list[AttentionKind | None]:
    full = set(_need(text["linear_attn_config"], "full_attn_layers"))  # counted from 1
    return ["full" if i + 1 in full else "state" for i in range(n_layers)]


def _listed(values: Any, text: Config) -> list[AttentionKind | None]:
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise CannotEstimate(f"layer_types must be a list of names, got {values!r}")
    return _named(values, text)


_RULES: Mapping[str, Callable[[Config, int], list[AttentionKind | None]]] = {
    "layer_types": lambda t, n: _listed(t["layer_types"], t),
    "layers_block_type": lambda t, n: _listed(t["layers_block_type"], t),
    "hybrid_override_pattern": lambda t, n: _named(list(t["hybrid_override_pattern"]), t),
    "linear_attn_config": _kimi,
    "full_attention_interval": lambda t, n: _every(int(t["full_attention_interval"]), "full", "state", n),
    "attn_layer_period": lambda t, n: [
        "full" if i % int(t["attn_layer_period"]) == int(t.get("attn_layer_offset", 0)) else "state" for i in range(n)
    ],
    "attn_layer_indices": lambda t, n: ["full" if i in t["attn_layer_indices"] else "state" for i in range(n)],
    "attn_type_list": lambda t, n: ["full" if kind == 1 else "state" for kind in t["attn_type_list"]],
    "attention_chunk_size": _chunked,
    "sliding_window_pattern": lambda t, n: _patterned(t, "sliding_window_pattern", n),
    "_sliding_window_pattern": lambda t, n: _patterned(t, "_sliding_window_pattern", n),
}
"""Config field -> the rule that reads it, most explicit first."""


def _patterned(text: Config, field: str, n_layers: int) -> list[AttentionKind | None]:
    pattern = text[field]
    if not text.get("sliding_window"):
        return ["full"] * n_layers
    if isinstance(pattern, str):  # EXAONE: "LLLG"
        return [("full" if pattern[i % len(pattern)] == "G" else "sliding") for i in range(n_layers)]
    return _every(int(pattern), "full", "sliding", n_layers)


def _group(kind: AttentionKind, n_layers: int, text: Config) -> LayerGroup:
    if kind == "sliding":
        return LayerGroup(kind=kind, n_layers=n_layers, window_tokens=int(_need(text, "sliding_window")))
    if kind == "chunked":
        return LayerGroup(kind=kind, n_layers=n_layers, window_tokens=int(_need(text, "attention_chunk_size")))
    if kind == "state":
        try:
            size = state_bytes(text)
        except KeyError as missing:
            raise CannotEstimate(f"the constant state of its layers needs the field {missing.args[0]}") from missing
        return LayerGroup(kind=kind, n_layers=n_layers, state_bytes_per_sequence=size)
    return LayerGroup(kind=kind, n_layers=n_layers)


def _need(config: Config, field: str) -> Any:
    if config.get(field) is None:
        raise CannotEstimate(f"the field {field} is missing")
    return config[field]
