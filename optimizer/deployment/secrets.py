"""Passwords, keys and tokens in deployments: found by name and by shape, and masked wherever text is printed.

`mask` is for what people read. An export never holds a masked value, because a server would take the mask for the
secret: whatever `has_secret` finds is left out of exports altogether, and named there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

MASK = "***"
# What stands before a secret's name in a longer one, and before "://", is bounded: a word of megabytes (an image in a
# log) must take time by its length, not by its square.

_NAME = (
    r"(?:[\w.-]{0,100}?[_.-])?(?:api[_-]?keys?|access[_-]?key(?:[_-]?id)?|secret[_-]?(?:access[_-]?)?key|private[_-]?key"
    r"|(?:hf|auth|access|refresh|bearer|hub|session|github|gh|api)?[_-]?token|secrets?|passw(?:or)?d|pgpassword|sslpassword"
    r"|passphrase|credentials?)"
)
_IS_NAME = re.compile(_NAME, re.IGNORECASE)
_VALUE = r"""(?:"(?:\\.|[^"\\])*"|'[^']*'|[^\s,;&'"}\]]+)"""
_NAMED = re.compile(rf"""(?<![\w])(--?|["']?)({_NAME})(["']?\s*[=:]\s*)({_VALUE})""", re.IGNORECASE)
_FLAG = re.compile(rf"(?<!\S)(--?{_NAME})((?:(?:\s|\\\r?\n)+(?![-\\]){_VALUE})+)", re.IGNORECASE)
_LIST = re.compile(rf"""(["']?{_NAME}["']?\s*[=:]\s*)(\[[^\]]*\]|(?:\r?\n\s*-\s[^\n]*)+)""", re.IGNORECASE)
_URL = re.compile(r"(\b[a-z][\w+.-]{0,30}://[^\s/:@'\"]*):([^\s/'\"]+)@", re.IGNORECASE)
_URL_QUERY = re.compile(rf"([?&]{_NAME}=)([^\s&'\"]+)", re.IGNORECASE)
_BEARER = re.compile(r"(\b(?:Bearer|Basic)\s+)[\w.~+/=-]{6,}", re.IGNORECASE)
_SHAPE = re.compile(
    r"(?<![\w/.-])(?:sk-[\w-]{6,}|hf_[A-Za-z0-9]{6,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{12,}"
    r"|xox[abprs]-[\w-]{8,}|AKIA[A-Z0-9]{12,}|nvapi-[\w-]{8,}|eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*)"
)


def mask(text: str) -> str:
    """`text` with every secret replaced by `***`. Names stay, so that one sees what was masked."""
    text = _LIST.sub(lambda m: m[1] + MASK, text)
    text = _FLAG.sub(lambda m: f"{m[1]} {MASK}", text)
    text = _NAMED.sub(lambda m: m[1] + m[2] + m[3] + MASK, text)
    text = _URL_QUERY.sub(lambda m: m[1] + MASK, text)
    text = _URL.sub(lambda m: f"{m[1]}:{MASK}@", text)
    text = _BEARER.sub(lambda m: m[1] + MASK, text)
    return _SHAPE.sub(MASK, text)


def is_secret_name(name: str) -> bool:
    """Whether a flag, key or environment variable is named like a secret (`api-key`, `HF_TOKEN`, `db_password`)."""
    return _IS_NAME.fullmatch(name.lstrip("-")) is not None


def has_secret(value: object) -> bool:
    """Whether a value, at any depth, holds something that looks like a secret."""
    if isinstance(value, str):
        return mask(value) != value
    if isinstance(value, Mapping):
        return any(is_secret_name(str(k)) or has_secret(v) for k, v in value.items())
    if isinstance(value, Sequence):
        return any(has_secret(v) for v in value)
    return False
