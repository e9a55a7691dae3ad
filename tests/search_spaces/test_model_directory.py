"""Local Hugging Face directories: read, and checked before any GPU is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from search_spaces.known_models import find_model

CONFIG: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 688,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip


def write(directory: Path, config: dict[str, Any] | str | None = None, *files: str) -> str:
    directory.mkdir(exist_ok=True, parents=True)
    if config is not None:
        (directory / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    for name in files:
        (directory / name).write_bytes(b"{}")
    return str(directory)


def refusal(directory: str) -> str:
    with pytest.raises(ValueError) as caught:
        find_model(directory)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_complete_directory_is_read(tmp_path: Path) -> None:
    name = write(tmp_path / "m", CONFIG, "tokenizer.json")
    (tmp_path / "m" / "model.safetensors").write_bytes(b"\0" * 2_000_000)
    model = find_model(name)
    assert model.kv_bytes_per_token() == 2048
    assert model.measured_weight_bytes == 2_000_000
    assert model.weight_bytes() == 2_000_000
    assert model.notes == ()


def test_measured_weights_are_split_like_counted_ones(tmp_path: Path) -> None:
    name = write(tmp_path / "m", CONFIG, "tokenizer.json")
    (tmp_path / "m" / "model.safetensors").write_bytes(b"\0" * 2_000_000)
    assert 1_000_000 <= find_model(name).weight_bytes(2) < 1_100_000


def test_float32_files_are_not_what_ends_up_in_memory(tmp_path: Path) -> None:
    name = write(tmp_path / "m", {**CONFIG, "torch_dtype": "float32"}, "tokenizer.json")
    (tmp_path / "m" / "model.safetensors").write_bytes(b"\0" * 2_000_000)
    assert find_model(name).measured_weight_bytes is None


def test_missing_tokenizer_and_shard_are_both_named(tmp_path: Path) -> None:  # case MODEL-01 a
    message = refusal(write(tmp_path / "m", CONFIG, "model-00001-of-00002.safetensors"))
    assert "model-00002-of-00002.safetensors" in message
    assert "tokenizer missing" in message and "--tokenizer" in message and "--skip-tokenizer-init" in message


def test_missing_tokenizer_alone_is_a_note(tmp_path: Path) -> None:  # case MODEL-01 a
    model = find_model(write(tmp_path / "m", CONFIG))
    assert any("tokenizer missing" in n and "--skip-tokenizer-init" in n for n in model.notes)
    assert any("no weight files" in n for n in model.notes)


def test_lora_adapter_names_its_base(tmp_path: Path) -> None:  # case MODEL-01 b
    directory = tmp_path / "adapter"
    write(directory, None, "adapter_model.safetensors", "tokenizer.json")
    (directory / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base-7b"}))
    assert "this is a LoRA adapter for org/base-7b" in refusal(str(directory))


def test_shards_named_in_the_index_must_be_there(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00003.safetensors", "b": "model-00002-of-00003.safetensors"}}
    directory = tmp_path / "m"
    write(directory, CONFIG, "model-00001-of-00003.safetensors", "tokenizer.json")
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    message = refusal(str(directory))
    assert "model-00002-of-00003" in message and "model-00003-of-00003" in message


def test_an_index_without_any_weights_is_a_configuration_to_simulate(tmp_path: Path) -> None:
    directory = tmp_path / "m"
    write(directory, CONFIG, "tokenizer.json")
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}})
    )
    assert find_model(str(directory)).n_layers == 4


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (("model.gguf",), "GGUF"),
        (("params.json", "consolidated.safetensors"), "Mistral's own format"),
        ((), "is empty"),
        (("readme.md",), "no config.json"),
    ],
)
def test_directories_without_config(tmp_path: Path, files: tuple[str, ...], words: str) -> None:
    assert words in refusal(write(tmp_path / "m", None, *files))


def test_a_nested_folder_is_pointed_at(tmp_path: Path) -> None:
    write(tmp_path / "m" / "snapshot", CONFIG)
    assert "snapshot/" in refusal(str(tmp_path / "m"))


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert "GGUF" in refusal(str(tmp_path / "model.gguf"))
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "give the directory" in refusal(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize(
    ("text", "words"), [("{not json", "line 1 column 2"), ("[]", "expected a JSON object"), ("", "not JSON")]
)
def test_broken_json_names_the_place(tmp_path: Path, text: str, words: str) -> None:
    message = refusal(write(tmp_path / "m", text))
    assert words in message and "config.json" in message


def test_missing_fields_are_named(tmp_path: Path) -> None:
    config = {k: v for k, v in CONFIG.items() if k not in ("hidden_size", "num_hidden_layers")}
    message = refusal(write(tmp_path / "m", config))
    assert "num_hidden_layers" in message and "hidden_size" in message


def test_unknown_type_cannot_be_estimated(tmp_path: Path) -> None:  # case MODEL-03
    config = {**CONFIG, "model_type": "mystery", "architectures": ["MysteryForCausalLM"]}
    message = refusal(write(tmp_path / "m", config))
    assert "cannot estimate" in message and "log" in message


def test_modelopt_keeps_its_quantisation_in_a_file_of_its_own(tmp_path: Path) -> None:
    directory = tmp_path / "m"
    write(directory, CONFIG, "tokenizer.json")
    quant = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    (directory / "hf_quant_config.json").write_text(json.dumps(quant))
    model = find_model(str(directory))
    assert model.weight_bytes_per_parameter == 0.5625
    assert model.kv_dtype_bytes == 1.0


def test_shell_characters_are_only_a_name(tmp_path: Path) -> None:
    name = write(tmp_path / "a $(touch x); b", CONFIG, "tokenizer.json")
    assert find_model(name).n_layers == 4
    assert not Path("x").exists()
