"""How failed requests are named. The texts are stable: they are counted, compared and shown."""

from __future__ import annotations

import json
import re

TIME_OUT = "timeout"
NO_FINISH_REASON = "no finish reason"
LONGEST_MESSAGE = 200
_IDS = re.compile(r"\[?\d+(?:\s*,\s*\d+){7,}(?:,?\s*\.\.\.)?\]?")
"""Eight numbers in a row are a prompt echoed back, not a message."""
_INPUT = re.compile(r"""(['"]?input['"]?\s*[:=]\s*)(?!\s*…).*""")
"""Pydantic's refusals quote what they refuse."""


def cancelled(reason: str) -> str:
    return f"cancelled: {reason}"


def refused(status: int, body: bytes, secret: str = "") -> str:
    return f"HTTP {status}: {first_line(message_of(body), secret) or 'no message'}"


def connection_lost(error: BaseException, secret: str = "") -> str:
    return f"connection lost: {first_line(str(error), secret) or type(error).__name__}"


def error_after_200(event: bytes, secret: str = "") -> str:
    return f"error after 200: {first_line(message_of(event), secret) or 'no message'}"


def short_output(n_tokens: int, n_asked: int) -> str:
    return f"short output: {n_tokens} of {n_asked} tokens"


def long_output(n_tokens: int, n_asked: int) -> str:
    return f"long output: {n_tokens} of {n_asked} tokens"


def message_of(body: bytes) -> str:
    """The message in an OpenAI-style error, or the body as text."""
    try:
        data = json.loads(body)
    except ValueError:
        return body[:4096].decode(errors="replace")
    error = (data.get("error") or data) if isinstance(data, dict) else data
    message = error.get("message", error.get("detail", error)) if isinstance(error, dict) else error
    return message if isinstance(message, str) else json.dumps(message)


def first_line(text: str, secret: str = "") -> str:
    """One line of at most LONGEST_MESSAGE characters, without the API key and without an echoed prompt."""
    line = next((part.strip() for part in text.splitlines() if part.strip()), "")
    line = line.replace(secret, "***") if secret else line
    line = _INPUT.sub(r"\1…", _IDS.sub("[…]", line))
    return line if len(line) <= LONGEST_MESSAGE else line[: LONGEST_MESSAGE - 1] + "…"
