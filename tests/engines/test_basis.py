"""What is said to be uncalibrated, and that every assumed entry is said."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.engines.simulator.basis import uncalibrated
from search_spaces.gpu_table import GPUS
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model

sys.path.insert(0, str(Path(__file__).parent))
from simulated import engine, placement


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "expected"),
    [
        ("Llama-3.1-8B", "H100", 1, ()),
        ("Llama-3.1-8B", "H100", 4, ()),
        ("Llama-3.1-8B", "H200", 8, ()),
        ("Llama-3.1-8B", "RTX 4090", 1, ()),
        ("Llama-3.1-8B", "RTX 4090", 2, ("all-reduce over 2 GPUs",)),
        ("Qwen3-30B-A3B", "H100", 1, ("experts",)),
        ("Qwen3-32B-AWQ", "H100", 1, ("weights of",)),
        ("DeepSeek-V2-Lite", "H100", 1, ("experts", "latent attention")),
        ("Llama-3.1-8B", "A100", 1, ("decode attention beside a prefill",)),
        ("Llama-3.1-8B", "MI300X", 4, ("linear layers", "prefill", "decode attention (", "beside", "all-reduce")),
    ],
)
def test_what_rests_on_no_kernel_data_is_said(model: str, gpu: str, tp: int, expected: tuple[str, ...]) -> None:
    found = uncalibrated(find_model(model), find_gpu(gpu), tp)
    assert len(found) == len(expected), found
    for phrase in expected:
        assert any(phrase in text for text in found), (phrase, found)


def test_fp8_says_so_where_its_kernels_were_not_measured() -> None:
    model = replace(find_model("Llama-3.1-8B"), weight_bytes_per_parameter=1.0, is_quantized=True)
    assert uncalibrated(model, find_gpu("H100")) == ()
    assert any("fp8" in text for text in uncalibrated(model, find_gpu("RTX 4090")))
    assert any("weights of 1 bytes" in text for text in uncalibrated(model, find_gpu("A100")))
    assert any(
        "KV cache of 1 byte" in text for text in uncalibrated(find_model("Llama-3.1-8B"), find_gpu("H100"), 1, 1.0)
    )


def test_every_entry_names_its_source() -> None:
    for gpu in GPUS:
        kernels = gpu.kernels
        families = [kernels.gemm, kernels.prefill, kernels.decode, kernels.mixed, *kernels.all_reduce]
        for entry in families + ([kernels.gemm_fp8] if kernels.gemm_fp8 else []):
            assert len(entry.source) > 10, (gpu.name, entry)
            assert entry.error is None or 0 <= entry.error < 0.3, (gpu.name, entry)


def test_a_boot_says_it() -> None:
    assert engine("H100-80").boot(placement(), seed=0).facts["uncalibrated"] == []
    assert engine("L4-24").boot(placement(kv_cache_memory_bytes=2 * 1024**3), seed=0).facts["uncalibrated"]
