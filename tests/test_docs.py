"""The documents say what is there: the map holds every folder, links and named files exist."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
SOURCE = ("optimizer", "objectives", "search_spaces", "bench")
STRUCTURE = (PROJECT / "docs/structure.md").read_text()
DOCUMENTS = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md")])
NAMED = re.compile(r"`([\w./-]+(?:/|\.(?:py|md|yaml|toml|jsonl|csv|txt)))`")
"""A file or folder named in back quotes; a bare file name is somebody's example."""


def folders() -> list[str]:
    found = {p.parent for s in SOURCE for p in (PROJECT / s).rglob("*") if p.is_file()}
    names = {p.relative_to(PROJECT).as_posix() for p in found if not {"__pycache__", ".mypy_cache"} & set(p.parts)}
    return sorted(n for n in names if not n.startswith("bench/data/"))


@pytest.mark.parametrize("folder", folders())
def test_every_folder_is_on_the_map(folder: str) -> None:
    assert f"| `{folder}/` |" in STRUCTURE


def test_the_map_has_ten_stops() -> None:
    stops = re.findall(r"^(\d+)\. `", STRUCTURE, re.MULTILINE)
    assert stops == [str(n) for n in range(1, 11)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.relative_to(PROJECT).as_posix())
def test_every_named_file_is_there(document: Path) -> None:
    text = document.read_text()
    named = {n for n in NAMED.findall(text) if "/" in n and not n.startswith(("studies/", "./", "front/", "trials/"))}
    roots = (PROJECT, PROJECT / "optimizer", document.parent)
    assert sorted(n for n in named if not any((root / n).exists() for root in roots)) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.relative_to(PROJECT).as_posix())
def test_every_link_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", document.read_text())
    assert [x for x in links if not x.startswith("http") and not (document.parent / x).exists()] == []


def test_the_map_gives_the_layers_that_are_enforced() -> None:
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c["type"] == "layers")
    enforced = [name.strip() for layer in layers for name in layer.split(":")]
    drawn = next(p for p in STRUCTURE.split("\n\n") if p.startswith("`run`"))
    assert re.findall(r"`(\w+)`", drawn) == enforced


def test_the_notice_credits_every_licence_of_the_measured_data() -> None:
    notice = (PROJECT / "NOTICE").read_text()
    for owner in (
        "Microsoft",
        "Splitwise",
        "Mooncake",
        "CASYS Lab at KAIST",
        "AIConfigurator",
        "CC-BY-4.0",
        "source_license",
    ):
        assert owner in notice
    header = (PROJECT / "bench/data/measured_points.csv").read_text().splitlines()[0].split(",")
    assert "source" in header and "source_license" in header


def test_the_open_cases_are_readable() -> None:
    lines = (PROJECT / "tests/cases/open.jsonl").read_text().splitlines()
    ids = [json.loads(line)["id"] for line in lines]
    assert len(ids) == len(set(ids)) > 0
