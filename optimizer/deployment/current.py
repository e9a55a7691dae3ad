"""`--current FILE`: what a user runs today, in whichever deployment format it is written."""

from __future__ import annotations

import re
from pathlib import Path

from optimizer.deployment.deployment import CurrentConfig
from optimizer.deployment.vllm_command import COMMAND, read_command
from optimizer.deployment.vllm_yaml import read_yaml
from optimizer.errors import UserError

MAX_BYTES = 1_000_000
"""A deployment is a page of text; larger files are something else."""

_KEY = re.compile(r"""["']?[\w.-]+["']?\s*:(?:\s|$)|---(?:\s|$)|[{\[]""")


def read_current(path_or_text: str | Path) -> CurrentConfig:
    """Read a vLLM YAML file or a `vllm serve` command, from a file or pasted. Secrets are left out and named.

    A text with line ends, `key: value` or a `vllm serve` in it is content; anything else is a path."""
    if isinstance(path_or_text, Path):
        return _read(_content(path_or_text), str(path_or_text), path_or_text.parent)
    is_content = "\n" in path_or_text or re.search(r":\s|\s--?\w", path_or_text) or COMMAND.search(path_or_text)
    if not path_or_text.strip():
        raise UserError("the configuration is empty; give a vLLM YAML file or a `vllm serve` line")
    if is_content and not _is_file(path_or_text):
        return _read(path_or_text, "the pasted configuration", Path())
    return read_current(Path(path_or_text))


def _is_file(text: str) -> bool:
    try:
        return len(text) < 4096 and Path(text).is_file()
    except (OSError, ValueError):
        return False


def _content(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UserError(f"{path}: is larger than {MAX_BYTES:,} bytes; give a vLLM YAML file or a `vllm serve` line")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text; give a vLLM YAML file or a `vllm serve` line") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _read(text: str, source: str, folder: Path) -> CurrentConfig:
    code = "\n".join("" if line.lstrip().startswith("#") else line for line in text.splitlines())
    first = next((line.strip() for line in code.splitlines() if line.strip()), "")
    if not _KEY.match(first) and COMMAND.search(code):
        return read_command(text, source, folder)
    return read_yaml(text, source)
