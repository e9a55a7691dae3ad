"""The space: points become configurations that nothing refuses, exactly and reproducibly."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from search_spaces.adjust import apply_overrides
from search_spaces.capacity import KV_STEP_BYTES, card_kv_bytes, state_slots
from search_spaces.constraint import check_config
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model
from search_spaces.locate import point_of
from search_spaces.memory_use import check_card, demand_of, memory_use
from search_spaces.overrides import parse_overrides
from search_spaces.parameter import ShareParameter
from search_spaces.space import KV_SPLIT, SearchSpace, Server, shares_of, split_name
from search_spaces.vllm import default_configs, serving_space

LLAMA, A100 = find_model("Llama-3.1-8B"), find_gpu("A100-80")
ONE = (Server(name="main", max_model_len=8192, mean_request_tokens=1200),)
TWO = (
    Server(name="chat", max_model_len=8192, mean_request_tokens=1200),
    Server(name="batch", max_model_len=16384, mean_request_tokens=3000),
)
THREE = (*TWO, Server(name="third", max_model_len=4096, mean_request_tokens=500))


def single() -> SearchSpace:
    return serving_space(LLAMA, A100, ONE)


def test_main_group_of_one_server() -> None:
    space = single()
    assert space.group("main") == (
        "max_num_batched_tokens", "max_num_seqs", "watermark", "long_prefill_token_threshold", "kv_cache_memory_bytes",
    )  # fmt: skip
    tokens = space.by_name["max_num_batched_tokens"].values()
    assert tokens[0] == 256 and tokens[-1] == 32768 and all(isinstance(t, int) and t % 64 == 0 for t in tokens)
    assert space.by_name["watermark"].values() == (0.0, 0.01, 0.02, 0.05, 0.1)
    seqs = space.by_name["max_num_seqs"].values()
    kv = space.by_name["kv_cache_memory_bytes"].values()
    assert seqs[0] == 8
    top = kv[-1]
    assert isinstance(top, int) and isinstance(seqs[-1], int)
    assert seqs[-1] == pytest.approx(1.25 * top / LLAMA.kv_bytes(1200), rel=0.2)
    assert all(isinstance(b, int) and b % KV_STEP_BYTES == 0 for b in kv)


def test_every_entry_says_why_and_what_a_change_costs() -> None:
    for space in (single(), serving_space(LLAMA, A100, TWO)):
        for parameter in space.parameters:
            assert len(parameter.why) > 20
            assert parameter.change in ("boot", "live") and parameter.group in ("main", "advanced")
    assert single().live == {"max_num_batched_tokens", "max_num_seqs", "watermark", "long_prefill_token_threshold"}


def test_the_kv_interval_is_narrow_and_ends_at_the_solved_ceiling() -> None:
    space = single()
    kv = space.by_name["kv_cache_memory_bytes"].values()
    assert kv[-1] == space.base_kv_bytes
    assert isinstance(kv[0], int) and kv[0] == pytest.approx(0.85 * space.base_kv_bytes, rel=0.01)
    util = serving_space(LLAMA, A100, ONE, memory_knob="gpu_memory_utilization")
    assert "kv_cache_memory_bytes" not in util.by_name
    assert all(isinstance(u, float) and 0.5 < u <= 0.98 for u in util.by_name["gpu_memory_utilization"].values())


@pytest.mark.parametrize("servers", [ONE, TWO, THREE])
def test_ten_thousand_sampled_points_are_never_refused(servers: tuple[Server, ...]) -> None:  # case CFG-04
    space = serving_space(LLAMA, A100, servers)
    rng = np.random.default_rng(1)
    for _ in range(10_000 // len(servers)):
        for server, config in zip(servers, space.configs(space.sample(rng)).values(), strict=True):
            assert check_config(config, LLAMA) == []
            assert config["max_model_len"] == server.max_model_len
            assert {"max_num_batched_tokens", "max_num_seqs"} <= set(config)
            assert not {"kv_cache_memory_bytes", "gpu_memory_utilization"} <= set(config)


def test_a_space_with_chunking_and_contract_lengths_is_never_refused() -> None:  # case CFG-04
    for longest in (2048, 8192):
        base = serving_space(LLAMA, A100, (replace(ONE[0], max_model_len=longest),))
        space = apply_overrides(
            base,
            parse_overrides(
                ranges=["max_num_seqs=16:1024", "max_num_batched_tokens=256:16384"],
                adds=["enable_chunked_prefill=true,false", "max_num_active_seqs=16,64,900"],
            ),
        )
        rng = np.random.default_rng(2)
        seen = set()
        for _ in range(1000):
            config = space.configs(space.sample(rng))["main"]
            assert check_config(config, LLAMA) == []
            seen.add(config["enable_chunked_prefill"])
        assert seen == {True, False}


def test_repair_moves_the_other_side_of_a_pinned_value() -> None:
    space = apply_overrides(single(), parse_overrides(sets=["max_num_seqs=500"]))
    config = space.configs({"max_num_batched_tokens": 256})["main"]
    assert config["max_num_seqs"] == 500 and config.int_("max_num_batched_tokens") >= 500
    free = single().configs({"max_num_batched_tokens": 256, "max_num_seqs": 512})["main"]
    assert free["max_num_batched_tokens"] == 256 and free.int_("max_num_seqs") <= 256


def test_contradicting_pins_are_refused_when_the_space_is_built() -> None:
    with pytest.raises(ValueError, match=r"max_num_batched_tokens 256.*max_num_seqs 500"):
        apply_overrides(single(), parse_overrides(sets=["max_num_seqs=500", "max_num_batched_tokens=256"]))


def test_shares_resolve_to_tokens() -> None:
    space = single()
    point = {"max_num_batched_tokens": 2048, "long_prefill_token_threshold": 0.25, "max_num_seqs": 8}
    assert space.configs(point)["main"]["long_prefill_token_threshold"] == 512
    off = space.configs({**point, "long_prefill_token_threshold": 0})["main"]
    assert off["long_prefill_token_threshold"] == 0
    never_binds = space.configs({**point, "max_num_batched_tokens": 32768, "long_prefill_token_threshold": 0.5})["main"]
    assert never_binds["long_prefill_token_threshold"] == 0


def test_nothing_is_asked_for_that_cannot_be_there() -> None:
    space = single()
    top = space.by_name["kv_cache_memory_bytes"].values()[-1]
    wide = space.configs({"max_num_batched_tokens": 32768, "max_num_seqs": 512, "kv_cache_memory_bytes": top})["main"]
    demand = demand_of(LLAMA, A100, wide)
    assert wide.int_("kv_cache_memory_bytes") <= card_kv_bytes([demand], A100, 0).high


def test_servers_on_one_card_share_its_memory_by_construction() -> None:
    space = serving_space(LLAMA, A100, TWO)
    rng = np.random.default_rng(3)
    for _ in range(300):
        point = space.sample(rng)
        configs = list(space.configs(point).values())
        uses = [memory_use(LLAMA, A100, c) for c in configs]
        assert check_card(uses, A100, configs) is None
        assert sum(u.peak_bytes for u in uses) <= A100.memory_bytes - space.margin_bytes + len(uses)
        share = point[KV_SPLIT]
        assert isinstance(share, float)
        total = sum(c.int_("kv_cache_memory_bytes") for c in configs)
        assert configs[0].int_("kv_cache_memory_bytes") / total == pytest.approx(share, abs=0.01)


def test_every_split_lets_every_server_hold_one_request() -> None:
    small = find_gpu("L40S-48")
    servers = (replace(TWO[0], max_model_len=32768), replace(TWO[1], max_model_len=16384))
    space = serving_space(LLAMA, small, servers)
    for split in space.by_name[KV_SPLIT].values():
        shares = shares_of(split, 2)
        assert sum(shares) == pytest.approx(1.0)
    assert len(space.by_name[KV_SPLIT].values()) < 17
    with pytest.raises(ValueError, match="lower max_model_len"):
        serving_space(LLAMA, small, tuple(replace(s, max_model_len=100_000) for s in TWO))


def test_three_servers_split_in_named_shares() -> None:
    space = serving_space(LLAMA, A100, THREE)
    for split in space.by_name[KV_SPLIT].values():
        assert len(shares_of(split, 3)) == 3 and sum(shares_of(split, 3)) == pytest.approx(1.0)
    assert {split_name(n)[0] for n in space.group("main")} == {"chat", "batch", "third", None}


def test_several_servers_need_exact_bytes() -> None:
    with pytest.raises(ValueError, match="kv_cache_memory_bytes"):
        serving_space(LLAMA, A100, TWO, memory_knob="gpu_memory_utilization")


def test_a_model_that_cannot_fit_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match="weights"):
        serving_space(find_model("Llama-3.1-70B"), A100, ONE)
    with pytest.raises(ValueError, match=r"at most [0-9]+ tokens fit"):
        serving_space(LLAMA, find_gpu("RTX-4090-24"), (replace(ONE[0], max_model_len=131072),))


def test_groups_are_held_not_left_out() -> None:
    space = single()
    assert set(space.group("advanced")).isdisjoint(p.name for p in space.searched)
    assert set(space.complete({})) == {p.name for p in space.parameters}
    assert set(space.fixed) | {p.name for p in space.searched} == set(space.by_name)
    more = space.activate(["enable_prefix_caching"])
    assert [p.values() for p in more.parameters] == [p.values() for p in space.parameters]
    assert more.fingerprint == space.fingerprint
    held = more.hold({"enable_prefix_caching": False})
    assert held.configs({})["main"]["enable_prefix_caching"] is False
    assert "enable_prefix_caching" not in space.configs({})["main"]  # vLLM's own default is left out


def test_what_can_change_answers_is_off_until_asked_for() -> None:  # case CFG-05
    space = single()
    assert space.answers_at_risk == ()
    risky = [p.name for p in space.parameters if p.can_change_answers]
    assert {"kv_cache_dtype", "speculative_config"} <= set(risky)
    rng = np.random.default_rng(4)
    for _ in range(200):
        assert not set(space.configs(space.sample(rng))["main"]) & set(risky)
    asked = serving_space(LLAMA, A100, ONE, advanced=["kv_cache_dtype"])
    assert asked.answers_at_risk == ("kv_cache_dtype",)
    assert any("can change the model's answers" in n for n in asked.notes)
    assert asked.configs({"kv_cache_dtype": "fp8"})["main"]["kv_cache_dtype"] == "fp8"


def test_unknown_advanced_names_are_refused() -> None:
    with pytest.raises(ValueError, match="block_sze"):
        serving_space(LLAMA, A100, ONE, advanced=["block_sze"])


def test_parallelism_and_variants_scale_the_exact_bytes() -> None:
    fp8 = find_model("Llama-3.1-8B-FP8")
    space = serving_space(LLAMA, A100, ONE, n_gpus=4, variants={"/models/fp8": fp8})
    assert space.by_name["tensor_parallel_size"].values() == (1, 2, 4)
    point = {"max_num_batched_tokens": 2048, "max_num_seqs": 64}
    base = space.configs(point)["main"].int_("kv_cache_memory_bytes")
    split = space.configs({**point, "tensor_parallel_size": 4})["main"]
    small = space.configs({**point, "model": "/models/fp8"})["main"]
    assert split.int_("kv_cache_memory_bytes") > base and small.int_("kv_cache_memory_bytes") > base
    assert small["model"] == "/models/fp8" and "model" not in space.configs(point)["main"]
    assert memory_use(fp8, A100, small).peak_bytes <= A100.memory_bytes


def test_a_model_that_needs_several_gpus_starts_from_the_fewest() -> None:
    model = find_model("Llama-3.1-70B")
    space = serving_space(model, A100, ONE, n_gpus=8)
    assert space.by_name["tensor_parallel_size"].values() == (2, 4, 8)
    config = space.configs({})["main"]
    assert config["tensor_parallel_size"] == 2
    assert default_configs(space)["main"]["tensor_parallel_size"] == 2
    assert memory_use(model, A100, config).failure is None
    assert check_card([memory_use(model, A100, config)], A100, [config]) is None


def test_a_tight_card_is_not_refused_for_its_default_budgets() -> None:
    """max_num_seqs 1024 alone would take 2.5 GiB of a card that is nearly full; small budgets fit."""
    space = serving_space(find_model("gpt-oss-120b"), find_gpu("H100-80"), (replace(ONE[0], max_model_len=4096),))
    assert space.searched
    tight = serving_space(find_model("Qwen3-8B"), find_gpu("A10G-24"), (replace(ONE[0], max_model_len=16384),))
    kv = tight.by_name["kv_cache_memory_bytes"].values()[-1]
    assert isinstance(kv, int) and kv >= find_model("Qwen3-8B").kv_bytes(16384)


def test_state_models_are_not_offered_more_sequences_than_state_blocks() -> None:  # case OOM-21
    model, card = find_model("Qwen3-Next-80B-A3B-Instruct-FP8"), find_gpu("H100-NVL-94")
    space = serving_space(model, card, (Server(name="main", max_model_len=8192, mean_request_tokens=200),))
    top = space.by_name["max_num_seqs"].values()[-1]
    kv = space.by_name["kv_cache_memory_bytes"].values()[-1]
    assert isinstance(top, int) and isinstance(kv, int)
    slots = state_slots(model, kv, 1)
    assert slots is not None and top <= slots


def test_points_off_the_grid_and_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="max_num_seqs: 77"):
        single().configs({"max_num_seqs": 77})
    with pytest.raises(ValueError, match="no parameter is called blok"):
        single().configs({"blok": 1})


def test_size_counts_distinct_configurations_of_small_spaces() -> None:
    small = apply_overrides(
        single(),
        parse_overrides(
            sets=["watermark=0", "long_prefill_token_threshold=0", "kv_cache_memory_bytes=16G"],
            choices=["max_num_batched_tokens=256,1024", "max_num_seqs=64,512,600"],
        ),
    )
    configs = {small.configs(p)["main"] for p in _all_points(small)}
    assert small.size() == len(configs) < 6  # with 256 tokens, 512 and 600 sequences repair to the same
    assert serving_space(LLAMA, A100, TWO).size() > 1_000_000


def _all_points(space: SearchSpace) -> list[dict[str, object]]:
    a, b = (space.by_name[n].values() for n in ("max_num_batched_tokens", "max_num_seqs"))
    return [{"max_num_batched_tokens": x, "max_num_seqs": y} for x in a for y in b]


def test_neighbours_are_one_step_away() -> None:
    space = single()
    point = space.complete({"max_num_batched_tokens": 2048, "max_num_seqs": 64})
    found = list(space.neighbours(point))
    assert all(sum(a[k] != point[k] for k in point) == 1 for a in found)
    assert {n["max_num_batched_tokens"] for n in found} == {1472, 2048, 2880}
    corner = {**point, "max_num_batched_tokens": 256}
    assert {n["max_num_batched_tokens"] for n in space.neighbours(corner)} == {256, 384}


def test_sampling_is_seeded() -> None:
    space = serving_space(LLAMA, A100, TWO)
    first = [space.sample(np.random.default_rng(5)) for _ in range(3)]
    assert first[0] == first[1] == first[2]


def test_fingerprint_tells_spaces_apart() -> None:
    same = single().fingerprint
    assert same == single().fingerprint
    assert apply_overrides(single(), parse_overrides(sets=["watermark=0"])).fingerprint != same
    assert serving_space(LLAMA, A100, (replace(ONE[0], max_model_len=4096),)).fingerprint != same
    assert serving_space(LLAMA, find_gpu("H100-80"), ONE).fingerprint != same


def test_a_space_travels() -> None:
    space = serving_space(LLAMA, A100, TWO)
    assert pickle.loads(pickle.dumps(space)).fingerprint == space.fingerprint


# ---- a user's configuration in the space ---------------------------------------------------------------------------


def test_resolved_points_are_found_again() -> None:
    for servers in (ONE, TWO):
        space = serving_space(LLAMA, A100, servers)
        rng = np.random.default_rng(6)
        for _ in range(100):
            configs = space.configs(space.sample(rng))
            located = point_of(space, configs)
            again = space.configs(located.point)
            for name, config in configs.items():
                assert again[name]["max_num_batched_tokens"] == config["max_num_batched_tokens"]
                assert again[name]["watermark"] == config["watermark"]
                assert again[name]["long_prefill_token_threshold"] == config["long_prefill_token_threshold"]


def test_defaults_are_located_and_their_distance_is_said() -> None:
    space = single()
    located = point_of(space, default_configs(space))
    assert located.point["max_num_batched_tokens"] == 2048 and located.point["max_num_seqs"] == 256
    assert all("kv_cache_memory_bytes" in o for o in located.outside)


def test_a_current_configuration_outside_says_why() -> None:
    space = single()
    current = {"max_num_seqs": 100_000, "max_num_batched_tokens": 200_000, "block_size": 32, "max_model_len": 4096,
               "long_prefill_token_threshold": 777, "kv_cache_dtype": "fp8_e5m2"}  # fmt: skip
    outside = " | ".join(point_of(space, {"main": current}).outside)
    for words in (
        "max_num_seqs 100000",
        "block_size 32",
        "max_model_len 4096",
        "long_prefill_token_threshold 777",
        "fp8_e5m2",
    ):
        assert words in outside, words
    with pytest.raises(ValueError, match="servers main"):
        point_of(space, {"other": current})


def test_defaults_of_several_servers_split_equally() -> None:
    space = serving_space(LLAMA, A100, TWO)
    configs = default_configs(space)
    assert configs["chat"]["kv_cache_memory_bytes"] == configs["batch"]["kv_cache_memory_bytes"]
    assert configs["chat"]["max_num_batched_tokens"] == 2048 and configs["chat"]["max_num_seqs"] == 256
    assert point_of(space, configs).point[KV_SPLIT] == 0.5


@pytest.mark.parametrize(
    "model", ["gpt-oss-20b", "Qwen3-30B-A3B-FP8", "gemma-3-12b-it", "Mistral-7B-v0.1", "Qwen3-0.6B"]
)
@pytest.mark.parametrize("gpu", ["L40S-48", "B200-180"])
def test_other_models_and_cards_give_a_space(model: str, gpu: str) -> None:
    facts, card = find_model(model), find_gpu(gpu)
    space = serving_space(facts, card, (replace(ONE[0], max_model_len=4096),))
    rng = np.random.default_rng(7)
    for _ in range(50):
        assert check_config(space.configs(space.sample(rng))["main"], facts) == []
    assert any(isinstance(p, ShareParameter) for p in space.parameters)
