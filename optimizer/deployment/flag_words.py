"""Words after `vllm serve` -> flags with their values and what belongs to no flag, as argparse would take them.

argparse needs to know each flag: a switch takes no word, a list takes all up to the next flag. A flag vLLM 0.32 does
not know is given all of them, so that it can be written back as it was.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from optimizer.deployment.deployment import Given
from optimizer.deployment.shell_words import Word
from optimizer.deployment.vllm_flags import FLAGS, REMOVED, REMOVED_SWITCHES, SHORT, Flag, find_flag
from optimizer.errors import UserError

NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
"""A word that begins with a hyphen and still is a value."""


def read_words(words: Sequence[Word], source: str) -> tuple[list[Given], list[Word]]:
    givens: list[Given] = []
    positional: list[Word] = []
    i = 0
    while i < len(words):
        if not _is_flag(words[i]):
            positional.append(words[i])
            i += 1
            continue
        given, n_used = _read_flag(words[i], words[i + 1 :], source)
        givens.append(given)
        i += 1 + n_used
    return givens, positional


def _is_flag(word: Word) -> bool:
    return word.text.startswith("-") and len(word.text) > 1 and NEGATIVE.fullmatch(word.text) is None


def _read_flag(word: Word, following: Sequence[Word], source: str) -> tuple[Given, int]:
    where = f"{source} line {word.line}"
    is_short = not word.text.startswith("--")
    name, has_value, attached = word.text.lstrip("-").partition("=")
    if is_short and name[:1] in "qnrO" and name not in SHORT and name.partition(".")[0] not in SHORT:
        name, has_value, attached = name[0], "=", (name[1:] + has_value + attached)
    if has_value:
        _refuse_value_of_switch(name, is_short, attached, where)
        return Given(name, attached, where, word.is_filled_in, is_short), 0
    values = _values(name, is_short, following, where)
    raw: object = (
        True
        if not values
        else [w.text for w in values]
        if _takes_list(name, is_short, values, where)
        else values[0].text
    )
    is_filled_in = word.is_filled_in or any(w.is_filled_in for w in values)
    return Given(name, " ".join(w.text for w in values) if is_filled_in else raw, where, is_filled_in, is_short), len(
        values
    )


def _lookup(name: str, is_short: bool, where: str) -> Flag | None:
    if is_short:
        return FLAGS.get(SHORT.get(name, ""))
    name = name.replace("_", "-")
    if name in REMOVED:
        return Flag(name, "switch" if name in REMOVED_SWITCHES else "text")
    try:
        found = find_flag(name)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    return found[0] if found else None


def _refuse_value_of_switch(name: str, is_short: bool, attached: str, where: str) -> None:
    flag = None if "." in name else _lookup(name, is_short, where)
    if flag is not None and not flag.takes_value:
        raise UserError(f"{where}: --{name} takes no value, got {attached!r}; write --{flag.name} or --no-{flag.name}")


def _takes_list(name: str, is_short: bool, values: Sequence[Word], where: str) -> bool:
    flag = None if "." in name else _lookup(name, is_short, where)
    return flag.is_list if flag else len(values) > 1


def _values(name: str, is_short: bool, following: Sequence[Word], where: str) -> Sequence[Word]:
    """The words that belong to a flag: none, one, or, for lists and unknown flags, all up to the next flag."""
    is_dotted = "." in name
    flag = None if is_dotted else _lookup(name, is_short, where)
    if flag is not None and not flag.takes_value:
        return ()
    n_free = next((i for i, w in enumerate(following) if _is_flag(w)), len(following))
    if n_free == 0 and (flag is not None or is_dotted) and name != "hf-token":
        raise UserError(f"{where}: {'-' if is_short else '--'}{name} has no value")
    takes_all = flag.is_list if flag else not is_dotted
    return following[: n_free if takes_all else min(1, n_free)]
