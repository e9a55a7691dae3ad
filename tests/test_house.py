"""The habits of the house that a linter does not know. Each failure names the file and what is wrong with it."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
SOURCE = ("optimizer", "objectives", "search_spaces")
MAX_LINES = 400
BLIND_EXCEPT_ALLOWED = "optimizer/trial.py"
FOREIGN = ("tests/cases/", "bench/data/", "optimizer/workload/data/", "LICENSE")
"""Texts of others, kept as they are."""

FORBIDDEN_WORDS = {"Manager", "Handler", "Helper", "Helpers", "Util", "Utils", "Common", "Base"}
OPEN_ENDS = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
WORKPLACE = re.compile(r"(?<![\w.:$}~*-])/(?:home|root|Users|mnt|srv)/")


def files() -> list[Path]:
    """Every file git tracks or would track; without git, every file outside hidden and built folders."""
    command = ["git", "-C", str(PROJECT), "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0 and done.stdout:
        found = [PROJECT / line for line in done.stdout.splitlines()]
    else:
        found = [
            p for p in PROJECT.rglob("*") if not re.search(r"/(\.[a-z]+[^/]*|build|dist|studies|.*egg-info)/", str(p))
        ]
    return sorted(p for p in found if p.is_file() and not name(p).startswith(FOREIGN))


def name(path: Path) -> str:
    return path.relative_to(PROJECT).as_posix()


def python_files() -> list[Path]:
    return [p for p in files() if p.suffix == ".py"]


def texts() -> Iterator[tuple[Path, str]]:
    for path in files():
        try:
            yield path, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def test_no_file_is_longer_than_the_end() -> None:
    long = {name(p): n for p in python_files() if (n := len(p.read_text().splitlines())) > MAX_LINES}
    assert long == {}, f"more than {MAX_LINES} lines: find the second room in it"


def blind(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ExceptHandler):
            continue
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        if any(k is None or (isinstance(k, ast.Name) and k.id in ("Exception", "BaseException")) for k in kinds):
            yield f"{name(path)}:{node.lineno}"


def test_a_blind_except_lives_in_one_place() -> None:
    assert [b for p in python_files() if name(p) != BLIND_EXCEPT_ALLOWED for b in blind(p)] == []


def shells(path: Path) -> Iterator[str]:
    """Calls that hand a string to a shell: `shell=True`, os.system, os.popen, subprocess.getoutput."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        has_flag = any(k.arg == "shell" and ast.unparse(k.value) != "False" for k in node.keywords)
        if has_flag or called in ("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"):
            yield f"{name(path)}:{node.lineno}"


def test_no_string_reaches_a_shell() -> None:  # case EDGE-16
    assert [s for p in python_files() if name(p).startswith(SOURCE) for s in shells(p)] == []


def test_no_module_beside_a_folder_of_its_name() -> None:
    assert [name(p) for p in python_files() if p.with_suffix("").is_dir()] == []


def words(identifier: str) -> set[str]:
    """`TraceHandler` and `trace_handler` -> {Trace, Handler}."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)
    return {part.capitalize() for part in parts}


def class_names(path: Path) -> list[str]:
    return [n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ClassDef)]


def test_names_say_what_a_thing_is() -> None:
    source = [p for p in python_files() if name(p).startswith(SOURCE)]
    modules = [name(p) for p in source if words(p.stem) & FORBIDDEN_WORDS]
    folders = [name(p) for p in source if words(p.parent.name) & FORBIDDEN_WORDS]
    classes = [f"{name(p)}: {c}" for p in source for c in class_names(p) if words(c) & FORBIDDEN_WORDS]
    assert modules + folders + classes == []


def test_nothing_is_left_open() -> None:
    left = [f"{name(p)}: {m[0]}" for p, text in texts() if p.suffix != ".csv" for m in OPEN_ENDS.finditer(text)]
    assert left == []


def test_no_path_of_a_workplace() -> None:
    here = name(Path(__file__))
    leaks = [f"{name(p)}: {m[0]}" for p, text in texts() if name(p) != here for m in WORKPLACE.finditer(text)]
    assert leaks == []


def test_tests_have_unique_names_and_no_init() -> None:
    tests = [p for p in python_files() if name(p).startswith("tests/")]
    stems = [p.stem for p in tests if p.stem.startswith("test_")]
    assert sorted(stems) == sorted(set(stems))
    assert [name(p) for p in tests if p.name == "__init__.py"] == []
