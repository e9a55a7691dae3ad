"""The words of a shell script, split as a POSIX shell would and never run or expanded.

`shlex` cannot be used to read: it cuts at `#` inside words, keeps no line numbers and does not tell `$PORT` from
`'$PORT'`. What a shell would fill in ($NAME, ${NAME:-x}, $(...), backticks) is kept as written and marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from optimizer.errors import UserError


@dataclass(frozen=True, slots=True)
class Word:
    text: str
    """Without quotes and escapes."""
    line: int
    is_filled_in: bool = False
    """True if a shell would replace a part of it; `text` then holds that part as written."""


Command = tuple[Word, ...]

_BLANK = re.compile(r"(?:[ \t]|\\\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_END = re.compile(r"\n|;;?|&&?(?!>)|\|[|&]?|[()]")
_REDIRECT = re.compile(r"&>>?|\d*[<>](?:[<>|&]|<<)?(?:-)?")
_PLAIN = re.compile(r"[^\s\\'\"$`;&|<>()]+")
_CUT = re.compile(r"\\[ \t]+(?=\n)")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|[0-9@*#?$!-])")


def split_commands(text: str, source: str) -> Iterator[Command]:
    """Each simple command of a script: its words without comments and redirections. Raises UserError naming the
    line of a quote or bracket that is never closed."""
    words: list[Word] = []
    position, is_target = 0, False
    while position < len(text):
        rest = (text, position)
        if found := _BLANK.match(*rest) or _COMMENT.match(*rest):
            position = found.end()
        elif found := _REDIRECT.match(*rest):
            position, is_target = found.end(), True
        elif found := _END.match(*rest):
            if words:
                yield tuple(words)
            words, position, is_target = [], found.end(), False
        else:
            word, position = _read_word(text, position, source)
            if not is_target:
                words.append(word)
            is_target = False
    if words:
        yield tuple(words)


def _read_word(text: str, start: int, source: str) -> tuple[Word, int]:
    parts: list[str] = []
    is_filled_in, position = False, start
    while position < len(text) and not text[position].isspace() and text[position] not in ";&|<>()":
        part, position, is_filled = _read_part(text, position, source)
        parts.append(part)
        is_filled_in |= is_filled
    return Word("".join(parts), line_of(text, start), is_filled_in), position


def _read_part(text: str, start: int, source: str) -> tuple[str, int, bool]:
    """One stretch of a word: plain, quoted, escaped or filled in by the shell."""
    character = text[start]
    if character == "\\":
        if _CUT.match(text, start):
            raise UserError(f"{source} line {line_of(text, start)}: delete the blanks after the last backslash")
        return (
            ("", start + 2, False)
            if text[start + 1 : start + 2] == "\n"
            else (text[start + 1 : start + 2], start + 2, False)
        )
    if character == "'":
        end = _closing(text, start, "'", source)
        return text[start + 1 : end], end + 1, False
    if character == '"':
        return _read_double_quoted(text, start, source)
    if character in "$`":
        return _read_filled_in(text, start, source)
    found = _PLAIN.match(text, start)
    end = found.end() if found else start + 1
    return text[start:end], end, False


def _read_double_quoted(text: str, start: int, source: str) -> tuple[str, int, bool]:
    parts: list[str] = []
    is_filled_in, position = False, start + 1
    while position < len(text) and text[position] != '"':
        if text[position] == "\\" and text[position + 1 : position + 2] in ('"', "\\", "$", "`", "\n"):
            parts.append(text[position + 1].replace("\n", ""))
            position += 2
        elif text[position] in "$`":
            part, position, is_filled = _read_filled_in(text, position, source)
            parts.append(part)
            is_filled_in |= is_filled
        else:
            parts.append(text[position])
            position += 1
    if position >= len(text):
        raise _unclosed(text, start, '"', source)
    return "".join(parts), position + 1, is_filled_in


def _read_filled_in(text: str, start: int, source: str) -> tuple[str, int, bool]:
    if text[start] == "`":
        end = _closing(text, start, "`", source) + 1
    elif text.startswith(("$(", "${"), start):
        end = _closing_bracket(text, start + 1, source) + 1
    elif found := _VARIABLE.match(text, start):
        end = found.end()
    else:
        return "$", start + 1, False
    return text[start:end], end, True


def _closing(text: str, start: int, quote: str, source: str) -> int:
    end = text.find(quote, start + 1)
    if end < 0:
        raise _unclosed(text, start, quote, source)
    return end


def _closing_bracket(text: str, start: int, source: str) -> int:
    opening = text[start]
    closing = {"(": ")", "{": "}"}[opening]
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == opening) - (text[position] == closing)
        if depth == 0:
            return position
    raise _unclosed(text, start, opening, source)


def _unclosed(text: str, start: int, mark: str, source: str) -> UserError:
    return UserError(f"{source} line {line_of(text, start)}: {mark} is opened and never closed")


def line_of(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1
