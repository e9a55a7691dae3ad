"""A host's CPU as a device: memory, budgets and flags of vLLM's CPU build."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from search_spaces.adjust import apply_overrides
from search_spaces.capacity import solve_capacity
from search_spaces.cpu import MOST_MEMORY_BYTES, host_cpu
from search_spaces.hardware import GIB, MIB, batch_defaults
from search_spaces.known_models import find_model
from search_spaces.model import ModelFacts
from search_spaces.overrides import parse_overrides
from search_spaces.space import SearchSpace, Server
from search_spaces.vllm import CPU_MAX_SEQS, default_configs, serving_space

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 688,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 512,
    "max_position_embeddings": 4096, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
HOST = host_cpu(24 * GIB, 8)


@pytest.fixture
def tiny(tmp_path: Path) -> ModelFacts:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer.json").write_text("{}")
    return find_model(str(tmp_path))


def space_of(model: ModelFacts, *names: str) -> SearchSpace:
    servers = [Server(name=n, max_model_len=2048, mean_request_tokens=600) for n in names or ("server",)]
    return serving_space(model, HOST, servers)


@pytest.mark.parametrize(
    ("total_gib", "share_gib"), [(24, 6), (23.4, 5.5), (23.6, 6), (7.7, 2), (1, 0.5), (512, MOST_MEMORY_BYTES / GIB)]
)
def test_a_quarter_of_the_host_rounded_so_that_a_few_mib_do_not_change_it(total_gib: float, share_gib: float) -> None:
    found = host_cpu(int(total_gib * GIB), 4)
    assert found.memory_bytes == share_gib * GIB
    assert host_cpu(int(total_gib * GIB) - 3 * MIB, 4) == found


def test_it_is_named_and_said_to_be_uncalibrated() -> None:
    assert (HOST.name, HOST.is_cpu, HOST.is_calibrated) == ("CPU", True, False)
    assert batch_defaults(HOST) == (2048, 128)  # vLLM 0.32 engine/arg_utils.py:2894, the CPU row
    with pytest.raises(ValueError, match="0 cores"):
        host_cpu(GIB, 0)


def test_nothing_of_cuda_is_in_its_memory(tiny: ModelFacts) -> None:
    solved = solve_capacity(tiny, HOST, max_num_batched_tokens=2048, max_num_seqs=128, max_model_len=2048)
    text = solved.explain()
    assert "CUDA" not in text and "utilisation" not in text and "of the host's memory" in text
    assert solved.failure is None and 5 * GIB < solved.ceiling_bytes < HOST.memory_bytes


@pytest.mark.parametrize("names", [("server",), ("chat", "batch")])
def test_every_configuration_gives_its_kv_cache_in_bytes(tiny: ModelFacts, names: tuple[str, ...]) -> None:
    space = space_of(tiny, *names)
    for configs in (default_configs(space), space.configs({})):
        total = sum(c.int_("kv_cache_memory_bytes") for c in configs.values())
        assert 0 < total < HOST.memory_bytes
        assert all("gpu_memory_utilization" not in c for c in configs.values())
    default = default_configs(space)[names[0]]
    assert (default["max_num_batched_tokens"], default["max_num_seqs"]) == (2048, 128)


def test_the_grids_end_where_a_cpu_gains_nothing(tiny: ModelFacts) -> None:
    grids = {p.name: p.values() for p in space_of(tiny).searched}
    assert (grids["max_num_batched_tokens"][0], grids["max_num_batched_tokens"][-1]) == (128, 8192)
    assert 2048 in grids["max_num_batched_tokens"] and grids["max_num_seqs"][-1] == CPU_MAX_SEQS


@pytest.mark.parametrize(
    ("text", "flag", "value"),
    [
        ("enforce_eager=true", "enforce_eager", True),
        ("block_size=32", "block_size", 32),
        ("num_gpu_blocks_override=40", "num_gpu_blocks_override", 40),
        ("kv_cache_memory_bytes=64M", "kv_cache_memory_bytes", 64 * MIB),
        ("load_format=dummy", "load_format", "dummy"),
        ("kv_cache_dtype=fp8", "kv_cache_dtype", "fp8"),
    ],
)
def test_what_tests_on_a_cpu_set(tiny: ModelFacts, text: str, flag: str, value: object) -> None:
    space = apply_overrides(space_of(tiny), parse_overrides([text]))
    assert space.configs({})["server"][flag] == value


def test_one_instance_of_several_is_set_alone(tiny: ModelFacts) -> None:
    space = apply_overrides(space_of(tiny, "chat", "batch"), parse_overrides(["chat.num_gpu_blocks_override=40"]))
    configs = space.configs({})
    assert configs["chat"]["num_gpu_blocks_override"] == 40 and "num_gpu_blocks_override" not in configs["batch"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu_memory_utilization=0.5", "on a CPU the KV cache is given in bytes"),
        ("block_size=20", "20 is not allowed; blocks on a CPU are multiples of 32"),
        ("kv_cache_dtype=nvfp4", "'nvfp4' is not served on a CPU"),
    ],
)
def test_what_a_cpu_does_not_serve_is_refused_with_the_flag(tiny: ModelFacts, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        apply_overrides(space_of(tiny), parse_overrides([text]))
    assert str(caught.value).startswith(f"--set {text.partition('=')[0]}: ")


def test_a_share_of_memory_is_no_knob_there(tiny: ModelFacts) -> None:
    with pytest.raises(ValueError, match="given in bytes"):
        serving_space(
            tiny, HOST, [Server(name="s", max_model_len=2048, mean_request_tokens=600)], memory_knob="gpu_memory_utilization"
        )  # fmt: skip
