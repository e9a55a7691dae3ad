"""The small real traces that ship with the package, in their publishers' own formats (data/SOURCE.txt)."""

from __future__ import annotations

import difflib
from importlib.resources import files
from pathlib import Path

from optimizer.errors import UserError

FILES = {
    "azure-conv": "azure_conv.csv",
    "azure-code": "azure_code.csv",
    "mooncake-conversation": "mooncake_conversation.jsonl.gz",
}
NAMES = tuple(FILES)


def packaged(name: str) -> Path:
    """Path of a packaged trace. Raises UserError for an unknown name, or where the file was not installed."""
    if name not in FILES:
        raise UserError(f"trace {name}: no such packaged trace; expected one of {', '.join(NAMES)}, or a file")
    path = Path(str(files("optimizer.workload").joinpath("data", FILES[name])))
    if not path.is_file():
        raise UserError(f"trace {name}: {path} was not installed with the package; reinstall it")
    return path


def find_trace(name_or_path: str) -> Path:
    """A packaged trace by its name, else the path as given."""
    if name_or_path in FILES:
        return packaged(name_or_path)
    near = difflib.get_close_matches(name_or_path, FILES, n=1)
    if near and not Path(name_or_path).exists():
        raise UserError(f"{name_or_path}: 0 usable requests: no such file; did you mean the packaged {near[0]}?")
    return Path(name_or_path)
