"""Runs inside vLLM's own Python, as a program: parses arguments exactly as `vllm serve` does and starts nothing.

Standard input: a JSON list of argument lists, each beginning with "serve". Standard output: a line `RESULT`, then a
JSON list of {"error": text} or {"values": {...}}. Imports vllm and nothing of ours.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import io
import json
import sys
from typing import Any

MARK = "RESULT"


def main() -> None:
    """vLLM expands `--config` in its top-level parser (entrypoints/cli/main.py), so that one is built here too."""
    argument_lists = json.load(sys.stdin)
    parser_class = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    serve = importlib.import_module("vllm.entrypoints.cli.serve")
    parser = parser_class(prog="vllm")
    subparsers = parser.add_subparsers(dest="subparser")
    (command,) = serve.cmd_init()
    command.subparser_init(subparsers)
    print(MARK)
    print(json.dumps([_parse(parser, command, arguments) for arguments in argument_lists]))


def _parse(parser: Any, command: Any, arguments: list[str]) -> dict[str, Any]:
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            args = parser.parse_args(arguments)
            if getattr(args, "model_tag", None) is not None:
                args.model = args.model_tag
            command.validate(args)
            engine = importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs.from_cli_args(args)
    except SystemExit:
        return {"error": errors.getvalue().strip().splitlines()[-1]}
    except (ValueError, TypeError, AssertionError, OSError) as error:
        return {"error": " ".join(str(error).split())}
    fields = {f.name: getattr(engine, f.name) for f in dataclasses.fields(engine)}
    return {"values": {name: _plain(value) for name, value in {**vars(args), **fields}.items()}}


def _plain(value: Any) -> Any:
    """Enums become both of their names, since arguments may give either."""
    if isinstance(value, enum.Enum):
        return {"enum": [value.name, value.value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name, None)) for f in dataclasses.fields(value)}
    return str(value)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its modules must not shadow the standard library's
    main()
