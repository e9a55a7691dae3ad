"""What a run does with what it is given: promises, rates, a current configuration, spaces, other models and cards."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import pytest
import yaml

from tests.integration.conftest import Run
from tests.small_study import SHARED, azure_rows, mooncake_rows, traffic, write_profile

LLAMA = "meta-llama/Llama-3.1-8B"


def figure(out: str, pattern: str) -> float:
    found = re.search(pattern, out)
    assert found is not None, pattern
    return float(found[1].replace(",", ""))


# promises and prices


def test_a_promise_becomes_a_limit_and_says_which_rate_and_how_many_servers(small: Run) -> None:
    ran = small("--slo", "ttft_p99_ms<=12000", "--gpu-price", "1.2")
    assert ran.code == 0
    limit = "steady_ttft_p99_ms <= 12000"
    assert all(limit in m["violations"] for m in ran.members() if m["objectives"])
    assert all(m["objectives"]["steady_ttft_p99_ms"] <= 12000 for m in ran.front()["members"])
    said = re.findall(r"trial (\d+) keeps the promise up to (?:at least )?([\d.]+) requests/s; "
                      r"the recorded ([\d.]+)/s need (\d+) replicas?", ran.out)  # fmt: skip
    assert {int(trial) for trial, *_ in said} == {m["trial"] for m in ran.front()["members"]}
    for _, rate, recorded, n in said:
        assert (int(n) - 1) * float(rate) < float(recorded) <= int(n) * float(rate) * 1.01
    assert "the busiest minute's" in ran.out
    tokens = ran.front()["members"][0]["objectives"]["saturation_output_tokens_per_s_per_gpu"]
    trial = ran.front()["members"][0]["trial"]
    assert figure(ran.out, rf"cost per million output tokens .*trial {trial} ([\d.]+)") == pytest.approx(
        1.2 / tokens / 3600 * 1e6, rel=0.01
    )


def test_a_promise_that_cannot_be_kept_at_r_names_the_rate_at_which_it_can_and_the_nearest_misses(small: Run) -> None:
    ran = small("--slo", "ttft_p99_ms<=2500")
    assert ran.code == 1
    assert "no feasible configuration yet; the trials that miss their limits by least:" in ran.out  # case OPT-01
    assert "P99 TTFT (steady) at most 2,500 ms" in ran.out
    assert "== caps: nothing is safe: which requests break it?" in ran.out
    rate = figure(ran.out, r"keeps the promise up to ([\d.]+) requests/s; the recorded [\d.]+/s need \d+ replicas")
    assert 0 < rate < figure(ran.out, r"\nR = ([\d.]+) requests/s")
    assert not (ran.path() / "front" / "vllm").exists()
    assert "take one away" not in ran.out


def test_an_impossible_promise_ends_with_exit_1_and_says_how_far_it_is_missed(small: Run) -> None:
    ran = small("--slo", "ttft_p99_ms<=1", "--n-trials", "4")
    assert ran.code == 1
    assert "100 x or more" in ran.out and "keeps the promise up to" not in ran.out
    assert next(m["trial"] for m in ran.front()["nearest_misses"]) in (0, 2), "measured ones are nearest"


# rates


def test_a_given_rate_is_taken(small: Run) -> None:
    ran = small("--rate", "0.6", "--n-trials", "3")
    assert ran.code == 0 and "R = 0.6 requests/s: as given" in ran.out
    assert ran.front()["meta"]["rate_per_s"] == 0.6


def test_the_recorded_rate_is_too_much_for_one_card_and_the_answer_says_how_many_it_needs(small: Run) -> None:
    ran = small("--rate", "recorded", "--n-trials", "4")
    assert ran.code == 1
    assert "vLLM defaults does not sustain R = 5.11" in ran.out
    assert figure(ran.out, r"nothing keeps up with R: .* need about (\d+) servers like it") >= 4


# the current configuration


def test_the_current_yaml_is_trial_0_and_its_other_flags_go_into_every_export(small: Run, folder: Path) -> None:
    text = f"model: {LLAMA}\nport: 8123\nmax-num-seqs: 48\ngpu-memory-utilization: 0.9\nserved-model-name: [a, b]\n"
    Path("serve.yaml").write_text(text)
    ran = small("--current", "serve.yaml", "--n-trials", "4")
    assert ran.code == 0
    members = ran.members()
    assert [m["label"] for m in members[:2]] == ["current", "vLLM defaults"]
    config = members[0]["configs"]["server"]
    assert (config["max_num_seqs"], config["gpu_memory_utilization"]) == (48, 0.9)
    assert "compared with your current configuration (trial 0)" in ran.out
    exported = [yaml.safe_load(f.read_text()) for f in (ran.path() / "front" / "vllm").glob("*.yaml")]
    assert exported and all((e["port"], e["served-model-name"]) == (8123, ["a", "b"]) for e in exported)


def test_a_current_command_line_is_read_and_its_secret_is_nowhere(small: Run, folder: Path) -> None:
    Path("serve.sh").write_text(
        f"#!/bin/sh\nexport HF_TOKEN=hf_PLACEHOLDERPLACEHOLDER\n"
        f"exec vllm serve {LLAMA} --max-num-seqs 48 --api-key sk-PLACEHOLDERPLACEHOLDER\n"
    )
    ran = small("--current", "serve.sh", "--n-trials", "2")
    assert ran.code == 0
    assert ran.members()[0]["configs"]["server"]["max_num_seqs"] == 48
    everything = ran.out + "".join(p.read_text(errors="replace") for p in ran.path().rglob("*") if p.is_file())
    assert "PLACEHOLDER" not in everything  # case EDGE-16


def test_a_current_configuration_that_is_the_default_is_run_once(small: Run, folder: Path) -> None:
    Path("serve.yaml").write_text(f"model: {LLAMA}\n")
    ran = small("--current", "serve.yaml", "--n-trials", "3")
    assert [m["label"] for m in ran.members()] == ["current", "", ""]


def test_a_current_configuration_that_cannot_start_is_infeasible_and_the_next_is_the_reference(
    small: Run, folder: Path
) -> None:
    Path("serve.yaml").write_text(f"model: {LLAMA}\ngpu-memory-utilization: 0.5\n")
    ran = small("--current", "serve.yaml", "--n-trials", "3")
    assert ran.code == 0
    first = ran.trials()[0]
    assert (first.state, first.attributes["baseline"], first.failure) == ("infeasible", "current", "kv_capacity")
    assert "warning: current cannot be the reference: " in ran.out
    assert ran.front()["meta"]["reference"] == 1 and "compared with vLLM defaults (trial 1)" in ran.out


# spaces


def test_fixed_narrowed_and_chosen_parameters_are_kept_to(small: Run, folder: Path) -> None:
    Path("space.yaml").write_text("long_prefill_token_threshold: [0]\n")
    ran = small("--set", "watermark=0.02", "--range", "max_num_seqs=8:16", "--choices", "max_num_batched_tokens=256,512",
                "--space", "space.yaml", "--n-trials", "8")  # fmt: skip
    assert ran.code == 0
    searched = [m["configs"]["server"] for m in ran.members() if m["label"] != "vLLM defaults"]
    assert {c["watermark"] for c in searched} == {0.02}
    assert all(8 <= c["max_num_seqs"] <= 16 for c in searched)
    assert {c["max_num_batched_tokens"] for c in searched} <= {256, 512}
    assert {c["long_prefill_token_threshold"] for c in searched} == {0}


def test_a_space_that_is_exhausted_ends_the_study_well(small: Run) -> None:  # case OPT-05
    ran = small("--choices", "max_num_seqs=16,32", "--choices", "max_num_batched_tokens=256,512", "--set", "watermark=0",
                "--set", "long_prefill_token_threshold=0", "--set", "kv_cache_memory_bytes=4G", "--n-trials", "40")  # fmt: skip
    assert ran.code == 0
    assert "space exhausted after 4: the study ends before 40 trials" in ran.out
    assert re.search(r"finished: 5 trials, .* \(space exhausted after 4\)", ran.out)


def test_the_advanced_group_is_a_stage_of_its_name_and_answers_stay_the_same(small: Run) -> None:
    ran = small("--advanced", "all", "--n-trials", "8")
    assert ran.code == 0 and "== advanced: " in ran.out
    searched = [m["configs"]["server"] for m in ran.members()]
    assert {c.get("enable_prefix_caching", True) for c in searched} == {True, False}
    assert not any("kv_cache_dtype" in c or "speculative_config" in c for c in searched)  # case CFG-05


# models, cards, traces


def test_a_local_model_directory_on_a_card_by_its_alias(small: Run, folder: Path) -> None:
    Path("mine").mkdir()
    config = {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960,
        "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936,
        "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "tie_word_embeddings": True,
    }  # fmt: skip
    Path("mine/config.json").write_text(json.dumps(config))
    ran = small("--model", "./mine", "--gpu", "nvidia l4", "--n-trials", "3")
    assert ran.code == 0 and "on L4-24 (SIMULATED)" in ran.out
    exported = next((ran.path() / "front" / "vllm").glob("*.yaml")).read_text()
    assert yaml.safe_load(exported)["model"].rstrip("/").endswith("mine")


def test_a_cap_on_the_context_prints_the_share_it_rejects(small: Run) -> None:
    ran = small("--max-model-len", "4096", "--n-trials", "2")
    assert ran.code == 0
    line = next(t for t in ran.out.splitlines() if "4,096" in t or "max_model_len 4096" in t)
    assert "%" in line
    assert {m["configs"]["server"]["max_model_len"] for m in ran.members()} == {4096}


TRACES = {
    "bursty": {"rate_per_s": 0.8, "prompt": 500.0, "output": 150.0},
    "tiny": {"rate_per_s": 8.0, "prompt": 8.0, "output": 4.0},
    "long": {"rate_per_s": 0.2, "prompt": 6000.0, "output": 300.0, "spread": 0.4},
}


@pytest.mark.parametrize(("kind", "form"), [("bursty", "azure"), ("long", "mooncake"), ("tiny", "csv")])
def test_traces_of_other_shapes_and_formats(kind: str, form: str, small: Run, folder: Path) -> None:
    arrival, prompt, output = traffic(700, **TRACES[kind])  # type: ignore[arg-type]
    if kind == "bursty":
        arrival = arrival // 60 * 60 + (arrival % 60) / 20
    if form == "azure":
        Path("t.csv").write_text(azure_rows(arrival, prompt, output))
    elif form == "mooncake":
        Path("t.csv").write_text(mooncake_rows(arrival, prompt, output))
    else:
        rows = "\n".join(f"{t:.3f},{p},{o}" for t, p, o in zip(arrival, prompt, output, strict=True))
        Path("t.csv").write_text("timestamp,input_length,output_length\n" + rows + "\n")
    ran = small("--trace", "t.csv", "--n-trials", "3", *(["--time-unit", "s"] if form == "csv" else []))
    assert ran.code == 0, ran.out + ran.err
    assert "t.csv: time unit: " in ran.out and "held-out window: rows " in ran.out
    assert all(m["objectives"] is None or all(v > 0 for v in m["objectives"].values()) for m in ran.members())


def test_a_short_trace_may_be_repeated_and_then_nothing_is_confirmed_on_other_traffic(small: Run, folder: Path) -> None:
    Path("t.csv").write_text(azure_rows(*traffic(60)))
    ran = small("--trace", "t.csv", "--repeat-trace", "--n-trials", "2")
    assert ran.code == 0, ran.out + ran.err
    assert "nothing can be confirmed on other traffic" in ran.out
    assert all("same window" in m["note"] for m in ran.front()["members"])


# the study


def test_the_same_seed_gives_the_same_trials_and_figures(small: Run) -> None:
    first, second = (small("--study", name, "--n-trials", "4") for name in ("a", "b"))
    assert [m["configs"] for m in first.members("a")] == [m["configs"] for m in second.members("b")]
    assert [m["objectives"] for m in first.members("a")] == [m["objectives"] for m in second.members("b")]


def test_without_noise_repeating_gives_the_same_figures(small: Run) -> None:
    ran = small("--noise", "0", "--n-trials", "2")
    assert ran.code == 0 and "tell apart: tok/s/GPU 0.5%, P99 TTFT ms 0.5%, P99 ITL ms 0.5%" in ran.out


def test_a_random_sampler_and_a_storage_of_ones_own(small: Run, folder: Path) -> None:
    ran = small("--sampler", "random", "--storage", "sqlite:///mine.db", "--n-trials", "4")
    assert ran.code == 0 and "watch: optuna-dashboard sqlite:///mine.db" in ran.out
    assert not (ran.path() / "study.db").exists()
    with sqlite3.connect("mine.db") as db:
        assert db.execute("select count(*) from trials").fetchone() == (4,)
    again = small("--sampler", "random", "--storage", "sqlite:///mine.db", "--n-trials", "4", "--study", "small-1")
    assert again.code == 2 and "small-1 exists; add --resume" in again.error
    other = small("--storage", "sqlite:///mine.db", "--study", "small-1", "--studies", "elsewhere")
    assert other.code == 2 and "holds an Optuna study 'small-1' already" in other.error


def test_the_json_log_is_json_from_the_first_line_to_the_last(small: Run) -> None:
    ran = small("--json-log", "--n-trials", "3")
    bodies = [json.loads(line) for line in ran.out.splitlines()]
    assert ran.code == 0 and bodies[0]["event"] == "StudyOpened" and "(SIMULATED)" in bodies[0]["title"]
    assert bodies[-1]["event"] == "StudyFinished" and Path(bodies[-1]["paths"][0], "front.json").is_file()
    assert [b["trial"] for b in bodies if b["event"] == "TrialFinished"] == [0, 1, 2]


def test_names_are_kept_as_given_and_paths_are_safe(small: Run, folder: Path) -> None:  # case OPT-12
    for name in ("../../etc/x '; drop table trials;--", "Study", "study"):
        ran = small("--study", name, "--n-trials", "1")
        assert ran.code == 0 and f"study {name}: " in ran.out
    paths = sorted(p.name for p in Path("studies").iterdir())
    assert len(paths) == 3 and all(re.fullmatch(r"[a-z0-9_-]{1,63}", p) for p in paths)
    assert sorted(p.name for p in folder.iterdir()) == ["small.yaml", "studies"]


def test_the_capacity_can_be_explained_without_starting_anything(small: Run, folder: Path) -> None:
    ran = small("--explain-capacity")
    assert ran.code == 0 and "KV cache" in ran.out and not (folder / "studies").exists()


def test_several_instances_with_each_tenants_promise(small: Run, folder: Path) -> None:
    write_profile(folder, *SHARED)
    ran = small("--n-trials", "2", "--slo", "chat:ttft_p99_ms<=600000", "--gpu-sharing", "mps")
    assert ran.code == 0, ran.out + ran.err
    assert all("chat:steady_ttft_p99_ms <= 600000" in m["violations"] for m in ran.members())
    assert set(ran.members()[0]["configs"]) == {"chat", "batch"}
    assert "isolation of trial" in ran.out and "one server with every tenant" in ran.out
    files = list((ran.path() / "front" / "vllm").rglob("*.yaml"))
    assert len(files) == 2 * len(ran.front()["members"])
