"""The command line that starts a server: `vllm serve MODEL --flag value ...`.

Read word by word as a shell would split it; nothing is ever run or expanded. Written one flag a line, every word
quoted, so that a model called `m; rm -rf x` stays one word.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from optimizer.deployment.deployment import CurrentConfig, Deployment, Given, assemble
from optimizer.deployment.flag_words import NEGATIVE, read_words
from optimizer.deployment.secrets import is_secret_name, mask
from optimizer.deployment.server_start import find_start
from optimizer.deployment.shell_words import Command, Word
from optimizer.deployment.vllm_flags import FLAGS
from optimizer.deployment.vllm_yaml import comment, yaml_flags
from optimizer.errors import UserError

_SAFE_FILLED = re.compile(r"(?:[\w./:@,%+-]|\$\w+|\$\{\w+(?::?[-=?+][\w./:@,-]*)?\})+")
"""Text with variables only, safe between double quotes; commands such as $(...) are never written again."""
COMMAND = re.compile(r"(?:^|[\s/;&|(])vllm\s+serve(?:\s|$)|vllm[./]entrypoints[./]|vllm-openai|^\s*--\w", re.MULTILINE)
"""What a text must hold somewhere outside comments to be read as a command."""


def read_command(text: str, source: str, folder: Path | None = None) -> CurrentConfig:
    """A `vllm serve` line, `python -m vllm.entrypoints.openai.api_server`, or bare flags, alone or in a script.

    `folder` is where a `--config FILE` beside it is looked for. Raises UserError when there is no such line, more
    than one, or a word vLLM would refuse."""
    start = find_start(text, source)
    notices = _note_launcher(start.launcher)
    words = _without_attached_file(start.words, source, notices)
    givens, positional = read_words(words, source)
    model = _model(positional, source, notices)
    environment, filled = _environment(start.environment, notices)
    current = assemble(
        _with_file(givens, folder or Path(), source, notices),
        source=source,
        model=model,
        environment=environment,
        notices=notices,
    )
    return replace(current, shell_filled={**filled, **current.shell_filled})


def _note_launcher(words: Command) -> list[str]:
    kept = [w.text for w in words if w.text not in ("exec", "nohup", "env", "$", "-m")]
    kept = [w for w in kept if not re.fullmatch(r"(?:.*/)?python[\d.]*", w)]
    return [f"words before the server are not read: {mask(' '.join(kept))}"] if kept else []


def _model(positional: Sequence[Word], source: str, notices: list[str]) -> str | None:
    if len(positional) > 1:
        word, model = mask(positional[1].text), positional[0].text
        raise UserError(f"{source} line {positional[1].line}: {word!r} belongs to no flag (the model is {model!r})")
    if positional and positional[0].is_filled_in:
        text = mask(positional[0].text)
        notices.append(
            f"{source} line {positional[0].line}: the model is filled in by a shell ({text}): not known here"
        )
        return None
    return positional[0].text if positional else None


def _environment(assignments: Sequence[Word], notices: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Variables with their values; and those that a shell fills in, by `env NAME`."""
    known: dict[str, str] = {}
    filled: dict[str, str] = {}
    for word in assignments:
        name, _, value = word.text.partition("=")
        if not word.is_filled_in or is_secret_name(name):
            known[name] = value
        else:
            filled[f"env {name}"] = value
            notices.append(f"line {word.line}: {name} is filled in by a shell ({mask(value)}): not known here")
    return known, filled


def _without_attached_file(words: Command, source: str, notices: list[str]) -> Command:
    """vLLM 0.32 expands `--config FILE` only as two words (utils/argparse_utils.py: `"--config" in args`)."""
    attached = [w for w in words if w.text.startswith("--config=")]
    for word in attached:
        notices.append(
            f"{source} line {word.line}: vLLM ignores {word.text}: your server runs without that file; "
            "give `--config FILE` as two words, or the file itself"
        )
    return tuple(w for w in words if w not in attached)


def _with_file(givens: list[Given], folder: Path, source: str, notices: list[str]) -> list[Given]:
    """`--config FILE` expanded before the words, which win over it, as vLLM does."""
    rest = [g for g in givens if g.name != "config"]
    for given in givens:
        if given.name == "config":
            if given.is_filled_in:
                raise UserError(
                    f"{given.where}: the config file is filled in by a shell ({given.value}); write its path"
                )
            path = folder / str(given.value)
            try:
                text = path.read_text(encoding="utf-8-sig")
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(
                    f"{given.where}: cannot read {path}: {getattr(error, 'strerror', None) or error}"
                ) from None
            rest = yaml_flags(text, str(path), notices) + rest
    return rest


def write_command(deployment: Deployment, header: Iterable[str] = ()) -> str:
    """A script of one command. `header` becomes comments."""
    environment = [f"{name}={shlex.quote(value)}" for name, value in deployment.environment.items()]
    flags = [line for name, value in deployment.flags().items() for line in _flag_words(name, value)]
    left_out = [f"left out, looks like a secret: {name}" for name in deployment.withheld]
    for name, text in deployment.shell_filled.items():
        if _SAFE_FILLED.fullmatch(text) is None:
            left_out.append(f"left out, a shell fills it in: {name} {mask(text)}")
        elif name.startswith("env "):
            environment.append(f'{name.removeprefix("env ")}="{text}"')
        else:
            flags.append(f'--{name} "{text}"')
    model = [] if deployment.model is None else [shlex.quote(deployment.model)]
    command = " ".join([*environment, "vllm serve", *model])
    return "\n".join([*comment(header), *comment(left_out), " \\\n  ".join([command, *flags])]) + "\n"


def command_arguments(deployment: Deployment) -> list[str]:
    """The words after `vllm`, as the process gets them; no shell is involved."""
    model = [] if deployment.model is None else [deployment.model]
    flags = (line for n, v in deployment.flags().items() for line in _flag_words(n, v))
    return ["serve", *model, *(word for line in flags for word in shlex.split(line))]


def _flag_words(name: str, value: object) -> list[str]:
    """A flag and its words as one quoted line; nothing for what is off and has no off-switch."""
    flag = FLAGS.get(name)
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"] if flag is None or flag.kind == "boolean" else []
    if isinstance(value, list) and (flag is None or flag.is_list):
        return [" ".join([f"--{name}", *(shlex.quote(_text(item)) for item in value)])]
    text = _text(value)
    joint = "=" if text.startswith("-") and NEGATIVE.fullmatch(text) is None else " "
    return [f"--{name}{joint}{shlex.quote(text)}"]


def _text(value: object) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value)
    return repr(value) if isinstance(value, float) else str(value)
