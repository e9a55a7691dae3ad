"""Study names: shown as given, safe on every disk, found by name or path."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.errors import UserError
from optimizer.study.names import find_study, list_studies, locate, next_free, slug

LABEL = re.compile(r"[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?")


def make(studies: Path, name: str) -> Path:
    folder = studies / slug(name)
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"study": name}))
    return folder


ACCEPTED = ["qwen/7b chat", "../../etc/x", "中文-测试-é", "x" * 300, "CON", "'; drop table trials;--", "Study", "study"]


@pytest.mark.parametrize("name", ACCEPTED)
def test_name_is_kept_and_its_folder_stays_inside(name: str, tmp_path: Path) -> None:
    # case OPT-12
    shown, folder = locate(name, tmp_path)
    assert shown == name
    assert folder.parent == tmp_path
    assert LABEL.fullmatch(folder.name), "a Kubernetes label value"


def test_slugs_of_the_case_do_not_collide() -> None:
    slugs = [slug(name) for name in ACCEPTED]
    assert len({s.lower() for s in slugs}) == len(ACCEPTED)
    assert slug("study") == "study" and slug("CON") != "con" and slug("con") != "con"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        ("  ", "empty"),
        ("a\nb", "U+000A at position 2"),
        ("a\x00", "U+0000"),
        ("x" * 1600, "1600 characters"),
        ("a\u202eb", "U+202E"),
    ],
)
def test_unusable_names_are_refused_with_the_reason(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(reason)):
        locate(name, tmp_path)


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=200))
def test_any_name_makes_a_safe_slug(name: str) -> None:
    try:
        made = slug(name)
    except UserError:
        return
    assert LABEL.fullmatch(made) and len(made) <= 63
    assert slug(name) == made


def test_two_spellings_of_one_letter_are_one_study() -> None:
    assert slug("caf\u00e9") == slug("cafe\u0301")


def test_found_by_name_and_by_path(tmp_path: Path) -> None:
    folder = make(tmp_path / "studies", "My Study")
    for text in ("My Study", str(folder), str(folder / "study.db"), f"{folder}/"):
        (folder / "study.db").touch()
        assert find_study(text, tmp_path / "studies").resolve() == folder.resolve()
    assert locate(str(folder), tmp_path / "elsewhere") == ("My Study", folder)


def test_missing_study_names_what_is_there(tmp_path: Path) -> None:
    make(tmp_path, "chat-1")
    with pytest.raises(UserError, match="chat-1"):
        find_study("chat-2", tmp_path)
    with pytest.raises(UserError, match="there is none yet"):
        find_study("chat-2", tmp_path / "nowhere")
    with pytest.raises(UserError):
        find_study("../../etc", tmp_path)


def test_a_name_that_is_another_ones_slug_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "Study")
    with pytest.raises(UserError, match="belongs to the study 'Study'"):
        locate(slug("Study"), tmp_path)


def test_next_free_counts_on(tmp_path: Path) -> None:
    assert next_free("multitenant", tmp_path) == "multitenant-1"
    make(tmp_path, "multitenant-1")
    make(tmp_path, "multitenant-3")
    assert next_free("multitenant", tmp_path) == "multitenant-2"
    assert next_free("./profiles/Mine.yaml", tmp_path) == "Mine-1"
    assert [p.name for p in list_studies(tmp_path)] == ["multitenant-1", "multitenant-3"]
