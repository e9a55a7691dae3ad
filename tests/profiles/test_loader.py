"""Every shipped profile loads; every kind of mistake names the file and the field."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from optimizer.errors import UserError
from optimizer.profiles.loader import SHIPPED, load_profile, parse_profile


def document(name: str = "chat") -> dict[str, Any]:
    text = files("optimizer.profiles").joinpath(f"{name}.yaml").read_text("utf-8")
    loaded = yaml.safe_load(text)
    assert isinstance(loaded, dict)
    return loaded


def parse(changed: dict[str, Any]) -> Any:
    return parse_profile(yaml.safe_dump(changed), "mine.yaml", "mine")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_load_and_say_why(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert len(profile.why) > 40
    assert sum(t.share for t in profile.tenants) == pytest.approx(1.0)
    assert {o.direction for o in profile.objectives} == {"maximize", "minimize"}
    assert any("preemptions" in limit.metric for limit in profile.limits)


def test_a_copy_passed_back_is_the_same_profile(tmp_path: Path) -> None:
    copy = tmp_path / "chat.yaml"
    copy.write_text(load_profile("chat").text)
    assert load_profile(str(copy)) == load_profile("chat")


def test_multitenant_has_several_instances_on_one_card() -> None:
    profile = load_profile("multitenant")
    assert profile.is_shared
    assert profile.sharing == "time-slice"
    assert [profile.tenants_of(i) for i in profile.instances] == [("chat",), ("batch",)]


MISTAKES: list[tuple[str, dict[str, Any], str]] = [
    ("unknown field", {"gpus": "A100-80"}, "mine.yaml: gpus: unknown field"),
    ("missing share sum", {"tenants": {"a": {"trace": "azure-conv", "share": 0.4}}}, "shares that sum to 1"),
    ("share over 1", {"tenants": {"a": {"trace": "azure-conv", "share": 1.4}}}, "tenants.a.share: 1.4"),
    ("unknown metric", {"objectives": [{"metric": "ttft", "direction": "minimize"}]}, "objectives[0].metric: 'ttft'"),
    ("direction", {"objectives": [{"metric": "steady_ttft_p99_ms", "direction": "down"}]}, "objectives[0].direction"),
    ("no objective", {"objectives": []}, "objectives: []"),
    ("limit without bound", {"limits": [{"metric": "steady_ttft_p99_ms"}]}, "limits[0].at_most: this field is missing"),
    ("limit text", {"limits": [{"metric": "steady_ttft_p99_ms", "at_most": "500ms"}]}, "limits[0].at_most: '500ms'"),
    ("nan limit", {"limits": [{"metric": "steady_ttft_p99_ms", "at_most": float("nan")}]}, "limits[0].at_most"),
    ("zero trials", {"budget": {"n_trials": 0}}, "budget.n_trials: 0"),
    ("half a trial", {"budget": {"n_trials": 1.5}}, "budget.n_trials: 1.5"),
    ("bool as number", {"load": {"sustain_share": True}}, "load.sustain_share: True"),
    ("sustain over 1", {"load": {"sustain_share": 1.7}}, "load.sustain_share: 1.7"),
    ("unknown nested", {"load": {"sustain": 0.8}}, "load.sustain: unknown field; known here: sustain_share"),
    ("memory knob", {"space": {"memory_knob": "both"}}, "space.memory_knob: 'both'"),
    ("parameters not a mapping", {"space": {"parameters": [1]}}, "space.parameters: [1]"),
    ("instances twice", {"instances": ["a", "a"]}, "instances: ['a', 'a']"),
    ("sharing of one", {"sharing": "mps"}, "sharing: 'mps'"),
    ("empty why", {"why": " "}, "why: ' '"),
    ("model a number", {"model": 7}, "model: 7"),
]


@pytest.mark.parametrize(("change", "message"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_mistakes_name_file_and_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(document() | change)
    assert str(caught.value).startswith("mine.yaml: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["why", "model", "gpu", "tenants", "objectives"])
def test_a_missing_field_is_named(field: str) -> None:
    changed = document()
    del changed[field]
    with pytest.raises(UserError, match=f"mine.yaml: {field}: this field is missing"):
        parse(changed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("# only a comment\n", "the file is empty"),
        ("- a\n- b\n", "expected a mapping"),
        ("a: [1\n", "line 2 is not valid YAML"),
        ("\ta: 1\n", "is not valid YAML"),
        ("just text", "expected a mapping"),
    ],
)
def test_broken_files(text: str, message: str) -> None:
    with pytest.raises(UserError, match=r"^mine.yaml:") as caught:
        parse_profile(text, "mine.yaml", "mine")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unused_instance_is_refused() -> None:
    changed = document("multitenant")
    changed["tenants"]["batch"]["instance"] = "chat"
    with pytest.raises(UserError, match="instances: 'batch'"):
        parse(changed)


@pytest.mark.parametrize("name", ["chta", "", "no/such.yaml", "missing.yml"])
def test_unknown_profile_names_the_flag(name: str) -> None:
    with pytest.raises(UserError, match=r"^--profile"):
        load_profile(name)


def test_binary_and_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bin.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "dir.yaml").mkdir()
    for name in ("bin.yaml", "dir.yaml"):
        with pytest.raises(UserError, match="cannot be read"):
            load_profile(str(tmp_path / name))
