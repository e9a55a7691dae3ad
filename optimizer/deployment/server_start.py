"""Where a script starts a vLLM server: the words after `vllm serve`, and the variables in force there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from optimizer.deployment.shell_words import Command, Word, split_commands
from optimizer.errors import UserError

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_MODULE = re.compile(
    r"vllm\.entrypoints\.(?:openai|launchers)\.api_server(?:\.entry)?|(?:.*/)?vllm/entrypoints/.*api_server\.py"
)
_CONTAINER = re.compile(r"(?:.*/)?vllm-openai(?:[:@].*)?")


@dataclass
class ServerStart:
    """One server start found in a script."""

    line: int
    words: Command
    """After `serve`, or after the module's name."""
    environment: list[Word]
    """Assignments in force."""
    launcher: Command = ()


def find_start(text: str, source: str) -> ServerStart:
    """The one server start in a script. Raises UserError when there is none, or more than one."""
    exported: list[Word] = []
    starts: list[ServerStart] = []
    bare: list[Command] = []
    for command in split_commands(text.replace("\r\n", "\n"), source):
        words, own = _take_assignments(command)
        if not words:
            exported += own
        elif words[0].text == "export":
            exported += [w for w in words if ASSIGNMENT.fullmatch(w.text)]
        elif (start := _server_start(words, [*exported, *own])) is not None:
            starts.append(start)
        elif words[0].text.startswith("--"):
            bare.append(command)
    if len(starts) == 1 and bare:
        raise UserError(
            f"{source} line {bare[0][0].line}: {bare[0][0].text} is cut off from the command above it: "
            "a comment or a missing backslash ends that one"
        )
    if len(starts) == 1:
        return starts[0]
    if starts:
        lines = ", ".join(str(start.line) for start in starts)
        raise UserError(f"{source}: starts {len(starts)} servers (lines {lines}); give a file with one of them")
    if bare:
        return ServerStart(bare[0][0].line, tuple(word for command in bare for word in command), exported)
    if any(_CONTAINER.fullmatch(w.text) for c in split_commands(text, source) for w in c):
        raise UserError(
            f"{source}: is a container start, which is not read; write what follows the image as `vllm serve ...`"
        )
    raise UserError(f"{source}: holds no `vllm serve MODEL ...` line; paste the command that starts the server")


def _take_assignments(command: Command) -> tuple[Command, list[Word]]:
    n = next((i for i, word in enumerate(command) if not ASSIGNMENT.fullmatch(word.text)), len(command))
    return command[n:], list(command[:n])


def _server_start(words: Command, assignments: list[Word]) -> ServerStart | None:
    for i, word in enumerate(words):
        is_program = word.text.rsplit("/", 1)[-1] == "vllm" or word.text == "vllm.entrypoints.cli.main"
        is_serve = is_program and i + 1 < len(words) and words[i + 1].text == "serve"
        if is_serve or _MODULE.fullmatch(word.text):
            own = [w for w in words[:i] if ASSIGNMENT.fullmatch(w.text)]
            launcher = tuple(w for w in words[:i] if w not in own)
            return ServerStart(word.line, words[i + 1 + is_serve :], assignments + own, launcher)
    return None
