"""The console script `vllm-config-optimizer COMMAND`, and `run_main`, through which every command starts.

Each command is a module `optimizer.X` with `main(argv: list[str] | None = None) -> int`; it is imported only when it is
called, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn

from optimizer.errors import OptimizerError, UserError
from optimizer.identity import DISTRIBUTION, check_identity

Main = Callable[[list[str] | None], int]

COMMANDS = {
    "run": "search the configurations of one model, GPU and workload",
    "export": "take the configurations of a study's Pareto front away",
    "report": "write one HTML page about a study, opened without a network",
    "validate": "measure a front configuration once more, on fresh servers",
    "simulate": "simulate one configuration on one card, without a study",
    "calibrate": "learn from a real study how long this model takes on this card",
    "characterize": "print what tuning needs to know about a trace",
    "diagnose": "say what is wrong with a server: by its log, a recorded trial, or watching it",
}

TRACEBACK = "VLLM_CONFIG_OPTIMIZER_TRACEBACK"
"""Set to 1 to see the traceback of an error that is otherwise one line."""
INTERRUPTED, BROKEN_PIPE = 130, 141
"""128 + the signal's number (SIGINT, SIGPIPE), as shells report it."""


class Parser(argparse.ArgumentParser):
    """A wrong flag is one line, like every other bad input; flags are never guessed from their beginning."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message.removeprefix('argument ')}; --help explains every flag")


def main(argv: list[str] | None = None) -> int:
    return run_main(_dispatch, argv)


def run_main(main: Main, argv: list[str] | None = None) -> int:
    """Run a command and return its exit code. An error raised on purpose, a full disk or an unreadable file is one
    masked line on stderr; anything else is our bug and ends in a masked traceback."""
    sys.excepthook = _report_bug
    try:
        check_identity()
        code = main(sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:  # closed before we began
            sys.stdout.flush()
    except OptimizerError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        return _close_stdout()
    except OSError as error:
        return _fail(_os_error_text(error), OptimizerError.exit_code)
    return code


def _dispatch(argv: list[str] | None) -> int:
    from importlib import import_module

    name, *rest = argv or ["--help"]
    if name in ("-h", "--help"):
        print(_help())
        return 0
    if name in ("-V", "--version"):
        return _print_version()
    if name not in COMMANDS:
        raise UserError(f"no command {name!r}; the commands are {', '.join(COMMANDS)}")
    sys.argv = [f"{DISTRIBUTION} {name}", *rest]  # argparse takes its `prog` from here
    command: Main = import_module(f"optimizer.{name}").main
    return command(rest)


def _help() -> str:
    lines = [f"usage: {DISTRIBUTION} COMMAND [arguments]", "", "commands:"]
    lines += [f"  {name:<14}{summary}" for name, summary in COMMANDS.items()]
    lines += ["", f"`{DISTRIBUTION} COMMAND --help` explains a command; --version prints version and code hash."]
    return "\n".join(lines)


def _print_version() -> int:
    from optimizer.identity import identify

    print(identify().text)
    return 0


def _fail(text: str, code: int) -> int:
    if os.environ.get(TRACEBACK) == "1":
        import traceback

        print(_masked(traceback.format_exc()), end="", file=sys.stderr)
    print(f"error: {_one_line(_masked(text))}", file=sys.stderr)
    return code


def _one_line(text: str) -> str:
    """Line ends and control characters escaped: a name out of somebody's file cannot write to the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _os_error_text(error: OSError) -> str:
    """One line for what the machine refuses. Re-raises what names no file: that is a bug, not a full disk."""
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left on the disk{where}; what is recorded is kept: free some space, then go on with --resume"
    if error.filename is None:
        raise error
    return f"{error.filename}: {error.strerror}"


def _close_stdout() -> int:
    """The reader of our output has gone (`| head`): end without a word, also when Python flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    import traceback

    text = "".join(traceback.format_exception(kind, error, trace))
    print(f"{_masked(text)}this is a bug in {DISTRIBUTION}; please report it with the lines above", file=sys.stderr)


def _masked(text: str) -> str:
    from optimizer.deployment.secrets import mask

    return mask(text)


if __name__ == "__main__":
    raise SystemExit(main())
