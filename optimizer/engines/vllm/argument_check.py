"""Arguments against the installed vLLM's own parser, before a second of boot is spent.

The parser runs in a process of vLLM's interpreter and imports vLLM, which takes several seconds; so one process
answers for many configurations, and an answer holds for every configuration of the same shape: the same flags with
other numbers. (vLLM judges the numbers when it builds its configuration, seconds into a boot.) Accepted shapes are
kept on disk, for the other workers of this host.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from optimizer.deployment.vllm_check import parse_with_vllm
from optimizer.deployment.vllm_flags import FLAGS, REMOVED
from optimizer.engines.vllm.host_directory import subdirectory
from optimizer.engines.vllm.interpreter import VllmInstall
from optimizer.errors import EngineFailed

Words = Sequence[str]
"""What goes behind `vllm serve`, model included."""

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
_FLAG = re.compile(r"--(?:no-)?([a-z][\w-]*)")


def check_arguments(install: VllmInstall, word_lists: Sequence[Words]) -> None:
    """Raises EngineFailed, the configuration's fault, if the installed vLLM would refuse one of these lists."""
    for error in check_many(install, word_lists):
        if error is not None:
            raise error


def check_many(install: VllmInstall, word_lists: Sequence[Words]) -> list[EngineFailed | None]:
    """For each list of words: why the installed vLLM refuses it, or None. At most one process is started."""
    known = _known(install.fingerprint())
    unknown = {_key(words): list(words) for words in word_lists if not known.covers(words)}
    parsed = parse_with_vllm(install.python, [["serve", *words] for words in unknown.values()]) if unknown else []
    for words, result in zip(unknown.values(), parsed, strict=True):
        if "error" in result:
            known.refused[_key(words)] = str(result["error"])
        else:
            known.accept(words)
    texts = (known.refused.get(_key(words)) for words in word_lists)
    return [None if text is None else refusal(install, text) for text in texts]


def refusal(install: VllmInstall, text: str) -> EngineFailed:
    """vLLM's own words, with what to do about each flag that it does not know. A flag of another version is kind
    `version`, as in a log (`diagnosis.failure`)."""
    names = _FLAG.findall(text) if "unrecognized" in text else ()
    hints = [_hint(name.replace("_", "-"), install.version) for name in names]
    kind = "version" if any(hints) else "arguments"
    said = re.sub(r"^.*?\berror: ", "", text)
    cause = "; ".join([f"vLLM {install.version} refuses its arguments: {said}", *filter(None, hints)])
    return EngineFailed(kind, "config", cause, is_config_fault=True, evidence=[text])


def _hint(name: str, version: str) -> str:
    if name in REMOVED:
        return f"{name} was removed in vLLM V1: {REMOVED[name]}"
    if name in FLAGS:
        return f"{name} is not known to vLLM {version}: leave it out, or install a version that has it"
    return ""


def _key(words: Words) -> str:
    return json.dumps(list(words))


def _shape(words: Words) -> str:
    """The words with every number behind a flag as its kind: whole or not, negative or not."""
    return json.dumps([_NUMBER.sub(_kind, w) if _NUMBER.fullmatch(w) else w for w in words])


def _kind(found: re.Match[str]) -> str:
    text = found[0]
    sign = "-" if text.startswith("-") else ""
    return f"{sign}{'number' if set(text) & set('.e') else 'whole'}"


class _Known:
    """What this vLLM has said before: refusals in this process, accepted shapes in any process of this host."""

    def __init__(self, fingerprint: str) -> None:
        name = hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
        self._path: Path = subdirectory("accepted") / f"{name}.txt"
        self._shapes = set(self._path.read_text().splitlines()) if self._path.exists() else set()
        self.refused: dict[str, str] = {}

    def covers(self, words: Words) -> bool:
        return _shape(words) in self._shapes or _key(words) in self.refused

    def accept(self, words: Words) -> None:
        self._shapes.add(_shape(words))
        with self._path.open("a") as file:
            file.write(_shape(words) + "\n")


@functools.lru_cache(maxsize=8)
def _known(fingerprint: str) -> _Known:
    return _Known(fingerprint)
