"""What a user installs: three packages with their data and licences, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
PACKAGES = ("optimizer", "objectives", "search_spaces")
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "NOTICE", *PACKAGES, "tests", "docs")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that no build folder is left in the checkout; without isolation, so that no network."""
    tree = tmp_path_factory.mktemp("tree")
    for source in SOURCES:
        path = PROJECT / source
        if path.is_dir():
            shutil.copytree(path, tree / source, ignore=shutil.ignore_patterns("__pycache__", "cases"))
        else:
            shutil.copy(path, tree / source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tree / "out"), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (built,) = (tree / "out").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (n for n in archive.namelist() if n.endswith(f".dist-info/{name}"))
        return archive.read(path)


def test_top_level_names_are_the_three_packages(names: set[str]) -> None:
    assert {n.split("/")[0] for n in names if ".dist-info/" not in n} == set(PACKAGES)


def test_every_module_is_in(names: set[str]) -> None:
    modules = {p.relative_to(PROJECT).as_posix() for package in PACKAGES for p in (PROJECT / package).rglob("*.py")}
    assert modules == {n for n in names if n.endswith(".py")}


def test_every_data_file_is_in(names: set[str]) -> None:
    files = [p for p in (PROJECT / "optimizer").rglob("*") if p.is_file() and not p.name.startswith(".")]
    data = [p for p in files if p.suffix not in (".py", ".pyc")]
    missing = {p.relative_to(PROJECT).as_posix() for p in data} - names
    assert missing == set(), "name them in [tool.setuptools.package-data]"
    for folder in ("optimizer/profiles/", "optimizer/workload/data/"):
        assert any(n.startswith(folder) and not n.endswith(".py") for n in names), folder


@pytest.mark.parametrize("name", ["LICENSE", "NOTICE"])
def test_licence_and_notice_are_in_as_they_stand(wheel: Path, name: str) -> None:
    assert metadata(wheel, f"licenses/{name}") == (PROJECT / name).read_bytes()


def test_metadata_names_licence_and_python(wheel: Path) -> None:
    fields = message_from_bytes(metadata(wheel, "METADATA"))
    assert (fields["Name"], fields["License-Expression"]) == ("vllm-config-optimizer", "Apache-2.0")
    assert set(fields["Requires-Python"].split(",")) == {">=3.11", "<3.15"}
    assert b"vllm-config-optimizer = optimizer.cli:main" in metadata(wheel, "entry_points.txt")
