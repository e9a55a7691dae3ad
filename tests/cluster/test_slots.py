"""GPU detection from what nvidia-smi prints, kinds of GPUs, and how many trials run at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from optimizer.cluster.slots import (
    Gpu,
    GpuClass,
    GpuDetection,
    choose_gpus,
    count_slots,
    detect_gpus,
    list_gpus,
    n_usable_cores,
)
from optimizer.errors import Unavailable, UserError

A100_80 = GpuClass("NVIDIA A100-SXM4-80GB", 81920, 400)
A100_40 = GpuClass("NVIDIA A100-SXM4-40GB", 40960, 400)
L4 = GpuClass("NVIDIA L4", 23034, 72)

MIXED = """\
0, GPU-aaaa, NVIDIA A100-SXM4-80GB, 81920, 4, 400.00, Disabled
1, GPU-bbbb, NVIDIA A100-SXM4-40GB, 40960, 4, 400.00, Disabled
2, GPU-cccc, NVIDIA L4, 23034, 512, 72.00, [N/A]
3, GPU-dddd, NVIDIA A100-SXM4-80GB, 81920, 70333, 400.00, Disabled
"""
SLICED = "0, GPU-1111, NVIDIA H100 80GB HBM3, 81559, 30, 700.00, Enabled\n"
SLICES = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1111)
  MIG 2g.20gb     Device  0: (UUID: MIG-2222)
  MIG 1g.10gb     Device  1: (UUID: MIG-3333)
"""


def shell(query: str, listing: str = "") -> object:
    """nvidia-smi, by what it prints."""

    def run(arguments: Sequence[str]) -> str:
        return listing if arguments == ["-L"] else query

    return run


@pytest.fixture(autouse=True)
def nothing_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def gpus(*kinds: GpuClass, used_mib: int = 0) -> tuple[Gpu, ...]:
    return tuple(Gpu(i, f"GPU-{i}", kind, used_mib) for i, kind in enumerate(kinds))


def test_each_card_with_its_kind_and_whether_it_is_free() -> None:
    found = detect_gpus(shell(MIXED)).gpus
    assert [(g.index, g.uuid, g.kind, g.is_free) for g in found] == [
        (0, "GPU-aaaa", A100_80, True),
        (1, "GPU-bbbb", A100_40, True),
        (2, "GPU-cccc", L4, True),
        (3, "GPU-dddd", A100_80, False),
    ]


def test_slices_replace_their_card_and_differ_from_it() -> None:  # case GPU-01
    found = detect_gpus(shell(SLICED, SLICES)).gpus
    assert [(g.uuid, g.kind.memory_mib, g.kind.mig_profile, g.parent) for g in found] == [
        ("MIG-2222", 20480, "2g.20gb", "GPU-1111"),
        ("MIG-3333", 10240, "1g.10gb", "GPU-1111"),
    ]
    assert len({g.kind for g in found}) == 2


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("2,0", ["GPU-cccc", "GPU-aaaa"]),
        ("GPU-bb", ["GPU-bbbb"]),
        ("0,7,1", ["GPU-aaaa"]),
        ("1,1", ["GPU-bbbb"]),
    ],
)
def test_cuda_visible_devices_is_obeyed(monkeypatch: pytest.MonkeyPatch, visible: str, uuids: list[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [g.uuid for g in detect_gpus(shell(MIXED)).gpus] == uuids


def test_all_gpus_are_listed_hidden_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-cccc")
    assert [g.index for g in list_gpus(shell(MIXED)).gpus] == [0, 1, 2, 3]


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles"])
def test_hidden_gpus_are_said_to_be_hidden(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert detect_gpus(shell(MIXED)).text == f"no GPU found: 4 GPU(s) hidden by CUDA_VISIBLE_DEVICES={visible!r}"


def test_without_nvidia_smi_it_says_what_was_checked(  # case EDGE-18
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    text = detect_gpus().text
    assert text.startswith("no GPU found: nvidia-smi not on PATH, /dev/nvidia")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            "echo NVIDIA-SMI has failed because it could not reach the driver; exit 9",
            "failed with status 9 (NVIDIA-SMI",
        ),
        ("echo No devices were found", "printed 'No devices were found' where a GPU's row was expected"),
        ("exit 0", "nvidia-smi lists no GPU"),
    ],
)
def test_an_nvidia_smi_that_fails_is_quoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, said: str
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = detect_gpus()
    assert found.gpus == () and said in found.text


def test_a_study_gets_only_the_kind_it_is_bound_to() -> None:  # case GPU-02
    detection = detect_gpus(shell(MIXED))
    assert [g.uuid for g in choose_gpus(detection, A100_80)] == ["GPU-aaaa"]
    assert [g.uuid for g in choose_gpus(GpuDetection(gpus(L4, A100_40, A100_40)))] == ["GPU-1", "GPU-2"]


def test_a_kind_that_is_not_there_is_refused_with_what_is() -> None:  # case GPU-02
    with pytest.raises(Unavailable, match=r"runs on NVIDIA A100-SXM4-80GB \(81920 MiB, 400 W\); free here: NVIDIA L4"):
        choose_gpus(GpuDetection(gpus(L4)), A100_80)


def test_one_card_under_another_power_limit_is_another_kind() -> None:
    capped = GpuClass(A100_80.name, A100_80.memory_mib, 250)
    assert len(choose_gpus(GpuDetection(gpus(A100_80, capped, A100_80)))) == 2


def test_cards_in_use_are_not_taken() -> None:
    with pytest.raises(Unavailable, match="every GPU is in use"):
        choose_gpus(GpuDetection(gpus(L4, used_mib=20000)))


@pytest.mark.parametrize(  # case TOOL-01
    ("n_each", "n_gpus", "asked", "slots"), [(1, 2, None, 2), (2, 5, None, 2), (1, 4, 3, 3), (4, 4, None, 1)]
)
def test_as_many_trials_at_once_as_free_gpus_allow(n_each: int, n_gpus: int, asked: int | None, slots: int) -> None:
    assert count_slots(n_each, gpus(*[L4] * n_gpus), asked) == slots


@pytest.mark.parametrize(
    ("n_each", "n_gpus", "asked", "error", "said"),
    [
        (1, 2, 3, UserError, "--workers 3: 2 free GPU.* allow at most 2"),
        (2, 1, None, Unavailable, r"needs 2 GPU\(s\) of one kind, 1 are free"),
        (0, 0, 0, UserError, "--workers 0: at least one"),
        (0, 0, -4, UserError, "--workers -4: at least one"),
        (0, 0, 100_000, UserError, "--workers 100000: .* allow at most"),
    ],
)
def test_more_workers_than_there_is_room_for_are_refused(
    n_each: int, n_gpus: int, asked: int | None, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        count_slots(n_each, gpus(*[L4] * n_gpus), asked)


def test_simulated_slots_follow_the_cores() -> None:
    assert count_slots(0, (), None) == min(n_usable_cores(), 8)
    assert count_slots(0, (), n_usable_cores() + 1) == n_usable_cores() + 1
