"""Who may import whom. The layers are import-linter's (pyproject.toml); here is what it cannot say: which outside
packages a folder may need at all, and what an import really loads."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from optimizer.cli import COMMANDS

PROJECT = Path(__file__).resolve().parents[1]
OURS = ("optimizer", "objectives", "search_spaces")
ALLOWED = {
    "objectives": {"objectives", "numpy"},
    "search_spaces": {"search_spaces", "numpy"},
    "optimizer/engines/simulator": {"optimizer", "objectives", "search_spaces", "numpy"},
    "optimizer/engines/live": {"vllm", "torch"},
}
"""Folder -> what its files may import besides the standard library (on top of import-linter's layers)."""
IMPORT_NAMES = {"pyyaml": "yaml", "nvidia-ml-py": "pynvml"}
"""Distribution -> import name, where they differ by more than hyphens."""
STARTED = {"optuna_dashboard"}
"""Dependencies that are programs the user starts."""
HEAVY = ("ray", "torch", "vllm", "optuna", "pandas", "plotly", "rich")


def imported(path: Path) -> Iterator[str]:
    """Top-level names a file imports anywhere, functions included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield (node.module or "").split(".")[0]


def foreign(folder: str, allowed: set[str]) -> set[tuple[str, str]]:
    names = allowed | sys.stdlib_module_names
    paths = sorted((PROJECT / folder).rglob("*.py"))
    return {(str(p.relative_to(PROJECT)), name) for p in paths for name in imported(p) if name not in names}


@pytest.mark.parametrize("folder", [f for f in ALLOWED if (PROJECT / f).is_dir()])
def test_a_folder_needs_only_what_it_may(folder: str) -> None:
    assert foreign(folder, ALLOWED[folder]) == set()


def dependencies() -> set[str]:
    """Import names of what pyproject.toml declares."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    names = [re.split(r"[<>=;\[ ]", d)[0].lower() for d in project["dependencies"]]
    return {IMPORT_NAMES.get(n, n.replace("-", "_")) for n in names}


def test_every_outside_package_is_declared_and_every_declared_one_needed() -> None:
    allowed = {*OURS, *dependencies()}
    assert {(p, n) for p, n in foreign("optimizer", allowed) if not p.startswith("optimizer/engines/live/")} == set()
    used = {n for package in OURS for p in (PROJECT / package).rglob("*.py") for n in imported(p)}
    assert dependencies() - used - STARTED == set()


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in sys.modules after a statement, in a child process."""
    program = f"{statement}\nimport sys; print(*{{m.split('.')[0] for m in sys.modules}})"
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_packages_loads_nothing_heavy() -> None:
    loaded = loaded_by(f"import {', '.join(OURS)}")
    assert set(OURS) <= loaded and loaded.isdisjoint({*HEAVY, "numpy"})


@pytest.mark.parametrize("command", COMMANDS)
def test_help_loads_nothing_heavy(command: str) -> None:
    statement = f"import optimizer.{command} as c\ntry: c.main(['--help'])\nexcept SystemExit as e: assert e.code == 0"
    assert loaded_by(statement).isdisjoint(HEAVY)


def test_the_simulator_loads_numpy_alone() -> None:
    modules = sorted((PROJECT / "optimizer/engines/simulator").glob("*.py"))
    names = [f"optimizer.engines.simulator.{p.stem}" for p in modules if p.stem != "__init__"]
    assert names, "the simulator has no modules"
    assert loaded_by(f"import {', '.join(names)}").isdisjoint(HEAVY)
