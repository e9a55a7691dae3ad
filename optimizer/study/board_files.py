"""The list of files in a note that optuna-dashboard shows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from optimizer.study.board_artifacts import Link

TITLE = "## Files"


def files_part(files: Sequence[Link], names: Mapping[int, str] | None = None) -> list[str]:
    """The files that the dashboard serves, if there are any: a line a trial, those of picks (`names`) first."""
    groups: dict[tuple[int, int, str], list[Link]] = {}
    for file in sorted(files, key=lambda file: file.name):
        groups.setdefault(_place(file, names or {}), []).append(file)
    lines = [_files_line(groups[place], names or {}) for place in sorted(groups)]
    return [TITLE, "\n".join(lines)] if lines else []


def with_file(note: str, file: Link) -> str:
    """A written note with this file in its list, first if it was not there."""
    line = f"* {file.markdown}\n"
    if line in note:
        return note
    if f"{TITLE}\n\n" in note:
        return note.replace(f"{TITLE}\n\n", f"{TITLE}\n\n{line}", 1)
    return f"{note.rstrip()}\n\n{TITLE}\n\n{line}"


def _place(file: Link, names: Mapping[int, str]) -> tuple[int, int, str]:
    """Files of the whole study, the report first; then the picks' in their order; then other trials'."""
    match = re.match(r"trial-(\d+)", file.name)
    if match is None:
        return (0, -1, "" if file.name.endswith(".html") else file.name)
    number = int(match[1])
    return (1, list(names).index(number), "") if number in names else (2, number, "")


def _files_line(files: Sequence[Link], names: Mapping[int, str]) -> str:
    name = next((names[n] for n in names if files[0].name.startswith(f"trial-{n:04d}")), "")
    return f"* {', '.join(file.markdown for file in files)}{f' ({name})' if name else ''}"
