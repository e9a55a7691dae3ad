"""Sampled configurations held against vLLM's own check (one process of a Python that has vLLM; no server)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from search_spaces.adjust import apply_overrides
from search_spaces.constraint import check_config
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model
from search_spaces.overrides import parse_overrides
from search_spaces.space import SearchSpace, Server
from search_spaces.vllm import serving_space

TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 512,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu", "torch_dtype": "bfloat16",
}  # fmt: skip
SWITCHES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
BAD: list[dict[str, Any]] = [
    {"max_num_batched_tokens": 64, "max_num_seqs": 128},
    {"max_num_batched_tokens": 1024, "max_num_seqs": 8, "enable_chunked_prefill": False, "max_model_len": 4096},
    {"max_num_batched_tokens": 1024, "max_num_seqs": 8, "max_num_active_seqs": 9},
    {"max_num_batched_tokens": 1024, "max_num_seqs": 8, "max_model_len": 512, "long_prefill_token_threshold": 513},
    {"max_num_batched_tokens": 1024, "max_num_seqs": 8, "max_model_len": 8193},
    {"max_num_batched_tokens": 1024, "max_num_seqs": 8, "gpu_memory_utilization": 1.5},
    {"max_num_batched_tokens": 1024, "max_num_seqs": 8, "watermark": 1.0},
    {"max_num_batched_tokens": 1024, "max_num_seqs": 8, "tensor_parallel_size": 3},
]


def spaces(model_dir: str) -> list[SearchSpace]:
    model, gpu = find_model(model_dir), find_gpu("A100-80")
    one = (Server(name="main", max_model_len=4096, mean_request_tokens=1000),)
    two = tuple(Server(name=n, max_model_len=8192, mean_request_tokens=2000) for n in ("chat", "batch"))
    advanced = ["enable_prefix_caching", "kv_cache_dtype", "speculative_config", "api_server_count"]
    wide = parse_overrides(adds=["enable_chunked_prefill=true,false", "max_num_active_seqs=4,512"])
    return [
        serving_space(model, gpu, one, advanced=advanced),
        serving_space(model, gpu, one, memory_knob="gpu_memory_utilization"),
        serving_space(model, gpu, two),
        apply_overrides(serving_space(model, gpu, one), wide),
    ]


@pytest.mark.vllm
def test_vllm_accepts_what_is_sampled_and_refuses_what_is_refused(tmp_path: Path, vllm_python: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    model = find_model(str(tmp_path))
    rng = np.random.default_rng(11)
    sampled = [
        dict(config)
        for space in spaces(str(tmp_path))
        for _ in range(60)
        for config in space.configs(space.sample(rng)).values()
    ]
    assert all(check_config(bad, model) for bad in BAD)
    verdicts = ask_vllm(vllm_python, tmp_path, [*sampled, *BAD])
    refused = [(config, v) for config, v in zip(sampled, verdicts, strict=False) if v is not None]
    assert refused == []
    assert all(verdicts[len(sampled) :]), "vLLM accepts a configuration that the rules refuse"


def ask_vllm(python: str, directory: Path, configs: list[dict[str, Any]]) -> list[str | None]:
    script, answer = Path(__file__).with_name("vllm_accepts.py"), directory / "verdicts.json"
    done = subprocess.run(
        [python, str(script), str(directory), str(answer)],
        input=json.dumps(configs),
        text=True,
        capture_output=True,
        env={**os.environ, **SWITCHES},
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    verdicts: list[str | None] = json.loads(answer.read_text())
    assert len(verdicts) == len(configs)
    return verdicts
