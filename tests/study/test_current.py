"""What the user runs with today decides more than trial 0: the model, its weights, its context, its untuned flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from optimizer.errors import UserError
from optimizer.study.setup import CURRENT, DEFAULTS, Setup, SetupOptions, prepare


def current(folder: Path, text: str, **options: object) -> Setup:
    file = folder / "serve.yaml"
    file.write_text(text)
    return prepare(SetupOptions(profile="chat", current={"": str(file)}, **options))  # type: ignore[arg-type]


def arguments(setup: Setup, name: str) -> dict[str, object]:
    placement = next(p for n, p, _ in setup.baselines if n == name)
    return dict(placement.instances[0].config)


def test_the_model_is_taken_from_it_unless_another_is_named(tmp_path: Path) -> None:
    assert current(tmp_path, "model: Qwen/Qwen3-8B\n").model.name.endswith("Qwen3-8B")
    assert current(tmp_path, "model: Qwen/Qwen3-8B\n", model="Qwen3-4B").model.name.endswith("Qwen3-4B")
    unknown = current(tmp_path, "model: org/private\n")
    assert unknown.model.name.endswith("Llama-3.1-8B-Instruct")
    assert any("org/private is not known here" in n for n in unknown.notices)


def test_quantisation_on_load_counts_in_memory_and_stays_in_every_trial(tmp_path: Path) -> None:
    plain, small = (
        current(tmp_path, f"model: Qwen/Qwen3-8B\n{q}")
        for q in ("max-num-seqs: 64\n", "max-num-seqs: 64\nquantization: fp8\n")
    )
    assert small.model.weight_bytes(1) < 0.6 * plain.model.weight_bytes(1)
    assert small.capacity.ceiling_bytes > plain.capacity.ceiling_bytes
    assert small.place(dict(small.base_point)).instances[0].config["quantization"] == "fp8"
    assert arguments(small, DEFAULTS)["quantization"] == "fp8"
    with pytest.raises(UserError, match=r"serve.yaml: quantization 'gptq' does not quantise"):
        current(tmp_path, "model: Qwen/Qwen3-8B\nquantization: gptq\n")


def test_its_context_is_kept_where_the_workload_fits(tmp_path: Path) -> None:
    kept = current(tmp_path, "model: Qwen/Qwen3-8B\nmax-model-len: 20k\n")
    assert kept.place(dict(kept.base_point)).instances[0].config["max_model_len"] == 20_000
    assert any("stays 20,000, as you run it" in n for n in kept.notices)
    short = current(tmp_path, "model: Qwen/Qwen3-8B\nmax-model-len: 4k\n")
    assert short.place(dict(short.base_point)).instances[0].config["max_model_len"] == short.traffic.max_model_len
    assert arguments(short, CURRENT)["max_model_len"] == 4000


def test_what_is_not_searched_stays_as_it_runs(tmp_path: Path) -> None:
    setup = current(tmp_path, "no-enable-prefix-caching: true\nkv-cache-dtype: fp8\nblock-size: 32\n")
    config = setup.place(dict(setup.base_point)).instances[0].config
    assert (config["enable_prefix_caching"], config["kv_cache_dtype"], config["block_size"]) == (False, "fp8", 32)
    assert any("kv_cache_dtype can change the model's answers" in n for n in setup.notices)


def test_vllms_defaults_are_its_own_whatever_the_user_runs(tmp_path: Path) -> None:  # case TOOL-16
    for text in (
        "no-enable-prefix-caching: true\n",
        "kv-cache-dtype: fp8\nmax-num-seqs: 64\n",
        "attention-backend: FLASHINFER\n",
    ):
        defaults = arguments(current(tmp_path, text), DEFAULTS)
        assert set(defaults) == {"max_num_batched_tokens", "max_num_seqs", "max_model_len", "gpu_memory_utilization"}


def test_a_typo_is_named_with_what_was_meant(tmp_path: Path) -> None:
    setup = current(tmp_path, "max-num-batched-tokns: 4096\n")
    assert any("did you mean max-num-batched-tokens?" in n for n in setup.notices)
