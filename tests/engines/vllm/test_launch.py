"""The words a server is started with, and whether it runs with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from optimizer.engines.vllm.interpreter import VllmInstall
from optimizer.engines.vllm.launch import (
    check_device_names,
    check_kv_size_given,
    command,
    differences,
    notices,
    server_words,
    split_overridden,
)
from optimizer.errors import EngineFailed, UserError
from search_spaces.config import Config

SCRIPT = VllmInstall("/v/bin/python", "0.32.0", False, ("/v/bin/vllm", "serve"))
MODULE = VllmInstall("/v/bin/python", "0.32.0+cpu", True, ("/v/bin/python", "-m", "vllm.entrypoints.openai.api_server"))


def test_words_are_flags_of_the_command_line(tmp_path: Path) -> None:
    config = Config(
        {"max_num_seqs": 8, "watermark": 0.1, "enable_prefix_caching": False, "spec_method": "ngram", "model": "other"}
    )
    words = server_words(config, "org/m; rm -rf x")
    assert words == [
        *("org/m; rm -rf x", "--max-num-seqs", "8", "--watermark", "0.1", "--no-enable-prefix-caching"),
        *("--spec-method", "ngram", "--enable-prompt-tokens-details"),
    ]


def test_a_folder_without_weights_gets_random_ones(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert server_words(Config({}), str(tmp_path))[-2:] == ["--load-format", "dummy"]
    assert "random" in notices(Config({}), str(tmp_path))[0]
    assert "dummy" not in server_words(Config({"load_format": "auto"}), str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"x")
    assert "dummy" not in server_words(Config({}), str(tmp_path)) and notices(Config({}), str(tmp_path)) == ()
    assert "dummy" not in server_words(Config({}), "org/model")


def test_the_script_takes_the_model_as_a_word_and_the_module_as_a_flag() -> None:
    config = Config({"kv_cache_memory_bytes": 1, "enable_prompt_tokens_details": False})
    tail = [
        *("--kv-cache-memory-bytes", "1", "--no-enable-prompt-tokens-details"),
        *("--host", "127.0.0.1", "--port", "8101"),
    ]
    assert command(SCRIPT, config, "m", 8101) == ["/v/bin/vllm", "serve", "m", *tail]
    assert command(MODULE, config, "m", 8101) == [*MODULE.command, "--model", "m", *tail]


def test_what_the_program_decides_is_refused() -> None:
    with pytest.raises(UserError, match="port: the program chooses it"):
        server_words(Config({"port": 1}), "m")
    with pytest.raises(UserError, match="kv_cache_memory_bytes"):
        check_kv_size_given(MODULE, Config({"num_gpu_blocks_override": 40}))
    check_kv_size_given(MODULE, Config({"gpu_memory_utilization": 0.2}))
    check_kv_size_given(SCRIPT, Config({}))


def test_a_mig_slice_needs_a_vllm_that_knows_its_name() -> None:  # case GPU-01
    old = VllmInstall("p", "0.20.1", False, ("vllm", "serve"))
    with pytest.raises(EngineFailed, match=r"MIG UUID MIG-2 is not supported by vLLM 0.20.1") as raised:
        check_device_names(old, ("MIG-2",))
    assert not raised.value.is_config_fault
    check_device_names(old, ("GPU-1",))
    check_device_names(SCRIPT, ("MIG-2",))
    check_device_names(VllmInstall("p", "nightly", False, ("vllm", "serve")), ("MIG-2",))


RESOLVED = {
    "scheduler_config": {"max_num_seqs": 16, "watermark": 0.0, "policy": "fcfs", "async_scheduling": False},
    "cache_config": {"enable_prefix_caching": True, "block_size": 32},
    "optimization_level": 2,
}


def test_arguments_that_did_not_arrive_are_found() -> None:  # case VER-03
    asked = Config({"max_num_seqs": 16, "block_size": 32, "enable_prefix_caching": True, "kv_cache_dtype": "auto"})
    assert differences(asked, {"max_num_seqs": 16}, RESOLVED) == []
    assert differences(Config({"max_num_seqs": 8}), {}, RESOLVED) == ["max_num_seqs: asked 8, runs with 16"]
    assert differences(Config({"max_num_seqs": 8}), {"max_num_seqs": 8}, RESOLVED), "parsed, then changed"
    assert differences(Config({"enable_prefix_caching": False}), None, RESOLVED)
    assert differences(Config({"watermark": 0.1}), {"watermark": 0.2}, {}) == ["watermark: asked 0.1, runs with 0.2"]
    assert differences(Config({"watermark": 0, "max_model_len": -1, "unknown": 3}), {}, RESOLVED) == []
    assert differences(Config({"dtype": "bfloat16"}), {"dtype": "float16"}, {})


def test_what_vllm_settles_by_platform_is_noted_only() -> None:
    found = differences(Config({"async_scheduling": True, "max_num_seqs": 8}), {}, RESOLVED)
    wrong, noted = split_overridden(found)
    assert wrong == ["max_num_seqs: asked 8, runs with 16"]
    assert noted == ["async_scheduling: asked True, runs with False"]


def test_little_shared_memory_is_said_before_several_ranks_start() -> None:  # case OOM-19
    two = Config({"tensor_parallel_size": 2})
    (text,) = notices(two, "org/m", shared_bytes=67_108_864)
    assert "64 MiB" in text and "--shm-size" in text
    assert notices(two, "org/m", shared_bytes=10 * 2**30) == ()
    assert notices(Config({}), "org/m", shared_bytes=67_108_864) == ()


def test_a_server_that_finds_others_on_its_card_can_start() -> None:
    """With exact KV bytes vLLM 0.32 still asks for 92 % of the card to be free, unless it is told otherwise."""
    config = Config({"max_num_seqs": 8, "kv_cache_memory_bytes": 2**30})
    words = command(SCRIPT, config, "m", 8100, shares_card=True)
    assert words[words.index("--gpu-memory-utilization") + 1] == "0.05"
    assert "--gpu-memory-utilization" not in command(SCRIPT, config, "m", 8100)
    own = Config({"gpu_memory_utilization": 0.4})
    assert command(SCRIPT, own, "m", 8100, shares_card=True).count("--gpu-memory-utilization") == 1
