"""Published config.json values of well-known open models, by Hugging Face id. Only what the reader uses.

Taken from the models' own config.json on the Hugging Face Hub. A model is left out rather than guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = dict[str, Any]


def _dense(
    model_type: str, hidden: int, layers: int, heads: int, kv: int, ffn: int, vocab: int, positions: int, **more: Any
) -> Config:
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
        **more,
    }


def _qwen3(hidden: int, layers: int, heads: int, ffn: int, *, tied: bool = False, positions: int = 40960) -> Config:
    more = {"head_dim": 128, "tie_word_embeddings": tied, "sliding_window": None, "use_sliding_window": False}
    return _dense("qwen3", hidden, layers, heads, 8, ffn, 151936, positions, **more)


def _qwen3_moe(
    hidden: int, layers: int, heads: int, kv: int, moe: int, *, experts: int = 128, positions: int = 40960
) -> Config:
    more = {"head_dim": 128, "num_experts": experts, "num_experts_per_tok": 8, "moe_intermediate_size": moe}
    more["decoder_sparse_step"] = 1
    return _dense("qwen3_moe", hidden, layers, heads, kv, 3 * hidden, 151936, positions, **more)


def _qwen2(
    hidden: int, layers: int, heads: int, kv: int, ffn: int, positions: int, *, vocab: int = 152064, tied: bool = False
) -> Config:
    more = {"sliding_window": 131072, "use_sliding_window": False, "max_window_layers": layers}
    return _dense("qwen2", hidden, layers, heads, kv, ffn, vocab, positions, tie_word_embeddings=tied, **more)


def _llama(hidden: int, layers: int, heads: int, kv: int, ffn: int, vocab: int, positions: int, **more: Any) -> Config:
    return _dense("llama", hidden, layers, heads, kv, ffn, vocab, positions, **more)


_LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}


def _llama31(hidden: int, layers: int, heads: int, ffn: int, **more: Any) -> Config:
    return _llama(hidden, layers, heads, 8, ffn, 128256, 131072, rope_scaling=_LLAMA3_ROPE, **more)


def _mistral(hidden: int, layers: int, heads: int, ffn: int, vocab: int, positions: int, **more: Any) -> Config:
    return _dense("mistral", hidden, layers, heads, 8, ffn, vocab, positions, **{"sliding_window": None, **more})


def _mixtral(hidden: int, layers: int, heads: int, ffn: int, vocab: int, positions: int) -> Config:
    more = {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None}
    return _dense("mixtral", hidden, layers, heads, 8, ffn, vocab, positions, **more)


def _gemma2(hidden: int, layers: int, heads: int, kv: int, head_dim: int, ffn: int) -> Config:
    more = {"head_dim": head_dim, "sliding_window": 4096, "tie_word_embeddings": True}
    return _dense("gemma2", hidden, layers, heads, kv, ffn, 256000, 8192, **more)


def _gemma3(hidden: int, layers: int, ffn: int, **more: Any) -> Config:
    text = {"model_type": "gemma3_text", "hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": ffn}
    vision = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
    return {"model_type": "gemma3", "text_config": {**text, "sliding_window": 1024, **more}, "vision_config": vision}


def _gpt_oss(layers: int, experts: int) -> Config:
    kinds = ["sliding_attention", "full_attention"] * (layers // 2)
    more = {"head_dim": 64, "num_local_experts": experts, "num_experts_per_tok": 4, "sliding_window": 128}
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    quant = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    return _dense(
        "gpt_oss", 2880, layers, 64, 8, 2880, 201088, 131072, layer_types=kinds, quantization_config=quant, **more
    )


_MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
_FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def _deepseek(model_type: str, hidden: int, layers: int, heads: int, ffn: int, vocab: int, **more: Any) -> Config:
    yarn = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
    values = {**_MLA, "moe_layer_freq": 1, "rope_scaling": yarn, **more}
    return _dense(model_type, hidden, layers, heads, heads, ffn, vocab, 163840, **values)


def _deepseek_v3() -> Config:
    experts = {"n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048}
    more = {"first_k_dense_replace": 3, "q_lora_rank": 1536, "quantization_config": _FP8}
    return _deepseek("deepseek_v3", 7168, 61, 128, 18432, 129280, **experts, **more)


def _llama4(experts: int, every: int, positions: int) -> Config:
    text = _dense("llama4_text", 5120, 48, 40, 8, 8192, 202048, positions, head_dim=128, intermediate_size_mlp=16384)
    text |= {"num_local_experts": experts, "num_experts_per_tok": 1, "interleave_moe_layer_step": every}
    vision = {"hidden_size": 1408, "intermediate_size": 5632, "num_hidden_layers": 34}
    return {"model_type": "llama4", "text_config": {**text, "attention_chunk_size": 8192}, "vision_config": vision}


def _glm4_moe(hidden: int, layers: int, ffn: int, moe: int, experts: int, first_dense: int, positions: int) -> Config:
    more = {"head_dim": 128, "n_routed_experts": experts, "n_shared_experts": 1, "num_experts_per_tok": 8}
    more |= {"moe_intermediate_size": moe, "first_k_dense_replace": first_dense}
    return _dense("glm4_moe", hidden, layers, 96, 8, ffn, 151552, positions, **more)


_QWEN3_NEXT = _dense(
    "qwen3_next", 2048, 48, 16, 2, 5120, 151936, 262144,
    head_dim=256, full_attention_interval=4, decoder_sparse_step=1, mlp_only_layers=[], num_experts=512,
    num_experts_per_tok=10, moe_intermediate_size=512, shared_expert_intermediate_size=512, linear_conv_kernel_dim=4,
    linear_key_head_dim=128, linear_value_head_dim=128, linear_num_key_heads=16, linear_num_value_heads=32,
)  # fmt: skip
_JAMBA = _dense(
    "jamba", 4096, 32, 32, 8, 14336, 65536, 262144,
    attn_layer_period=8, attn_layer_offset=4, expert_layer_period=2, expert_layer_offset=1, num_experts=16,
    num_experts_per_tok=2, mamba_d_conv=4, mamba_d_state=16, mamba_dt_rank=256, mamba_expand=2,
)  # fmt: skip
_KIMI_K2 = _dense(
    "kimi_k2", 7168, 61, 64, 64, 18432, 163840, 131072,
    **_MLA, q_lora_rank=1536, n_routed_experts=384, n_shared_experts=1, num_experts_per_tok=8,
    moe_intermediate_size=2048, first_k_dense_replace=1, moe_layer_freq=1, quantization_config=_FP8,
)  # fmt: skip
_MISTRAL_SMALL_3 = {
    "model_type": "mistral3",
    "text_config": _mistral(5120, 40, 32, 32768, 131072, 131072, head_dim=128),
    "vision_config": {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "hidden_act": "silu"},
}

KNOWN: Mapping[str, Config] = {
    # Qwen3
    "Qwen/Qwen3-0.6B": _qwen3(1024, 28, 16, 3072, tied=True),
    "Qwen/Qwen3-1.7B": _qwen3(2048, 28, 16, 6144, tied=True),
    "Qwen/Qwen3-4B": _qwen3(2560, 36, 32, 9728, tied=True),
    "Qwen/Qwen3-8B": _qwen3(4096, 36, 32, 12288),
    "Qwen/Qwen3-14B": _qwen3(5120, 40, 40, 17408),
    "Qwen/Qwen3-32B": _qwen3(5120, 64, 64, 25600),
    "Qwen/Qwen3-4B-Instruct-2507": _qwen3(2560, 36, 32, 9728, tied=True, positions=262144),
    "Qwen/Qwen3-30B-A3B": _qwen3_moe(2048, 48, 32, 4, 768),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": _qwen3_moe(2048, 48, 32, 4, 768, positions=262144),
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": _qwen3_moe(2048, 48, 32, 4, 768, positions=262144),
    "Qwen/Qwen3-235B-A22B": _qwen3_moe(4096, 94, 64, 4, 1536),
    "Qwen/Qwen3-235B-A22B-Instruct-2507": _qwen3_moe(4096, 94, 64, 4, 1536, positions=262144),
    "Qwen/Qwen3-Coder-480B-A35B-Instruct": _qwen3_moe(6144, 62, 96, 8, 2560, experts=160, positions=262144),
    "Qwen/Qwen3-Next-80B-A3B-Instruct": _QWEN3_NEXT,
    # Qwen2.5 and Qwen2
    "Qwen/Qwen2.5-0.5B": _qwen2(896, 24, 14, 2, 4864, 32768, vocab=151936, tied=True),
    "Qwen/Qwen2.5-1.5B": _qwen2(1536, 28, 12, 2, 8960, 131072, vocab=151936, tied=True),
    "Qwen/Qwen2.5-1.5B-Instruct": _qwen2(1536, 28, 12, 2, 8960, 32768, vocab=151936, tied=True),
    "Qwen/Qwen2.5-3B": _qwen2(2048, 36, 16, 2, 11008, 32768, vocab=151936, tied=True),
    "Qwen/Qwen2.5-7B": _qwen2(3584, 28, 28, 4, 18944, 131072),
    "Qwen/Qwen2.5-7B-Instruct": _qwen2(3584, 28, 28, 4, 18944, 32768),
    "Qwen/Qwen2.5-14B": _qwen2(5120, 48, 40, 8, 13824, 131072),
    "Qwen/Qwen2.5-14B-Instruct": _qwen2(5120, 48, 40, 8, 13824, 32768),
    "Qwen/Qwen2.5-32B": _qwen2(5120, 64, 40, 8, 27648, 131072),
    "Qwen/Qwen2.5-32B-Instruct": _qwen2(5120, 64, 40, 8, 27648, 32768),
    "Qwen/Qwen2.5-72B": _qwen2(8192, 80, 64, 8, 29568, 131072),
    "Qwen/Qwen2.5-72B-Instruct": _qwen2(8192, 80, 64, 8, 29568, 32768),
    "Qwen/Qwen2.5-Coder-7B-Instruct": _qwen2(3584, 28, 28, 4, 18944, 32768),
    "Qwen/Qwen2.5-Coder-32B-Instruct": _qwen2(5120, 64, 40, 8, 27648, 32768),
    "Qwen/QwQ-32B": _qwen2(5120, 64, 40, 8, 27648, 40960),
    "Qwen/Qwen2-0.5B": _qwen2(896, 24, 14, 2, 4864, 131072, vocab=151936, tied=True),
    "Qwen/Qwen2-1.5B": _qwen2(1536, 28, 12, 2, 8960, 131072, vocab=151936, tied=True),
    "Qwen/Qwen2-1.5B-Instruct": _qwen2(1536, 28, 12, 2, 8960, 32768, vocab=151936, tied=True),
    "Qwen/Qwen2-7B": _qwen2(3584, 28, 28, 4, 18944, 131072),
    "Qwen/Qwen2-7B-Instruct": _qwen2(3584, 28, 28, 4, 18944, 32768),
    "Qwen/Qwen2-72B-Instruct": _qwen2(8192, 80, 64, 8, 29568, 32768),
    # Llama
    "meta-llama/Llama-2-7b-hf": _llama(4096, 32, 32, 32, 11008, 32000, 4096),
    "meta-llama/Llama-2-13b-hf": _llama(5120, 40, 40, 40, 13824, 32000, 4096),
    "meta-llama/Llama-2-70b-hf": _llama(8192, 80, 64, 8, 28672, 32000, 4096),
    "codellama/CodeLlama-7b-hf": _llama(4096, 32, 32, 32, 11008, 32016, 16384),
    "codellama/CodeLlama-13b-hf": _llama(5120, 40, 40, 40, 13824, 32016, 16384),
    "codellama/CodeLlama-34b-hf": _llama(8192, 48, 64, 8, 22016, 32000, 16384),
    "meta-llama/Meta-Llama-3-8B": _llama(4096, 32, 32, 8, 14336, 128256, 8192),
    "meta-llama/Meta-Llama-3-70B": _llama(8192, 80, 64, 8, 28672, 128256, 8192),
    "meta-llama/Llama-3.1-8B": _llama31(4096, 32, 32, 14336),
    "meta-llama/Llama-3.1-8B-Instruct": _llama31(4096, 32, 32, 14336),
    "meta-llama/Llama-3.1-70B": _llama31(8192, 80, 64, 28672),
    "meta-llama/Llama-3.1-70B-Instruct": _llama31(8192, 80, 64, 28672),
    "meta-llama/Llama-3.1-405B": _llama31(16384, 126, 128, 53248),
    "meta-llama/Llama-3.2-1B": _llama31(2048, 16, 32, 8192, head_dim=64, tie_word_embeddings=True),
    "meta-llama/Llama-3.2-3B": _llama31(3072, 28, 24, 8192, head_dim=128, tie_word_embeddings=True),
    "meta-llama/Llama-3.3-70B-Instruct": _llama31(8192, 80, 64, 28672),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": _llama4(16, 1, 10485760),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": _llama4(128, 2, 1048576),
    "lmsys/vicuna-7b-v1.5": _llama(4096, 32, 32, 32, 11008, 32000, 4096),
    "lmsys/vicuna-13b-v1.5": _llama(5120, 40, 40, 40, 13824, 32000, 4096),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": _llama(2048, 22, 32, 4, 5632, 32000, 2048),
    "HuggingFaceTB/SmolLM2-135M": _llama(576, 30, 9, 3, 1536, 49152, 8192, tie_word_embeddings=True),
    "HuggingFaceTB/SmolLM2-1.7B": _llama(2048, 24, 32, 32, 8192, 49152, 8192, tie_word_embeddings=True),
    # Mistral
    "mistralai/Mistral-7B-v0.1": _mistral(4096, 32, 32, 14336, 32000, 32768, sliding_window=4096),
    "mistralai/Mistral-7B-Instruct-v0.2": _mistral(4096, 32, 32, 14336, 32000, 32768),
    "mistralai/Mistral-7B-v0.3": _mistral(4096, 32, 32, 14336, 32768, 32768),
    "mistralai/Mistral-7B-Instruct-v0.3": _mistral(4096, 32, 32, 14336, 32768, 32768),
    "mistralai/Mistral-Nemo-Instruct-2407": _mistral(5120, 40, 32, 14336, 131072, 131072, head_dim=128),
    "mistralai/Mistral-Small-24B-Instruct-2501": _mistral(5120, 40, 32, 32768, 131072, 32768, head_dim=128),
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": _MISTRAL_SMALL_3,
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": _MISTRAL_SMALL_3,
    "mistralai/Mistral-Large-Instruct-2411": _mistral(12288, 88, 96, 28672, 32768, 131072, head_dim=128),
    "mistralai/Mixtral-8x7B-v0.1": _mixtral(4096, 32, 32, 14336, 32000, 32768),
    "mistralai/Mixtral-8x7B-Instruct-v0.1": _mixtral(4096, 32, 32, 14336, 32000, 32768),
    "mistralai/Mixtral-8x22B-v0.1": _mixtral(6144, 56, 48, 16384, 32000, 65536),
    "mistralai/Mixtral-8x22B-Instruct-v0.1": _mixtral(6144, 56, 48, 16384, 32768, 65536),
    # Gemma
    "google/gemma-2-2b": _gemma2(2304, 26, 8, 4, 256, 9216),
    "google/gemma-2-9b": _gemma2(3584, 42, 16, 8, 256, 14336),
    "google/gemma-2-27b": _gemma2(4608, 46, 32, 16, 128, 36864),
    "google/gemma-3-1b-it": _dense(
        "gemma3_text", 1152, 26, 4, 1, 6912, 262144, 32768,
        head_dim=256, sliding_window=512, sliding_window_pattern=6, tie_word_embeddings=True,
    ),
    "google/gemma-3-4b-it": _gemma3(2560, 34, 10240),
    "google/gemma-3-12b-it": _gemma3(3840, 48, 15360, num_attention_heads=16, num_key_value_heads=8),
    "google/gemma-3-27b-it": _gemma3(5376, 62, 21504, num_attention_heads=32, num_key_value_heads=16, head_dim=128),
    # Phi
    "microsoft/phi-4": _dense("phi3", 5120, 40, 40, 10, 17920, 100352, 16384, sliding_window=None),
    "microsoft/Phi-4-mini-instruct": _dense(
        "phi3", 3072, 32, 24, 8, 8192, 200064, 131072, sliding_window=262144, tie_word_embeddings=True
    ),
    "microsoft/Phi-3-mini-4k-instruct": _dense("phi3", 3072, 32, 32, 32, 8192, 32064, 4096, sliding_window=2047),
    "microsoft/Phi-3.5-mini-instruct": _dense("phi3", 3072, 32, 32, 32, 8192, 32064, 131072, sliding_window=262144),
    # gpt-oss
    "openai/gpt-oss-20b": _gpt_oss(24, 32),
    "openai/gpt-oss-120b": _gpt_oss(36, 128),
    # DeepSeek
    "deepseek-ai/DeepSeek-V3": _deepseek_v3(),
    "deepseek-ai/DeepSeek-V3-0324": _deepseek_v3(),
    "deepseek-ai/DeepSeek-V3.1": _deepseek_v3(),
    "deepseek-ai/DeepSeek-R1": _deepseek_v3(),
    "deepseek-ai/DeepSeek-R1-0528": _deepseek_v3(),
    "deepseek-ai/DeepSeek-V2": _deepseek(
        "deepseek_v2", 5120, 60, 128, 12288, 102400,
        q_lora_rank=1536, n_routed_experts=160, n_shared_experts=2, num_experts_per_tok=6,
        moe_intermediate_size=1536, first_k_dense_replace=1,
    ),
    "deepseek-ai/DeepSeek-V2-Lite": _deepseek(
        "deepseek_v2", 2048, 27, 16, 10944, 102400,
        q_lora_rank=None, n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6,
        moe_intermediate_size=1408, first_k_dense_replace=1,
    ),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": _qwen2(1536, 28, 12, 2, 8960, 131072, vocab=151936),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _qwen2(3584, 28, 28, 4, 18944, 131072),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": _qwen2(5120, 48, 40, 8, 13824, 131072),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": _qwen2(5120, 64, 40, 8, 27648, 131072),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": _llama31(4096, 32, 32, 14336),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-70B": _llama31(8192, 80, 64, 28672),
    "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B": _qwen3(4096, 36, 32, 12288, positions=131072),
    # Others
    "moonshotai/Kimi-K2-Instruct": _KIMI_K2,
    "zai-org/GLM-4.5-Air": _glm4_moe(4096, 46, 10944, 1408, 128, 1, 131072),
    "zai-org/GLM-4.5": _glm4_moe(5120, 92, 12288, 1536, 160, 3, 131072),
    "zai-org/GLM-4.6": _glm4_moe(5120, 92, 12288, 1536, 160, 3, 202752),
    "ai21labs/Jamba-v0.1": _JAMBA,
    "allenai/OLMoE-1B-7B-0924": _dense(
        "olmoe", 2048, 16, 16, 16, 1024, 50304, 4096, num_experts=64, num_experts_per_tok=8
    ),
    "facebook/opt-125m": _dense("opt", 768, 12, 12, 12, 3072, 50272, 2048, tie_word_embeddings=True),
    "facebook/opt-1.3b": _dense("opt", 2048, 24, 32, 32, 8192, 50272, 2048, tie_word_embeddings=True),
}  # fmt: skip
