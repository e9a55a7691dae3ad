"""Rules between flags, and what one flag admits: every message names the flag, the value and what to do."""

from __future__ import annotations

import time
from typing import Any

import pytest

from search_spaces.config import Config
from search_spaces.constraint import check_config, violations, warn_config
from search_spaces.flags import parse_value
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model

LLAMA = find_model("Llama-3.1-8B")
MOE = find_model("Mixtral-8x7B")


@pytest.mark.parametrize(
    ("config", "words"),
    [  # case CFG-04
        ({"max_num_batched_tokens": 64, "max_num_seqs": 128}, ("max_num_batched_tokens 64", "max_num_seqs 128")),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 2048, "max_num_seqs": 8, "max_model_len": 8192},
         ("max_num_batched_tokens 2048", "max_model_len 8192")),
        ({"max_num_active_seqs": 65, "max_num_seqs": 64}, ("max_num_active_seqs 65", "max_num_seqs 64")),
        ({"long_prefill_token_threshold": 9000, "max_model_len": 8192}, ("long_prefill_token_threshold 9000", "8192")),
        ({"max_model_len": 200_000}, ("max_model_len 200000", "lower")),
        ({"tensor_parallel_size": 3}, ("tensor_parallel_size 3", "divide")),
        ({"enable_expert_parallel": True}, ("enable_expert_parallel", "no experts")),
        ({"tensor_parallel_size": 4, "decode_context_parallel_size": 3}, ("decode_context_parallel_size 3",)),
        ({"tensor_parallel_size": 4, "data_parallel_size": 4}, ("more GPUs",)),
        ({"speculative_config": "{broken"}, ("speculative_config", "JSON")),
    ],
)  # fmt: skip
def test_what_vllm_refuses_is_refused(config: dict[str, Any], words: tuple[str, ...]) -> None:
    started = time.monotonic()
    messages = check_config(config, LLAMA, n_gpus=8)
    assert time.monotonic() - started < 1.0
    assert len(messages) == 1
    assert all(w in messages[0] for w in words)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"max_num_batched_tokens": 128, "max_num_seqs": 128},
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 8192, "max_num_seqs": 8, "max_model_len": 8192},
        {"long_prefill_token_threshold": 8192, "max_model_len": 8192},
        {"tensor_parallel_size": 8, "decode_context_parallel_size": 2},
        {"gpu_memory_utilization": 1.0},
        {"watermark": 0.0, "max_num_seqs": 1},
        {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}'},
    ],
)
def test_what_vllm_accepts_is_accepted(config: dict[str, Any]) -> None:
    assert check_config(config, LLAMA, n_gpus=8) == []


def test_defaults_of_the_gpu_are_part_of_the_check() -> None:
    """Setting one of the two alone can contradict the other's default."""
    assert check_config({"max_num_seqs": 4096}, LLAMA, gpu=find_gpu("A100-80")) != []
    assert check_config({"max_num_seqs": 4096}, LLAMA, gpu=find_gpu("H100-80")) == []
    assert check_config({"max_num_batched_tokens": 64}, LLAMA, gpu=find_gpu("A100-80")) == []  # max_num_seqs follows


def test_expert_parallel_is_fine_with_experts() -> None:
    assert check_config({"enable_expert_parallel": True}, MOE) == []


def test_violations_grow_with_the_miss() -> None:
    rule = "max_num_batched_tokens / max_num_seqs"
    near = violations({"max_num_batched_tokens": 100, "max_num_seqs": 110})[rule]
    far = violations({"max_num_batched_tokens": 100, "max_num_seqs": 400})[rule]
    fine = violations({"max_num_batched_tokens": 400, "max_num_seqs": 100})[rule]
    assert far > near > 0 > fine


def test_warnings_are_not_refusals() -> None:
    assert any("1.0" in w for w in warn_config({"gpu_memory_utilization": 1.0}))  # case EDGE-13
    assert warn_config({"gpu_memory_utilization": 0.92}) == []
    assert any("ignored" in w for w in warn_config({"gpu_memory_utilization": 0.9, "kv_cache_memory_bytes": 2**30}))
    assert any(
        "never used up" in w
        for w in warn_config({"max_num_batched_tokens": 8192, "max_num_seqs": 2, "max_model_len": 64})
    )


def test_switches_render_both_ways() -> None:  # case CFG-04
    on, off = Config({"enable_prefix_caching": True}), Config({"enable_prefix_caching": False})
    assert on.arguments() == ("--enable-prefix-caching",)
    assert off.arguments() == ("--no-enable-prefix-caching",)


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("gpu_memory_utilization", "0.9", 0.9),
        ("gpu_memory_utilization", 1, 1.0),
        ("gpu_memory_utilization", 0.9999, 0.9999),
        ("max_num_seqs", "1e3", 1000),
        ("max_num_seqs", 64.0, 64),
        ("max_num_batched_tokens", "2k", 2000),
        ("max_num_batched_tokens", "2K", 2048),
        ("max_num_batched_tokens", "1.5k", 1500),
        ("kv_cache_memory_bytes", "64M", 64 * 1024**2),
        ("long_prefill_token_threshold", 0, 0),
        ("enable_prefix_caching", "off", False),
        ("kv_cache_dtype", "fp8", "fp8"),
        ("unknown_flag", "12", 12),
        ("unknown_flag", "fast", "fast"),
    ],
)
def test_values_are_read_as_vllm_reads_them(name: str, raw: object, value: object) -> None:
    read = parse_value(name, raw)
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [  # case EDGE-13
        ("gpu_memory_utilization", "0,9", "write 0.9"),
        ("gpu_memory_utilization", 90, "write 0.9 for 90 %"),
        ("gpu_memory_utilization", "90", "write 0.9 for 90 %"),
        ("gpu_memory_utilization", 0, "0 < value <= 1"),
        ("gpu_memory_utilization", -0.1, "0 < value <= 1"),
        ("gpu_memory_utilization", "nan", "a number"),
        ("gpu_memory_utilization", True, "a number"),
        ("max_num_seqs", 0, "1 <= value"),
        ("max_num_seqs", -1, "1 <= value"),
        ("max_num_seqs", 1.5, "a whole number"),
        ("max_num_seqs", "1k", "takes no k"),
        ("max_num_seqs", "many", "a whole number"),
        ("max_num_batched_tokens", "1.5K", "a whole number"),
        ("watermark", 1.0, "value < 1"),
        ("enable_prefix_caching", "maybe", "true or false"),
        ("kv_cache_dtype", "fp7", "one of auto"),
        ("kv_cache_dtype", True, "one of auto"),
    ],
)
def test_bad_values_name_field_value_and_range(name: str, raw: object, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_value(name, raw, where=f"space.{name}")
    message = str(caught.value)
    assert message.startswith(f"space.{name}: ") and repr(raw) in message and words in message and "\n" not in message
    assert check_config({name: raw})  # type: ignore[dict-item]
