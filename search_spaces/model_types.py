"""Which model types the reader understands, and what their published configs leave to class defaults (transformers)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEXT_CONFIGS = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "language_model_config",
    "text_model_config",
)
"""Where multimodal configs keep the language model."""

FIELD_ALIASES: Mapping[str, tuple[str, ...]] = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "d_model"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": ("num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "head_dim": ("kv_channels", "attention_head_dim"),
    "max_position_embeddings": ("n_positions", "max_sequence_length", "max_seq_len", "seq_length", "model_max_length"),
    "vocab_size": ("padded_vocab_size",),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts"),
    "num_experts_per_tok": ("moe_k", "moe_topk", "experts_per_token", "num_selected_experts", "top_k_experts"),
    "moe_intermediate_size": ("expert_ffn_hidden_size",),
    "n_shared_experts": ("num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
}
"""Our name (Llama's) -> other names of the same number."""

_DENSE = """
llama mistral ministral ministral3 qwen2 qwen3 phi3 phi gemma gemma2 gemma3_text cohere cohere2 starcoder2 olmo olmo2
olmo3 granite glm glm4 exaone exaone4 smollm3 stablelm falcon gpt2 gpt_bigcode gpt_neox gptj opt bloom mpt nemotron
ernie4_5 seed_oss hunyuan_v1_dense arcee apertus helium minicpm minicpm3 internlm2 internlm3 baichuan solar chatglm
qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen3_vl_text persimmon
"""
_MOE = """
mixtral qwen2_moe qwen3_moe phimoe olmoe granitemoe gpt_oss glm4_moe dots1 deepseek_v2 deepseek_v3 kimi_k2 llama4
llama4_text qwen3_vl_moe_text ernie4_5_moe minimax_m2 hunyuan_v1_moe flex_olmo
"""
_STATE = """
jamba bamba granitemoehybrid nemotron_h falcon_h1 mamba mamba2 falcon_mamba lfm2 lfm2_moe qwen3_next qwen3_5_text
qwen3_5_moe_text olmo_hybrid kimi_linear minimax minimax_text_01
"""
SUPPORTED = frozenset(f"{_DENSE} {_MOE} {_STATE}".split())

ARCHITECTURES = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "DeepseekV3ForCausalLM"}
)
"""Classes vLLM dispatches on: a new model_type that names one of these is that model."""

_SPARSE = "it keeps an index cache beside the latent, whose size is not modelled"
_SHARED = "layers share KV heads or caches in a way that is not modelled"
UNREADABLE: Mapping[str, str] = {
    "deepseek_v32": _SPARSE,
    "deepseek_v4": _SPARSE,
    "deepseek_v41": _SPARSE,
    "glm_moe_dsa": _SPARSE,
    "gemma3n_text": _SHARED,
    "gemma3n": _SHARED,
    "gemma4_text": _SHARED,
    "gemma4": _SHARED,
    "mllama": "cross-attention layers keep a cache per image",
    "mllama_text_model": "cross-attention layers keep a cache per image",
    "nemotron-nas": "every layer has its own attention and MLP widths",
    "openelm": "every layer has its own number of heads",
    "mimo_v2_flash": "sliding layers have their own head sizes",
    "zamba2": "layers share attention blocks in a way that is not modelled",
    "zamba": "layers share attention blocks in a way that is not modelled",
    "t5": "encoder-decoder models are not served as a chat or completion model here",
    "whisper": "encoder-decoder models are not served as a chat or completion model here",
}
"""Types known to need arithmetic that is not here, with the reason."""

_PLAIN = "opt gpt2 gpt_bigcode gpt_neox gptj bloom mpt falcon phi starcoder2 nemotron nemotron_h persimmon"
PLAIN_MLP = frozenset(_PLAIN.split())
"""Two matrices instead of a gated MLP's three."""

_TIED = "gemma gemma2 gemma3_text cohere cohere2 gpt2 gpt_bigcode opt bloom mpt falcon starcoder2 lfm2 mamba"
TIED_BY_DEFAULT = frozenset(_TIED.split())
"""Types whose class ties embedding and head when the config does not say."""

CLASS_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": {
        "vocab_size": 262208,
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "gemma2": {"head_dim": 256, "max_position_embeddings": 8192, "sliding_window": 4096},
    "llama4_text": {"attention_chunk_size": 8192, "head_dim": 128, "num_key_value_heads": 8},
    "gpt_oss": {"sliding_window": 128},
}
"""Values that published configs of these types leave out."""
