"""The console script and `run_main`: one line per error, its exit code, nothing secret, no traceback unasked."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from optimizer import cli, errors
from optimizer.identity import package_hash


@pytest.fixture(autouse=True)
def _restore_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "argv", sys.argv)


def raising(error: BaseException) -> Callable[[list[str] | None], int]:
    def main(argv: list[str] | None) -> int:
        raise error

    return main


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (errors.UserError("--gpu: no card 'X1'"), 2, "error: --gpu: no card 'X1'"),
        (errors.UserError("--model: no 'm\n\x1b[2J'"), 2, "error: --model: no 'm\\n\\x1b[2J'"),
        (errors.Unavailable("no GPU found"), 3, "error: no GPU found"),
        (errors.EngineFailed("oom", "boot", "why", is_config_fault=True), 1, "error: oom (boot): why"),
        (KeyboardInterrupt(), 130, "error: interrupted"),
        (PermissionError(errno.EACCES, "Permission denied", "studies"), 1, "error: studies: Permission denied"),
    ],
)
def test_an_error_on_purpose_is_one_line_and_its_code(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run_main(raising(error), []) == code
    assert capsys.readouterr() == ("", f"{line}\n")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("filename", [None, "study.db"])
def test_a_full_disk_is_one_line_that_says_resume(
    number: int, filename: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    error = OSError(number, os.strerror(number), filename) if filename else OSError(number, os.strerror(number))
    assert cli.run_main(raising(error), []) == 1
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and "no space left" in text and "--resume" in text and (filename or "") in text


def test_a_bug_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError):
        cli.run_main(raising(ZeroDivisionError()), [])
    with pytest.raises(OSError, match="Connection refused"):
        cli.run_main(raising(OSError(errno.ECONNREFUSED, "Connection refused")), [])


def test_the_traceback_is_shown_when_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(cli.TRACEBACK, "1")
    assert cli.run_main(raising(errors.UserError("bad row 7")), []) == 2
    text = capsys.readouterr().err
    assert "Traceback" in text and text.rstrip().endswith("bad row 7")


def test_secrets_are_masked_in_errors_and_in_tracebacks_of_bugs(tmp_path: Path) -> None:  # case EDGE-16
    secret = "sk-" + "a1b2" * 8
    for kind in ("errors.UserError", "ValueError"):
        done = child("-c", program(f"raise {kind}('--api-key {secret}')"), cwd=tmp_path)
        assert done.returncode != 0 and "--api-key" in done.stderr
        assert secret not in done.stderr


def test_the_command_gets_its_arguments_and_its_code_is_returned() -> None:
    seen: list[list[str] | None] = []

    def main(argv: list[str] | None) -> int:
        seen.append(argv)
        return 7

    assert cli.run_main(main, ["--x"]) == 7
    assert seen == [["--x"]]


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    shell = '"$0" -c "$1" | head -n 1; echo "${PIPESTATUS[0]}"'
    printer = program("print('x\\n' * 200000); return 0")
    done = subprocess.run(
        ["bash", "-c", shell, sys.executable, printer], cwd=project(), capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("x\n141\n", "")


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in ([], ["--help"], ["-h"]):
        assert cli.main(argv) == 0
        text = capsys.readouterr().out
        assert all(f"  {name} " in text for name in cli.COMMANDS)


def test_version_names_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert package_hash()[:12] in capsys.readouterr().out


def test_an_unknown_command_lists_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["exprot"]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1 and "'exprot'" in text and "export" in text


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_answers_help(name: str) -> None:
    for start in (["optimizer.cli", name], [f"optimizer.{name}"]):
        done = child("-m", *start, "--help", cwd=project())
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("usage: ") and done.stderr == ""


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_starts_through_run_main(name: str) -> None:
    assert "run_main(main)" in (project() / f"optimizer/{name}.py").read_text().split("__main__")[-1]


def program(body: str) -> str:
    """A command of one line, started as every command is."""
    return f"import sys; from optimizer import cli, errors\ndef main(argv): {body}\nsys.exit(cli.run_main(main))"


def project() -> Path:
    return Path(__file__).resolve().parents[1]


def child(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(project())}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=60
    )
