"""Manifest: comes back as written; a resume of something else is refused with the differences."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optimizer.errors import StudyMismatch, UserError
from optimizer.study.manifest import (
    Manifest,
    check_resumable,
    differences,
    load_manifest,
    notices,
    package_versions,
)


def manifest(**changes: Any) -> Manifest:
    plain: dict[str, Any] = {
        "study": "chat-1",
        "profile": "chat",
        "profile_text": "name: chat\n",
        "objectives": ("maximize a", "minimize b"),
        "limits": ("b <= 5",),
        "space_fingerprint": "0123456789ab",
        "space": {"max_num_seqs": [8, 16]},
        "workload": {"steady": "aa", "stress": "bb"},
        "model": "Qwen3-8B",
        "gpu": "A100-80",
        "engine": "simulator 0.1.0",
        "sampler": "tpe",
        "seed": 0,
        "n_trials": 60,
        "versions": {"optuna": "5.0.0"},
    }
    return Manifest(**{**plain, **changes})


def test_comes_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    manifest(rate_per_s=4.5).save(path)
    back = load_manifest(path)
    assert differences(manifest(), back) == [] and back.rate_per_s == 4.5
    assert json.loads(path.read_text())["profile_hash"] == manifest().profile_hash


def test_trials_workers_and_comments_may_change() -> None:
    new = manifest(n_trials=200, n_workers=8, profile_text="# a note\nname: chat\n", versions={"optuna": "5.1.0"})
    check_resumable(manifest(), new)
    assert notices(manifest(), new) == [
        f"the profile's text changed since the study began ({manifest().profile_hash}, {new.profile_hash} now)",
        "optuna was 5.0.0 when the study began, 5.1.0 now",
    ]


def test_what_is_confirmed_may_change_but_a_smoke_run_stays_one() -> None:
    old = manifest(settings={"confirm": "front", "noise": 1.0})
    assert differences(old, manifest(settings={"noise": 1.0})) == []
    assert differences(old, manifest(settings={"confirm": "none", "noise": 1.0})) == []
    changed = differences(old, manifest(settings={"noise": 1.0, "smoke": True, "attach": {"": "http://h:1"}}))
    assert changed == [
        "settings smoke: nothing in the study, True now",
        "settings attach: nothing in the study, {'': 'http://h:1'} now",
    ]


def test_of_long_lists_only_what_differs_is_shown() -> None:
    same = tuple(f"steady_some_long_metric_{k} <= {k}" for k in range(9))
    line = differences(manifest(limits=same), manifest(limits=(*same, "steady_ttft_p99_ms <= 5000")))
    assert line == ["limits: nothing in the study, steady_ttft_p99_ms <= 5000 now"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"objectives": ("maximize a",)}, "objectives: maximize a, minimize b in the study, maximize a now"),
        ({"workload": {"steady": "aa", "stress": "cc"}}, "workload stress: bb in the study, cc now"),
        ({"workload": {"steady": "aa"}}, "workload stress: bb in the study, nothing now"),
        ({"model": "Qwen3-14B"}, "model: Qwen3-8B in the study, Qwen3-14B now"),
        ({"gpu": "H100-80"}, "gpu: A100-80 in the study, H100-80 now"),
        ({"limits": ("b <= 6",)}, "limits: b <= 5 in the study, b <= 6 now"),
        ({"engine": "vllm 0.32"}, "engine: simulator 0.1.0 in the study, vllm 0.32 now"),
        ({"settings": {"noise": 0}}, "settings noise: nothing in the study, 0 now"),
        ({"seed": 1}, "seed: 0 in the study, 1 now"),
    ],
)
def test_another_study_is_refused_with_the_difference(changes: dict[str, Any], line: str) -> None:
    # case OPT-07
    with pytest.raises(StudyMismatch) as caught:
        check_resumable(manifest(), manifest(**changes))
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_every_difference_is_named() -> None:
    changed = manifest(space_fingerprint="ffff", space={"max_num_seqs": [8]}, gpu="H100-80")
    lines = differences(manifest(), changed)
    assert [line.split(":")[0] for line in lines] == ["space max_num_seqs", "gpu"]


def test_constraints_count_once_both_are_known() -> None:
    known = manifest().with_(constraints=("b <= 5", "boot"), rate_per_s=3.0)
    assert differences(known, manifest()) == []
    assert differences(known, manifest(constraints=("b <= 5",))) != []
    with pytest.raises(ValueError, match="gpu is fixed"):
        manifest().with_(gpu="H100-80")


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not a study's manifest"), ("[]", "not a study's manifest"), ('{"format": 99}', "newer version"),
     ('{"format": 1}', "not a study's manifest")],
)  # fmt: skip
def test_unreadable_manifest_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "manifest.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load_manifest(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="holds no study"):
        load_manifest(tmp_path / "none.json")


def test_long_values_are_cut_and_versions_are_read() -> None:
    (line,) = differences(manifest(), replace(manifest(), model="x" * 500))
    assert len(line) < 200
    assert package_versions()["optuna"].startswith("5.")
