"""Words of others, fit to print on a terminal."""

from __future__ import annotations

MOST = 300


def printable(text: str) -> str:
    """One line without control characters: a model's name, a version or an error may hold escapes that move the cursor,
    forge a line or turn its direction."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def plain(text: str) -> str:
    """The same, cut after MOST characters."""
    shown = printable(text)
    return shown if len(shown) <= MOST else f"{shown[:MOST]}…"
