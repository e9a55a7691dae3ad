"""Model facts: parameter counts against the published ones, KV bytes by architecture, names, refusals."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from search_spaces.known_models import find_model, known_models
from search_spaces.layers import CannotEstimate, read_layer_groups
from search_spaces.model import LayerGroup, ModelFacts
from search_spaces.model_config import read_model

DATA = Path(__file__).parents[2] / "bench" / "data"
REST = {"hidden_size": 4096, "intermediate_size": 12288, "vocab_size": 32000, "max_position_embeddings": 131072}

PUBLISHED_BILLIONS = {
    "Qwen3-0.6B": 0.596, "Qwen3-8B": 8.19, "Qwen3-14B": 14.77, "Qwen3-32B": 32.76, "Qwen3-30B-A3B": 30.53,
    "Qwen3-235B-A22B": 235.1, "Qwen2.5-7B-Instruct": 7.616, "Qwen2.5-72B": 72.71, "Llama-3.1-8B": 8.03,
    "Llama-3.1-70B": 70.55, "Llama-3.1-405B": 405.9, "Llama-3.2-1B": 1.236, "Llama-2-7b-hf": 6.738,
    "Llama-2-70b-hf": 68.98, "CodeLlama-34b-hf": 33.74, "Mistral-7B-v0.3": 7.248, "Mistral-Small-24B": 23.57,
    "Mixtral-8x7B": 46.70, "Mixtral-8x22B": 140.6, "gemma-2-9b": 9.24, "gemma-2-27b": 27.23, "gemma-3-12b-it": 12.19,
    "gemma-3-27b-it": 27.43, "phi-4": 14.66, "gpt-oss-20b": 20.91, "gpt-oss-120b": 116.8, "DeepSeek-V3": 671.0,
    "DeepSeek-V2-Lite": 15.71, "DeepSeek-R1-Distill-Qwen-1.5B": 1.777, "Qwen3-Next-80B-A3B-Instruct": 79.7,
    "Jamba-v0.1": 51.6, "Llama-4-Scout-17B-16E-Instruct": 108.6, "OLMoE-1B-7B-0924": 6.92,
}  # fmt: skip
ACTIVE_BILLIONS = {
    "gpt-oss-120b": 5.1,
    "DeepSeek-V3": 37,
    "Qwen3-235B-A22B": 22,
    "Mixtral-8x7B": 12.9,
    "Qwen3-30B-A3B": 3.3,
}


@pytest.mark.parametrize(("name", "billions"), PUBLISHED_BILLIONS.items())
def test_parameter_counts_match_the_published_ones(name: str, billions: float) -> None:
    assert find_model(name).n_parameters / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize(("name", "billions"), ACTIVE_BILLIONS.items())
def test_active_parameters(name: str, billions: float) -> None:
    assert find_model(name).n_active_parameters / 1e9 == pytest.approx(billions, rel=0.15)


def test_published_checkpoint_sizes_of_mixed_precision_models() -> None:
    assert find_model("gpt-oss-120b").weight_bytes() / 2**30 == pytest.approx(60.8, rel=0.01)
    assert find_model("gpt-oss-20b").weight_bytes() / 2**30 == pytest.approx(12.8, rel=0.01)
    assert find_model("Qwen3-32B-AWQ").weight_bytes() / 1e9 == pytest.approx(19.3, rel=0.03)
    assert find_model("DeepSeek-V3").weight_bytes() / 1e9 == pytest.approx(675, rel=0.02)


# ---- case MODEL-03 -------------------------------------------------------------------------------------------------

DENSE = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
ALTERNATING = ["sliding_attention", "full_attention"] * 18
SWA_MOE = {
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "layer_types": ALTERNATING,
}
MLA = {"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512,
       "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": 1536}  # fmt: skip
HYBRID = {"num_hidden_layers": 64, "full_attention_interval": 4, "num_key_value_heads": 8, "head_dim": 256}


def facts(config: dict[str, Any], model_type: str) -> ModelFacts:
    return read_model({"num_attention_heads": 32, **REST, **config, "model_type": model_type}, "case")


def test_dense_gqa_keeps_k_and_v_of_every_kv_head() -> None:
    assert facts(DENSE, "llama").kv_bytes_per_token(kv_dtype_bytes=2) == 131072


def test_sliding_windows_stop_growing_after_the_window() -> None:
    model = facts({**SWA_MOE, "num_local_experts": 32, "num_experts_per_tok": 4}, "gpt_oss")
    assert model.kv_bytes(128) == 128 * 73728
    assert model.kv_bytes(129) - model.kv_bytes(128) == 36864
    assert model.kv_bytes_per_token() == 36864


def test_mla_keeps_one_latent_and_is_not_divided_by_tensor_parallelism() -> None:
    model = facts(MLA, "deepseek_v3")
    assert model.kv_bytes_per_token(kv_dtype_bytes=2) == 70272
    assert model.kv_bytes_per_token(tp=8, kv_dtype_bytes=2) == 70272


def test_mla_fields_alone_are_enough() -> None:
    """As the case writes them: no qk_nope_head_dim, no q_lora_rank."""
    given = {k: v for k, v in MLA.items() if k not in ("qk_nope_head_dim", "q_lora_rank")}
    model = facts(given, "deepseek_v3")
    assert model.kv_bytes_per_token(kv_dtype_bytes=2) == 70272
    assert model.n_parameters > 0


def test_hybrid_grows_only_in_its_full_layers_beside_a_constant_state() -> None:
    model = facts(HYBRID, "qwen3_next")
    assert model.kv_bytes_per_token() == 131072
    state = model.kv_bytes(1000) - 1000 * 131072
    assert state > 0
    assert model.kv_bytes(2000) - 2000 * 131072 == state
    assert model.has_state


def test_nested_text_config_is_what_counts() -> None:
    text = {**REST, "num_hidden_layers": 28, "num_key_value_heads": 4, "head_dim": 128, "num_attention_heads": 28}
    vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420}
    for outer, kind in (("qwen2_5_vl", "qwen2_5_vl_text"), ("llava", "llama")):
        model = read_model(
            {"model_type": outer, "text_config": {**text, "model_type": kind}, "vision_config": vision}, "mm"
        )
        assert model.kv_bytes_per_token() == 57344
        assert model.vision_parameters > 0
    thinker = {"model_type": "qwen2_5_omni", "thinker_config": {"text_config": {**text, "model_type": "qwen2"}}}
    assert read_model(thinker, "omni").kv_bytes_per_token() == 57344


def test_the_cache_is_read_from_attention_fields_alone() -> None:
    assert [(g.kind, g.n_layers) for g in read_layer_groups(DENSE)] == [("full", 32)]
    assert [(g.kind, g.n_layers) for g in read_layer_groups(HYBRID)] == [("full", 16), ("state", 48)]
    windows = [(g.kind, g.n_layers, g.window_tokens) for g in read_layer_groups(SWA_MOE)]
    assert windows == [
        ("full", 18, 0),
        ("sliding", 18, 128),
    ]
    assert [(g.kind, g.n_layers) for g in read_layer_groups(MLA)] == [("mla", 61)]


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 8},
         {"full": 32}),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 8},
         {"full": 8, "sliding": 24}),
        ({"model_type": "mistral", "sliding_window": 4096}, {"sliding": 32}),
        ({"model_type": "mistral", "sliding_window": None}, {"full": 32}),
        ({"model_type": "phi3", "sliding_window": 262144, "max_position_embeddings": 131072}, {"full": 32}),
        ({"model_type": "gemma2", "sliding_window": 4096}, {"full": 16, "sliding": 16}),
        ({"model_type": "gemma3_text", "sliding_window": 1024, "sliding_window_pattern": 6},
         {"full": 5, "sliding": 27}),
        ({"model_type": "llama4_text", "attention_chunk_size": 8192}, {"full": 8, "chunked": 24}),
        ({"model_type": "jamba", "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16, "mamba_d_conv": 4,
          "mamba_expand": 2}, {"full": 4, "state": 28}),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*" * 8, "mamba_num_heads": 64,
          "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4}, {"full": 8, "state": 16}),
        ({"model_type": "granitemoehybrid", "layer_types": (["mamba"] * 7 + ["attention"]) * 4, "mamba_n_heads": 48,
          "mamba_d_head": 64, "mamba_d_state": 128, "mamba_d_conv": 4, "mamba_n_groups": 1}, {"full": 4, "state": 28}),
        ({"model_type": "falcon_h1", "mamba_d_ssm": 1024, "mamba_n_heads": 16, "mamba_d_state": 256, "mamba_d_conv": 4},
         {"full": 32, "state": 32}),
    ],
)  # fmt: skip
def test_layer_kinds_of_many_architectures(config: dict[str, Any], kinds: dict[str, int]) -> None:
    model = read_model({**REST, **DENSE, **config}, "x")
    assert {g.kind: g.n_layers for g in model.groups} == kinds
    assert model.kv_bytes(100) > 0
    assert all(g.state_bytes_per_sequence > 0 for g in model.groups if g.kind == "state")


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    model = facts(DENSE, "llama")
    assert model.kv_bytes_per_token(tp=4) == 131072 / 4
    assert model.kv_bytes_per_token(tp=16) == 131072 / 8
    assert model.weight_bytes(8) > model.weight_bytes(1) / 8


def test_multi_head_attention_where_no_kv_heads_are_given() -> None:
    assert (
        read_model({**REST, "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 32}, "x").n_kv_heads
        == 32
    )


def test_facts_built_by_hand_count_as_full_attention() -> None:
    model = ModelFacts(
        name="m", architecture="llama", n_layers=2, hidden=64, n_heads=2, n_kv_heads=2, head_dim=32, ffn=128, vocab=512,
        is_tied=True, max_position_tokens=1024, weight_bytes_per_parameter=2,
    )  # fmt: skip
    assert model.groups == (LayerGroup(kind="full", n_layers=2),)
    assert model.kv_bytes_per_token() == 2 * 2 * 2 * 32 * 2


def test_longest_sequence_is_the_inverse_of_its_bytes() -> None:
    for name in ("gpt-oss-20b", "Qwen3-Next-80B-A3B-Instruct", "DeepSeek-V3", "Mistral-7B-v0.1"):
        model = find_model(name)
        budget = model.kv_bytes(5000)
        tokens = model.tokens_in(budget)
        assert model.kv_bytes(tokens) <= budget
        assert model.kv_bytes(tokens + 1) > budget or model.kv_bytes_per_token() == 0
    assert find_model("Qwen3-8B").tokens_in(10) == 0


# ---- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "brand_new", **DENSE}, "model_type 'brand_new' is not known"),
        (DENSE, "names no model_type"),
        ({"model_type": "qwen3", **DENSE, "layer_types": ["odd_attention"] * 32}, "odd_attention"),
        ({"model_type": "qwen3", **DENSE, "layer_types": ["full_attention"] * 31}, "31 layers"),
        ({"model_type": "qwen3", **DENSE, "layer_types": "alternating"}, "list of names"),
        ({"model_type": "deepseek_v32", **MLA}, "index cache"),
        ({"model_type": "llama", **DENSE, "quantization_config": {"quant_method": "aqlm"}}, "aqlm"),
        ({"model_type": "nemotron_h", **DENSE, "hybrid_override_pattern": "M*" * 16}, "constant state"),
    ],
)
def test_what_cannot_be_told_is_not_guessed(config: dict[str, Any], words: str) -> None:
    with pytest.raises(CannotEstimate, match="cannot estimate") as caught:
        read_model({**REST, **config}, "some/model")
    assert words in str(caught.value) and "some/model" in str(caught.value) and "\n" not in str(caught.value)


def test_missing_and_odd_fields_are_named() -> None:
    with pytest.raises(ValueError, match="lacks hidden_size, vocab_size"):
        read_model({"model_type": "llama", **DENSE}, "m")
    for bad in (0, -3, 4.5, "many", True):
        with pytest.raises(ValueError, match="num_attention_heads must be a positive whole number"):
            read_model({**REST, "model_type": "llama", **DENSE, "num_attention_heads": bad}, "m")


def test_a_new_type_of_a_known_class_or_with_explicit_layers_is_read() -> None:
    assert (
        read_model({**REST, **DENSE, "model_type": "my_llama", "architectures": ["LlamaForCausalLM"]}, "m").n_layers
        == 32
    )
    explicit = {**REST, **DENSE, "model_type": "brand_new", "layer_types": ["full_attention"] * 32}
    assert read_model(explicit, "m").kv_bytes_per_token() == 131072


@pytest.mark.parametrize(
    ("quantization", "size"),
    [
        ({"quant_method": "fp8"}, 1.0),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.52),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 1.0),
        ({"quant_method": "mxfp4"}, 0.53),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.56),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}, 1.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.56),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}}}, 0.52),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}, 1.0),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}, 0.56),
    ],
)  # fmt: skip
def test_quantised_weights(quantization: dict[str, Any], size: float) -> None:
    model = read_model({**REST, **DENSE, "model_type": "llama", "quantization_config": quantization}, "m")
    assert model.weight_bytes_per_parameter == pytest.approx(size, abs=0.01)
    assert model.is_quantized
    assert model.bytes_per_parameter("embedding") == 2.0


# ---- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "same_as"),
    [
        ("qwen3-14b", "Qwen3-14B"),
        ("Qwen/Qwen3-14B", "Qwen3-14B"),
        ("QWEN/QWEN3-14B-Base", "Qwen3-14B"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("Llama-2-7b-chat-hf", "Llama-2-7b-hf"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral-8x7B"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("Qwen/Qwen3-8B (model per sibling PR #1165)", "Qwen3-8B"),
        ("codellama/CodeLlama-34b-Instruct-hf", "CodeLlama-34b-hf"),
    ],
)
def test_spellings_of_a_name(name: str, same_as: str) -> None:
    assert find_model(name).n_parameters == find_model(same_as).n_parameters


def test_instruct_variants_keep_their_own_context_length() -> None:
    assert find_model("Qwen2.5-7B").max_position_tokens == 131072
    assert find_model("Qwen2.5-7B-Instruct").max_position_tokens == 32768
    assert find_model("Qwen2.5-7B-Instruct-AWQ").max_position_tokens == 32768


@pytest.mark.parametrize(
    ("suffix", "size"), [("-FP8", 1.0), ("-AWQ", 0.52), ("-GPTQ-Int4", 0.52), ("-GPTQ-Int8", 1.02), ("-NVFP4", 0.56)]
)
def test_quantised_names_change_the_weights(suffix: str, size: float) -> None:
    model = find_model(f"Qwen3-14B{suffix}")
    assert model.weight_bytes_per_parameter == pytest.approx(size, abs=0.01)
    assert model.weight_bytes() < find_model("Qwen3-14B").weight_bytes()
    assert model.kv_bytes_per_token() == find_model("Qwen3-14B").kv_bytes_per_token()


def test_all_measured_models_are_known() -> None:
    with (DATA / "measured_points.csv").open() as file:
        names = {row["model"] for row in csv.DictReader(file)}
    assert len(names) > 10
    assert all(find_model(n).n_parameters > 1e8 for n in names)


def test_every_known_model_passes_the_reader() -> None:
    assert len(known_models()) > 80
    for name in known_models():
        assert find_model(name).kv_bytes(1024) > 0


@pytest.mark.parametrize(
    "name", ["", "  ", "Qwen9-14B", "$(rm -rf /)", "a;b", "x" * 5000, "nul\0l", "/no/such/dir", "-GGUF"]
)
def test_unknown_names_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(ValueError) as caught:
        find_model(name)
    assert "\n" not in str(caught.value)


def test_close_names_are_offered() -> None:
    with pytest.raises(ValueError, match=r"did you mean .*Qwen3-14B"):
        find_model("Qwen3-14")
