"""A study on what a real engine found: the device, the traffic its model takes, and the windows of a smoke run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from objectives.titles import short_of, title_of
from optimizer.errors import UserError
from optimizer.study.setup import DEFAULTS, SAFE, Setup, SetupOptions, prepare
from optimizer.study.traffic import TrafficOptions
from search_spaces.cpu import host_cpu
from search_spaces.hardware import GIB, find_gpu
from search_spaces.overrides import parse_overrides
from tests.search_spaces.test_cpu import CONFIG
from tests.small_study import azure_rows, small_setup, traffic

HOST = host_cpu(24 * GIB, 2)


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text("{}")
    return str(folder)


def on_cpu(model: str, profile: str = "multitenant", *sets: str, **options: object) -> Setup:
    overrides = parse_overrides(["enforce_eager=true", *sets])
    return prepare(SetupOptions(profile=profile, model=model, device=HOST, overrides=overrides, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("profile", ["chat", "multitenant"])
def test_a_shipped_profile_starts_on_a_cpu_with_a_tiny_model(model: str, profile: str) -> None:
    setup = on_cpu(model, profile)
    assert setup.gpu.is_cpu and setup.profile.gpu == "CPU" and setup.gpu.memory_bytes < HOST.memory_bytes
    assert [n for n, _, _ in setup.baselines] == [DEFAULTS, SAFE]
    placements = [p for _, p, _ in setup.baselines] + [r.placement for r in setup.references]
    placements += [setup.place(setup.base_point)] + ([setup.single_server] if setup.single_server else [])
    for placement in placements:
        for instance in placement.instances:
            assert "gpu_memory_utilization" not in instance.config
            assert instance.config.int_("kv_cache_memory_bytes") > 0
            assert (instance.config["enforce_eager"], instance.config["load_format"]) == (True, "dummy")
            assert instance.config["max_model_len"] == 4096
    assert setup.profile.load.saturation_requests <= 3 * 512


def test_packaged_requests_longer_than_the_model_are_left_out_and_their_share_is_said(model: str) -> None:
    setup = on_cpu(model)
    assert setup.traffic.longest_tokens <= 4096
    said = next(n for n in setup.notices if "packaged traffic" in n)
    assert "(8.7%) are longer than the 4,096 tokens" in said and "dropped" in said
    assert "max_model_len 4,096, all that the model takes (longest request 4,096)" in setup.notices


def test_the_users_own_requests_are_never_left_out_unasked(model: str, tmp_path: Path) -> None:
    arrival, prompt, output = traffic(2000)
    prompt[7] = 5000
    (tmp_path / "own.csv").write_text(azure_rows(arrival, prompt, output))
    with pytest.raises(UserError, match=r"the longest request has 5[0-9]+ tokens, .* takes at most 4096"):
        on_cpu(model, "chat", traffic=TrafficOptions(traces={"": str(tmp_path / "own.csv")}))
    with pytest.raises(UserError, match="takes at most 4096"):
        on_cpu(model, "multitenant", traffic=TrafficOptions(traces={"batch": str(tmp_path / "own.csv")}))


def test_a_directory_with_weights_is_loaded_as_it_is(model: str) -> None:
    (Path(model) / "model.safetensors").write_bytes(b"0" * 64)
    setup = on_cpu(model, "chat")
    assert all("load_format" not in i.config for _, p, _ in setup.baselines for i in p.instances)
    assert on_cpu(model, "chat", "load_format=dummy").space.extras["load_format"] == "dummy"


def test_the_current_configuration_gets_bytes_instead_of_a_share(model: str, tmp_path: Path) -> None:
    (tmp_path / "serve.yaml").write_text("max-num-seqs: 16\ngpu-memory-utilization: 0.5\n")
    setup = on_cpu(model, "chat", current={"": str(tmp_path / "serve.yaml")})
    config = setup.baselines[0][1].instances[0].config
    assert config.int_("kv_cache_memory_bytes") > 0 and "gpu_memory_utilization" not in config
    assert any("on a CPU it runs with" in n for n in setup.notices)


def test_the_profiles_card_gives_way_to_what_is_there(tmp_path: Path) -> None:
    setup = small_setup(tmp_path, device=find_gpu("H100-80"))
    assert setup.gpu.name == setup.profile.gpu == "H100-80"
    assert "measured on H100-80, whatever card the profile names" in setup.notices
    part = replace(find_gpu("H100-80"), name="H100-80 MIG 2g.20gb", memory_bytes=20 * GIB)
    assert small_setup(tmp_path, device=part, gpu="H100").gpu == part


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": HOST, "gpu": "A100-80"}, "--gpu A100-80: the engine runs on what is here, CPU; leave --gpu out"),
        ({"device": find_gpu("L4-24"), "gpu": "A100-80"}, "--gpu A100-80: the engine runs on what is here, L4-24"),
        (
            {"device": HOST, "sharing": "mps"},
            "--gpu-sharing mps: servers on a CPU share its cores (time-slice), or have",
        ),
        ({"sharing": "mig"}, "--gpu-sharing mig is not simulated"),
    ],
)
def test_what_does_not_go_with_the_device_is_refused(model: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        prepare(SetupOptions(profile="multitenant", model=model, **options))  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


def test_a_smoke_run_is_sixty_requests_a_tenant_and_its_tails_are_called_max_of_n(model: str) -> None:
    one, two = on_cpu(model, "chat", is_smoke=True), on_cpu(model, "multitenant", is_smoke=True)
    assert (one.profile.load.measured_requests, two.profile.load.measured_requests) == (60, 120)
    assert one.profile.load.saturation_requests == 72 and one.profile.load.stress_requests == 12
    assert one.profile.budget.noise_repeats == 2 and one.profile.budget.n_trials == 60
    names = [o.metric for o in one.profile.objectives]
    assert names[1:] == ["steady_ttft_max_ms", "steady_itl_p99_ms"]  # tens of thousands of gaps carry a P99
    assert "max of n" in title_of(names[1]) and "max of n" in short_of(names[1])
    assert [o.metric for o in two.profile.objectives][1] == "steady_worst_ttft_max_ratio"
    assert any("the max of 60" in n for n in one.notices) and any(n.startswith("smoke: ") for n in one.notices)
    assert "steady_stall_max_ms" in [r.metric for r in one.profile.relative_limits]


def test_loads_of_a_smoke_run_have_that_many_rows(model: str) -> None:
    setup = on_cpu(model, "chat", is_smoke=True)
    plans = setup.traffic.loads(2.0, ("steady", "stress", "saturation"))
    assert [len(p.trace) - p.n_warmup for p in plans] == [60, 12, 72]
