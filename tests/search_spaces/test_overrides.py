"""Users fix, narrow, widen and add parameters; every bad value names its place, itself and what is allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from search_spaces.adjust import apply_overrides
from search_spaces.constraint import check_config
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model
from search_spaces.overrides import parse_overrides, read_overrides
from search_spaces.space import SearchSpace, Server
from search_spaces.vllm import serving_space

LLAMA, A100 = find_model("Llama-3.1-8B"), find_gpu("A100-80")
SERVERS = {
    "one": (Server(name="main", max_model_len=8192, mean_request_tokens=1200),),
    "two": tuple(Server(name=n, max_model_len=8192, mean_request_tokens=1200) for n in ("chat", "batch")),
}


def space(which: str = "one") -> SearchSpace:
    return serving_space(LLAMA, A100, SERVERS[which])


def from_yaml(section: dict[str, Any], which: str = "one") -> SearchSpace:
    names = [s.name for s in SERVERS[which]] if which == "two" else []
    return apply_overrides(space(which), read_overrides(section, names))


def values(made: SearchSpace, name: str) -> tuple[Any, ...]:
    return made.by_name[name].values()


def test_fixing_a_value() -> None:
    made = apply_overrides(space(), parse_overrides(sets=["--max-num-seqs=100"]))
    assert values(made, "max_num_seqs") == (100,)
    assert "max_num_seqs" not in {p.name for p in made.searched}
    assert made.configs({})["main"]["max_num_seqs"] == 100


def test_ranges_narrow_widen_and_keep_their_steps() -> None:
    made = apply_overrides(space(), parse_overrides(ranges=["max_num_seqs=16:256", "max_num_batched_tokens=512:65536"]))
    assert values(made, "max_num_seqs")[0] == 16 and values(made, "max_num_seqs")[-1] == 256
    assert values(made, "max_num_batched_tokens")[-1] == 65536
    assert all(v % 64 == 0 for v in values(made, "max_num_batched_tokens"))
    stepped = apply_overrides(space(), parse_overrides(ranges=["max_num_seqs=16:64:16", "watermark=0:0.1:0.05"]))
    assert values(stepped, "max_num_seqs") == (16, 32, 48, 64)
    assert values(stepped, "watermark") == (0.0, 0.05, 0.1)
    ratio = apply_overrides(space(), parse_overrides(ranges=["max_num_seqs=16:128:*2"]))
    assert values(ratio, "max_num_seqs") == (16, 32, 64, 128)


def test_choices_and_suffixes() -> None:
    made = apply_overrides(space(), parse_overrides(choices=["watermark=0.05,0", "max_num_batched_tokens=2K,8k"]))
    assert values(made, "watermark") == (0.0, 0.05)
    assert values(made, "max_num_batched_tokens") == (2048, 8000)


def test_shares_or_tokens_of_the_long_prefill_threshold() -> None:
    shares = apply_overrides(space(), parse_overrides(choices=["long_prefill_token_threshold=0,1/8,0.5"]))
    assert values(shares, "long_prefill_token_threshold") == (0, 0.125, 0.5)
    tokens = apply_overrides(space(), parse_overrides(choices=["long_prefill_token_threshold=0,256"]))
    assert values(tokens, "long_prefill_token_threshold") == (0, 256)
    assert tokens.configs({"long_prefill_token_threshold": 256})["main"]["long_prefill_token_threshold"] == 256
    with pytest.raises(ValueError, match="mixes shares"):
        apply_overrides(space(), parse_overrides(choices=["long_prefill_token_threshold=0.5,256"]))


def test_adding_known_and_unknown_flags() -> None:
    made = apply_overrides(space(), parse_overrides(adds=["block_size=16,32", "some_new_flag=1,2,fast"]))
    assert values(made, "block_size") == (16, 32)
    assert values(made, "some_new_flag") == (1, 2, "fast")
    assert any("some_new_flag" in n for n in made.notes)
    assert made.configs({"block_size": 32, "some_new_flag": "fast"})["main"]["some_new_flag"] == "fast"
    switch = apply_overrides(space(), parse_overrides(adds=["enforce_eager=true,false"]))
    assert switch.configs({"enforce_eager": True})["main"].arguments()[-1] == "--enforce-eager"


def test_setting_a_known_flag_that_is_not_searched_passes_it_on() -> None:
    made = apply_overrides(space(), parse_overrides(sets=["block_size=32"]))
    assert made.configs({})["main"]["block_size"] == 32
    assert made.fingerprint != space().fingerprint


def test_the_yaml_form() -> None:
    made = from_yaml(
        {"max_num_seqs": {"min": 16, "max": 256}, "watermark": [0, 0.05], "enable_prefix_caching": False,
         "block-size": [16, 32]}
    )  # fmt: skip
    assert values(made, "max_num_seqs")[-1] == 256
    assert values(made, "watermark") == (0.0, 0.05)
    assert made.configs({})["main"]["enable_prefix_caching"] is False
    assert values(made, "block_size") == (16, 32)


def test_one_server_of_several() -> None:
    made = from_yaml({"chat": {"max_num_seqs": 64}, "batch.max_num_seqs": [128, 256], "watermark": 0}, "two")
    assert values(made, "chat.max_num_seqs") == (64,)
    assert values(made, "batch.max_num_seqs") == (128, 256)
    assert values(made, "chat.watermark") == values(made, "batch.watermark") == (0.0,)
    extra = apply_overrides(space("two"), parse_overrides(sets=["chat.block_size=32"]))
    configs = extra.configs({})
    assert configs["chat"]["block_size"] == 32 and "block_size" not in configs["batch"]


def test_servers_share_what_is_shared() -> None:
    with pytest.raises(ValueError, match="shared by all servers"):
        apply_overrides(space("two"), parse_overrides(sets=["chat.kv_cache_dtype=fp8"]))
    with pytest.raises(ValueError, match="kv_split"):
        apply_overrides(space("two"), parse_overrides(sets=["kv_cache_memory_bytes=4G"]))
    with pytest.raises(ValueError, match="no server 'web'; the servers are chat, batch"):
        apply_overrides(space("two"), parse_overrides(sets=["web.max_num_seqs=4"]))
    pinned = apply_overrides(space("two"), parse_overrides(sets=["kv_split=0.3"]))
    assert values(pinned, "kv_split") == (0.3,)


def test_one_memory_knob_never_both() -> None:
    made = apply_overrides(space(), parse_overrides(ranges=["gpu_memory_utilization=0.8:0.9:0.05"]))
    assert "kv_cache_memory_bytes" not in made.by_name
    assert values(made, "gpu_memory_utilization") == (0.8, 0.85, 0.9)
    config = made.configs({})["main"]
    assert "kv_cache_memory_bytes" not in config and "gpu_memory_utilization" in config


def test_full_utilisation_is_accepted_with_a_warning() -> None:  # case EDGE-13
    made = apply_overrides(space(), parse_overrides(sets=["gpu_memory_utilization=1.0"]))
    assert values(made, "gpu_memory_utilization") == (1.0,)
    assert any("1.0" in n and "no room" in n for n in made.notes)


def test_the_contract_is_fixed_not_searched() -> None:
    made = apply_overrides(space(), parse_overrides(sets=["max_model_len=4k"]))
    assert made.configs({})["main"]["max_model_len"] == 4000
    with pytest.raises(ValueError, match="contract"):
        apply_overrides(space(), parse_overrides(choices=["max_model_len=2048,4096"]))
    with pytest.raises(ValueError, match="longer than the model"):
        apply_overrides(space(), parse_overrides(sets=["max_model_len=999999"]))


def test_what_can_change_answers_says_so() -> None:  # case CFG-05
    made = apply_overrides(space(), parse_overrides(choices=["kv_cache_dtype=auto,fp8"]))
    assert made.answers_at_risk == ("kv_cache_dtype",)
    assert any("kv_cache_dtype can change the model's answers" in n for n in made.notes)
    unchanged = apply_overrides(space(), parse_overrides(sets=["kv_cache_dtype=auto"]))
    assert unchanged.answers_at_risk == () and unchanged.notes == ()


def test_later_overrides_win() -> None:
    made = apply_overrides(space(), parse_overrides(sets=["max_num_seqs=64", "max_num_seqs=32"]))
    assert values(made, "max_num_seqs") == (32,)


def test_overridden_spaces_are_never_refused() -> None:  # case CFG-04
    made = apply_overrides(
        space(),
        parse_overrides(
            ranges=["max_num_seqs=1:4096", "max_num_batched_tokens=16:4096"],
            choices=["long_prefill_token_threshold=0,8,5000"],
            adds=["enable_chunked_prefill=true,false", "max_num_scheduled_tokens=128,100000"],
        ),
    )
    rng = np.random.default_rng(8)
    for _ in range(2000):
        assert check_config(made.configs(made.sample(rng))["main"], LLAMA) == []


@pytest.mark.parametrize(
    ("section", "path", "words"),
    [  # case EDGE-13
        ({"gpu_memory_utilization": "0,9"}, "space.gpu_memory_utilization", "write 0.9"),
        ({"gpu_memory_utilization": 90}, "space.gpu_memory_utilization", "0 < value <= 1"),
        ({"gpu_memory_utilization": 0}, "space.gpu_memory_utilization", "0 < value <= 1"),
        (
            {"gpu_memory_utilization": {"min": 0.95, "max": 0.8}},
            "space.gpu_memory_utilization",
            "min 0.95 is above max 0.8",
        ),
        ({"max_num_seqs": 0}, "space.max_num_seqs", "1 <= value"),
        ({"max_num_seqs": -1}, "space.max_num_seqs", "1 <= value"),
        ({"max_num_seqs": 1.5}, "space.max_num_seqs", "a whole number"),
        ({"max_num_seqs": [64, 1.5]}, "space.max_num_seqs[1]", "a whole number"),
        ({"max_num_seqs": {"min": 8, "max": 64, "step": 0}}, "space.max_num_seqs.step", "above 0"),
        ({"max_num_seqs": {"min": 8, "max": 64, "ratio": 1}}, "space.max_num_seqs.ratio", "above 1"),
        ({"max_num_seqs": {"min": 8, "max": 64, "step": 1.5}}, "space.max_num_seqs", "whole numbers"),
        ({"max_num_seqs": {"min": 0, "max": 64, "log": True}}, "space.max_num_seqs.min", "1 <= value"),
        ({"watermark": {"min": 0, "max": 0.1, "log": True}}, "space.watermark", "above 0"),
        ({"max_num_seqs": {"min": 8}}, "space.max_num_seqs.max", "missing"),
        ({"max_num_seqs": {"mn": 8, "max": 9}}, "space.max_num_seqs.mn", "not understood"),
        ({"max_num_seqs": {"min": 1, "max": 1000, "step": 1}}, "space.max_num_seqs", "at most 200"),
        ({"max_num_seqs": []}, "space.max_num_seqs", "empty"),
        ({"max_num_seqs": None}, "space.max_num_seqs", "no value"),
        ({"max_nun_seqs": 8}, "space.max_nun_seqs", "did you mean max_num_seqs"),
        ({"max_num_seqs": {"min": "1k", "max": "2k"}}, "space.max_num_seqs.min", "takes no k"),
        ({"kv_cache_dtype": {"min": 1, "max": 2}}, "space.kv_cache_dtype.min", "one of auto"),
        ({"watermark": float("nan")}, "space.watermark", "a number"),
    ],
)
def test_bad_yaml_names_path_value_and_range(section: dict[str, Any], path: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        from_yaml(section)
    message = str(caught.value)
    assert message.startswith(f"{path}: ") and words in message and "\n" not in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sets": ["max_num_seqs"]}, "FLAG=VALUE"),
        ({"sets": ["max_num_seqs="]}, "FLAG=VALUE"),
        ({"sets": ["max num seqs=3"]}, "no flag's name"),
        ({"sets": ["max_num_seqs=1.5"]}, "--set max_num_seqs: '1.5'"),
        ({"ranges": ["max_num_seqs=8"]}, "LOW:HIGH"),
        ({"ranges": ["max_num_seqs=64:8"]}, "swap"),
        ({"ranges": ["max_num_seqs=8:64:0"]}, "above 0"),
        ({"ranges": ["max_num_seqs=8:64:*1"]}, "above 1"),
        ({"ranges": ["max_num_seqs=8:64:x"]}, "step 'x'"),
        ({"choices": ["watermark=0,,1"]}, "empty value"),
    ],
)
def test_bad_command_lines(arguments: dict[str, list[str]], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_overrides(**arguments)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_text_for_a_section_is_refused() -> None:
    with pytest.raises(ValueError, match="expected a mapping"):
        read_overrides("max_num_seqs")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="chat is a server"):
        from_yaml({"chat": 5}, "two")
