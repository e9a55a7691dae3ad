"""`/metrics` pages for tests: a real one of vLLM 0.32 (trimmed), with other values, engines and spellings."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parent / "metrics_0_32.txt").read_text()
"""An idle server's: every value of vLLM's is 0."""


def page(values: dict[str, float], engine: str = "0") -> str:
    """The real page with these values of one engine; the label `finished_reason` stands behind a `|`."""
    text = PAGE.replace('engine="0"', f'engine="{engine}"')
    for key, value in values.items():
        name, _, reason = key.partition("|")
        labels = rf'[^}}]*finished_reason="{reason}"[^}}]*' if reason else "[^}]*"
        text, n = re.subn(rf"^({re.escape(name)}\{{{labels}\}}) \S+$", rf"\g<1> {value}", text, flags=re.M)
        assert n == 1, f"{n} lines of {key}"
    return text


def without(text: str, *names: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(names))
