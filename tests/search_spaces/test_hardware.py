"""The GPU table: every name and spelling finds its card, a wrong one is answered with close names."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from search_spaces.gpu_table import GPUS
from search_spaces.hardware import GIB, batch_defaults, find_gpu

DATA = Path(__file__).parents[2] / "bench" / "data"
NAMES = (
    "A100-40 A100-80 H100-80 H100-NVL-94 H200-141 B200-180 L40S-48 L4-24 A10G-24 MI300X-192 RTX-4090-24 RTX-PRO-6000-96"
)


@pytest.mark.parametrize("name", NAMES.split())
def test_every_fixed_name_is_its_own_canonical_name(name: str) -> None:
    assert find_gpu(name).name == name
    assert find_gpu(name.lower().replace("-", "_")).name == name


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-80"),
        ("h100_sxm", "H100-80"),
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("NVIDIA A100-SXM4-40GB", "A100-40"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090-24"),
        ("nvidia l40s", "L40S-48"),
        ("NVIDIA H200", "H200-141"),
        ("AMD Instinct MI300X", "MI300X-192"),
        ("NVIDIA H100 PCIe", "H100-PCIE-80"),
        ("A100-SXM-40 (Colab)", "A100-40"),
    ],
)
def test_usual_spellings(spelling: str, name: str) -> None:
    assert find_gpu(spelling).name == name


def test_every_spelling_in_the_measured_data_is_known() -> None:
    with (DATA / "measured_points.csv").open() as file:
        spellings = {row["gpu"] for row in csv.DictReader(file)}
    for meta in DATA.glob("*/meta.json"):
        hardware = json.loads(meta.read_text()).get("hardware") or {}
        spellings |= {hardware["device_name"]} if "device_name" in hardware else set()
    assert len(spellings) >= 9
    assert all(find_gpu(s).memory_bytes > 0 for s in spellings)


def test_no_spelling_means_two_cards() -> None:
    for gpu in GPUS:
        for spelling in (gpu.name, *gpu.aliases):
            assert find_gpu(spelling) is gpu, spelling


@pytest.mark.parametrize("name", ["H1000", "RTX-4080-16", "", "a100; rm -rf /"])
def test_unknown_cards_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(ValueError, match="unknown GPU") as caught:
        find_gpu(name)
    assert "\n" not in str(caught.value)
    assert "A100-80" in str(caught.value)


def test_close_names_are_offered() -> None:
    with pytest.raises(ValueError, match="did you mean H100-80"):
        find_gpu("H100-8")


@pytest.mark.parametrize(
    ("name", "defaults"),
    [("A100-80", (2048, 256)), ("H100-80", (8192, 1024)), ("B200-180", (16384, 1024)), ("MI300X-192", (16384, 1024)),
     ("L4-24", (2048, 256)), ("RTX-PRO-6000-96", (8192, 1024)), ("H200-141", (8192, 1024))],
)  # fmt: skip
def test_batch_defaults_follow_vllm(name: str, defaults: tuple[int, int]) -> None:
    assert batch_defaults(find_gpu(name)) == defaults


def test_facts_are_plausible_and_sourced() -> None:
    for gpu in GPUS:
        label_gb = int(gpu.name.rsplit("-", 1)[1])
        assert 0.9 * label_gb * 1000**3 < gpu.memory_bytes < label_gb * 1.08 * GIB
        assert gpu.source
        assert 0 < gpu.kernels.gemm.mfu <= 1.01 and 0 < gpu.kernels.gemm.mbu <= 1
        assert (gpu.fp8_flops or gpu.bf16_flops) >= gpu.bf16_flops
        row = gpu.all_reduce_of(4)
        assert 0 < row.seconds(8) <= row.seconds(1e5) < row.seconds(1e8) < row.seconds(1e9)
