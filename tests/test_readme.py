"""Every command of the README, as written there. A comment above each block says what CI does with it:

ci: setup NAME   `.ci/run` executes it in a fresh clone        ci: run        executed here, in order, in a clone
ci: start        started here, probed on 127.0.0.1, stopped    ci: validate   needs a cluster, a GPU or vLLM: parsed
ci: verdict      as run, where exit status 1 is an answer too
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

from optimizer.cli import COMMANDS

PROJECT = Path(__file__).resolve().parents[1]
README = (PROJECT / "README.md").read_text()
MARKS = ("setup", "run", "verdict", "start", "validate")
BLOCK = re.compile(r"(?:<!-- ci: (?P<mark>[^\n]+?) -->\n)?```bash\n(?P<text>.*?)```", re.DOTALL)
STARTUP_S = 60
FAILED_LOG = "kv_too_small.log"


@dataclass(frozen=True)
class Block:
    mark: str
    text: str

    @property
    def commands(self) -> list[list[str]]:
        """argv of each command, redirections among it; `&&` and line continuations are resolved."""
        lines = self.text.replace("\\\n", " ").splitlines()
        parts = [part for line in lines for part in line.split("&&")]
        return [shlex.split(part, comments=True) for part in parts if part.strip()]


BLOCKS = [Block(m["mark"] or "", m["text"]) for m in BLOCK.finditer(README)]


def ours(block: Block) -> list[tuple[str, list[str]]]:
    """(command, arguments) of each `python -m optimizer.X` and `vllm-config-optimizer X`."""
    found = []
    for argv in block.commands:
        if argv[1:2] == ["-m"] and argv[2].startswith("optimizer."):
            found.append((argv[2].removeprefix("optimizer."), argv[3:]))
        elif Path(argv[0]).name == "vllm-config-optimizer":
            found.append((argv[1], argv[2:]))
    return found


def test_every_block_is_marked() -> None:
    assert BLOCKS and [b.text for b in BLOCKS if b.mark.split(" ")[0] not in MARKS] == []
    assert [b.mark for b in BLOCKS if b.mark.startswith("setup")] == ["setup run", "setup test"]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda b: b.text[:40])
def test_every_block_is_a_shell_script(block: Block) -> None:
    done = subprocess.run(["bash", "-n", "-c", block.text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def help_of(command: str) -> str:
    argv = [sys.executable, "-m", f"optimizer.{command}", "--help"]
    return subprocess.run(argv, cwd=PROJECT, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_exists(command: str) -> None:
    arguments = [a for block in BLOCKS for name, args in ours(block) for a in args if name == command]
    flags = {a.split("=")[0] for a in arguments if a.startswith("--")}
    known = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", help_of(command)))
    assert flags - known == set()
    assert any(name == command for block in BLOCKS for name, _ in ours(block)), f"the README never shows {command}"


def test_setup_installs_what_there_is() -> None:
    words = {w.strip("'") for b in BLOCKS if b.mark.startswith("setup") for argv in b.commands for w in argv}
    assert {".", ".[test]", "--profile", "multitenant", "pytest"} <= words


def clone(folder: Path) -> Path:
    """What a user has in the project folder, and a log; the README makes the other files it calls theirs."""
    for package in ("optimizer", "objectives", "search_spaces"):
        shutil.copytree(PROJECT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "tests/diagnosis/logs" / FAILED_LOG, folder / "server.log")
    return folder


def environment() -> dict[str, str]:
    """The interpreter under test is the active environment: `python` and its console scripts come first."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}


def run_block(block: Block, cwd: Path) -> None:
    command = ["bash", "-euo", "pipefail", "-c", block.text]
    done = subprocess.run(
        command, cwd=cwd, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    able = (0, 1) if block.mark == "verdict" else (0,)
    assert done.returncode in able, f"{block.text}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.stdout.strip() or ">" in block.text, f"printed nothing: {block.text}"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def start_block(block: Block, cwd: Path) -> None:
    """Start it on a free port, wait for its page, stop it."""
    port = free_port()
    (argv,) = block.commands
    process = subprocess.Popen(
        [*argv, "--port", str(port)], cwd=cwd, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        assert answers(process, port), f"{block.text}: no page within {STARTUP_S} s"
    finally:
        process.terminate()
        _, stderr = process.communicate(timeout=30)
        assert b"Traceback" not in stderr, stderr.decode()


def answers(process: subprocess.Popen[bytes], port: int) -> bool:
    end = time.monotonic() + STARTUP_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5) as page:
                return bool(page.status == 200)
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.3)
    return False


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_every_command_works_as_written(tmp_path: Path) -> None:
    cwd = clone(tmp_path)
    for block in BLOCKS:
        if block.mark in ("run", "verdict"):
            run_block(block, cwd)
        elif block.mark == "start":
            start_block(block, cwd)
    assert (cwd / "studies/mine/study.db").is_file() and (cwd / "vllm.yaml").stat().st_size > 0
