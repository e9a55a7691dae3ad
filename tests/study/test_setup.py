"""Setup: a command line turned into all that a study needs, or refused in one line, before anything is started."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from optimizer.errors import UserError
from optimizer.profiles.loader import SHIPPED
from optimizer.study.setup import CURRENT, DEFAULTS, SAFE, SMALLEST, Setup, SetupOptions, prepare
from optimizer.study.traffic import TrafficOptions
from search_spaces.constraint import check_config
from search_spaces.overrides import parse_overrides
from tests.small_study import azure_rows, small_setup, traffic, write_profile


def names(setup: Setup) -> list[str]:
    return [name for name, _, _ in setup.baselines]


def current(folder: Path, text: str, **options: object) -> Setup:
    file = folder / ("serve.sh" if text.startswith("vllm serve") else "serve.yaml")
    file.write_text(text)
    return small_setup(folder, current={"": str(file)}, **options)


@pytest.mark.parametrize("profile", SHIPPED)
def test_every_shipped_profile_is_set_up_within_its_own_card(profile: str) -> None:
    setup = prepare(SetupOptions(profile=profile))
    assert names(setup) == [DEFAULTS, SAFE]
    assert [r.name for r in setup.references] == [DEFAULTS, SAFE, SMALLEST]
    for _, placement, _ in setup.baselines:
        for instance in placement.instances:
            assert check_config(dict(instance.config), setup.model, gpu=setup.gpu) == []
            assert instance.config["max_model_len"] >= setup.traffic.longest_tokens
    assert setup.space.configs(setup.base_point)
    assert setup.traffic.held_out is not None
    assert len(set(setup.notices)) == len(setup.notices)


def test_without_a_current_configuration_the_safe_one_is_the_second_baseline(tmp_path: Path) -> None:
    setup = small_setup(tmp_path)
    assert names(setup) == [DEFAULTS, SAFE] and setup.kept is None
    _, placement, point = setup.baselines[1]
    assert point is not None and setup.place(dict(point)) == placement, "the safe one is a point of the space"


def test_the_current_configuration_is_trial_0_as_it_is_and_the_defaults_trial_1(tmp_path: Path) -> None:
    setup = current(tmp_path, "model: meta-llama/Llama-3.1-8B\nmax-num-seqs: 48\ngpu-memory-utilization: 0.9\n")
    assert names(setup) == [CURRENT, DEFAULTS]
    assert [r.name for r in setup.references] == [CURRENT, DEFAULTS, SAFE, SMALLEST]
    config = dict(setup.baselines[0][1].instances[0].config)
    length = config.pop("max_model_len")
    assert config == {"max_num_seqs": 48, "gpu_memory_utilization": 0.9} and length >= 14_089
    assert setup.kept is not None and setup.kept.model == "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    "text",
    [
        "model: meta-llama/Llama-3.1-8B\n",
        "model: meta-llama/Llama-3.1-8B\nmax-num-seqs: 256\ngpu-memory-utilization: 0.92\nenable-prefix-caching: true\n",
        "vllm serve meta-llama/Llama-3.1-8B --max-num-batched-tokens 2048\n",
    ],
)
def test_a_current_configuration_that_is_the_default_is_run_once(text: str, tmp_path: Path) -> None:
    setup = current(tmp_path, text)
    assert names(setup) == [CURRENT]
    assert "your current configuration is what vLLM does by itself" in setup.notices


def test_what_the_user_runs_with_and_nobody_searches_is_kept_in_every_trial(tmp_path: Path) -> None:
    setup = current(tmp_path, "vllm serve meta-llama/Llama-3.1-8B --no-enable-prefix-caching --max-num-seqs 64\n")
    rng = np.random.default_rng(0)
    for _ in range(20):
        assert setup.space.configs(setup.space.sample(rng))["server"]["enable_prefix_caching"] is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max-num-seqs: lots\n", r"serve.yaml line 1: max-num-seqs: expected a whole number, got 'lots'"),
        ("max-num-seqs: 512\nmax-num-batched-tokens: 256\n", r"serve.yaml: .*max_num_batched_tokens 256, max_num_seqs 512"),
        ("", r"serve.yaml: is empty"),
        ("- a\n- b\n", r"serve.yaml line 1: holds a list"),
        ("a: [\n", r"serve.yaml line 2: not valid YAML"),
        ("tensor-parallel-size: 2\n", r"serve.yaml: runs on 2 GPUs, a server here has 1; add --gpus-per-server 2"),
        ("model: Qwen/Qwen3-14B\n", r"search space: the weights of Qwen/Qwen3-14B need 27.37 GiB"),
    ],
)  # fmt: skip
def test_a_current_configuration_that_cannot_be_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):  # case FMT-01, CFG-01, CFG-04
        current(tmp_path, text)


def test_a_current_configuration_for_an_unknown_or_a_missing_instance(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("max-num-seqs: 64\n")
    with pytest.raises(UserError, match="--current nosuch=…: profile small has no instance 'nosuch'"):
        small_setup(tmp_path, current={"nosuch": str(file)})
    with pytest.raises(UserError, match="nothing is given for instance batch; write --current batch=FILE too"):
        prepare(SetupOptions(profile="multitenant", current={"chat": str(file)}))


@pytest.mark.parametrize(("n", "stable", "startup"), [(1, 0, 1), (4, 1, 1), (8, 2, 2), (60, 6, 10), (500, 6, 10)])
def test_stages_shrink_with_a_small_number_of_trials(n: int, stable: int, startup: int) -> None:
    budget = prepare(SetupOptions(profile="chat", n_trials=n)).profile.budget
    assert (budget.n_trials, budget.stable_trials, budget.startup_trials) == (n, stable, startup)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_trials": 0}, "--n-trials 0: give 1 to 100000"),
        ({"n_trials": 10**9}, "--n-trials 1000000000: give 1 to 100000"),
        ({"model": "nosuch"}, "--model: unknown model 'nosuch'"),
        ({"model": "/nonexistent/dir"}, "--model: no such directory: /nonexistent/dir"),
        ({"model": "org/m; rm -rf x"}, "--model: unknown model 'org/m; rm -rf x'"),  # case EDGE-16
        ({"gpu": "X100"}, "--gpu: unknown GPU 'X100'; did you mean H100-80"),
        ({"sharing": "mps"}, "--gpu-sharing mps: profile small has one instance, which shares nothing"),
        ({"slos": ("ttft<=5",)}, "--slo: SLO 'ttft<=5': no metric 'ttft'; did you mean"),
        ({"slos": ("ttft_p99_ms>=5",)}, "--slo: SLO 'ttft_p99_ms>=5': for steady_ttft_p99_ms lower is better"),
        ({"slos": ("who:ttft_p99_ms<=5",)}, "no tenant 'who'; this workload has users"),
        ({"advanced": ("nosuch",)}, "advanced: no parameter is called 'nosuch'"),
        ({"variants": {"fp8": "/nonexistent"}}, "--model-variant fp8: no such directory: /nonexistent"),
        ({"model": "Llama-3.1-70B"}, "need 130.76 GiB a GPU at tensor parallel size 1, A10G-24 has 22.06 GiB"),
        ({"traffic": TrafficOptions(max_model_len=99_999_999)}, "--max-model-len 99999999: .* takes at most"),
        ({"traffic": TrafficOptions(max_model_len=10)}, "2,500 of 2,500 requests cannot be served at max_model_len 10"),
        ({"overrides": parse_overrides(["max_model_len=100"])}, "--set max_model_len: max_model_len is a promise"),
        ({"overrides": parse_overrides(["max_num_seqz=3"])}, "did you mean max_num_seqs"),
        ({"overrides": parse_overrides(["x.max_num_seqs=3"])}, "x.max_num_seqs"),
        ({"overrides": parse_overrides(["max_num_batched_tokens=256", "max_num_seqs=512"])}, "a step must hold one token"),
        ({"space_file": ("s.yaml", {"max_num_seqs": {"min": 64, "max": 8}})}, "--space s.yaml.max_num_seqs: min 64 is above"),
        ({"space_file": ("s.yaml", {"max_num_seqs": {"min": 0, "max": 8}})}, "--space s.yaml.max_num_seqs.min: 0 is not"),
        ({"space_file": ("s.yaml", {"gpu_memory_utilization": 90})}, "gpu_memory_utilization: 90 is not allowed"),
    ],
)  # fmt: skip
def test_a_bad_value_is_one_line(options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:  # cases EDGE-04, EDGE-13
        small_setup(tmp_path, **options)
    assert "\n" not in str(caught.value)


def test_the_users_own_limits_and_their_reason(tmp_path: Path) -> None:
    setup = small_setup(tmp_path, slos=("ttft_p99_ms<=500", "users:itl_p99_ms<=50"))
    assert [x.text for x in setup.promised] == ["steady_ttft_p99_ms <= 500", "users:steady_itl_p99_ms <= 50"]
    assert {x.why for x in setup.promised} == {"promised by the user"}


def test_tails_that_the_window_cannot_carry_are_called_p95_and_said(tmp_path: Path) -> None:
    setup = small_setup(tmp_path, ("measured_requests: 380", "measured_requests: 200"))
    assert [o.metric for o in setup.profile.objectives][1] == "steady_ttft_p95_ms"
    assert any("steady_ttft_p99_ms: n = 200 is below 368" in n for n in setup.notices)
    with pytest.raises(UserError, match="objectives: steady_ttft_p99_ms: the window gives 60 samples, a P95 needs"):
        small_setup(tmp_path, ("measured_requests: 380", "measured_requests: 60"))


def test_one_token_answers_with_an_itl_objective_are_refused(tmp_path: Path) -> None:  # case EDGE-03
    arrival, prompt, output = traffic(800)
    (tmp_path / "one.csv").write_text(azure_rows(arrival, prompt, np.ones_like(output)))
    with pytest.raises(UserError, match="no inter-token latency exists; choose objectives without ITL"):
        small_setup(tmp_path, traffic=TrafficOptions(traces={"": str(tmp_path / "one.csv")}))


@pytest.mark.parametrize(("gpu", "n"), [("A10G-24", 120), ("H100-80", 900), ("H200-141", 1800)])
def test_the_saturation_load_outlasts_the_running_set_of_any_card(gpu: str, n: int, tmp_path: Path) -> None:
    setup = small_setup(tmp_path, gpu=gpu)
    assert setup.profile.load.saturation_requests == setup.traffic.spec.saturation_requests >= n
    assert any(t.startswith("saturation: ") for t in setup.notices) == (n > 120)


def test_a_local_directory_is_a_model(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "tie_word_embeddings": True,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    setup = small_setup(tmp_path, model=str(folder))
    assert setup.model.max_position_tokens == 131072
    kv_bytes = [s.capacity.kv_bytes.likely for s in (setup, small_setup(tmp_path))]
    assert kv_bytes[0] > kv_bytes[1] + 10 * 1024**3, "1.2 billion parameters leave more room than 8 billion"


@pytest.mark.parametrize(
    ("name", "expected"), [("a10g", "A10G-24"), ("NVIDIA A100-SXM4-80GB", "A100-80"), ("l40s", "L40S-48")]
)
def test_a_gpu_may_be_spelled_as_people_do(name: str, expected: str, tmp_path: Path) -> None:
    assert small_setup(tmp_path, gpu=name).gpu.name == expected


def test_several_instances_start_from_equal_parts_and_are_held_against_one_server() -> None:
    setup = prepare(SetupOptions(profile="multitenant"))
    defaults = setup.baselines[0][1]
    assert len({i.config["kv_cache_memory_bytes"] for i in defaults.instances}) == 1
    assert setup.single_server is not None and setup.single_server.instances[0].tenants == ("chat", "batch")
    assert setup.single_server.sharing == "exclusive" and defaults.sharing == "time-slice"
    assert prepare(SetupOptions(profile="multitenant", sharing="mps")).baselines[0][1].sharing == "mps"


def test_overrides_of_the_command_line_win_over_the_file_and_it_over_the_profile(tmp_path: Path) -> None:
    own = ("memory_span: 0.15}", "memory_span: 0.15, parameters: {max_num_seqs: [8, 16], watermark: [0.1]}}")
    section = {"max_num_seqs": [24], "max_num_batched_tokens": [512, 1024]}
    overrides = parse_overrides(["max_num_batched_tokens=768"])
    space = small_setup(tmp_path, own, space_file=("s.yaml", section), overrides=overrides).space
    assert space.by_name["watermark"].values() == (0.1,)
    assert space.by_name["max_num_seqs"].values() == (24,)
    assert space.fixed["max_num_batched_tokens"] == 768


def test_preparing_twice_gives_the_same_and_touches_nothing(tmp_path: Path) -> None:
    file = write_profile(tmp_path)
    before = sorted(p.name for p in tmp_path.iterdir())
    one, two = (prepare(SetupOptions(profile=file)) for _ in range(2))
    assert (one.space.fingerprint, one.traffic.fingerprint) == (two.space.fingerprint, two.traffic.fingerprint)
    assert sorted(p.name for p in tmp_path.iterdir()) == before
