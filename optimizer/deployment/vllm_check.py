"""A round trip of exported files through an installed vLLM's own parser: do they give the very values measured?"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimizer.deployment import vllm_dry_parse
from optimizer.deployment.deployment import Deployment
from optimizer.deployment.server_start import find_start
from optimizer.deployment.vllm_flags import FLAGS
from optimizer.errors import Unavailable

TIMEOUT_S = 300.0
"""Importing vLLM on a cold disk takes a minute."""


@dataclass(frozen=True)
class Checked:
    """One file after vLLM's parser."""

    file: Path
    refused: str = ""
    """vLLM's own words, if it would not start with this file."""
    differences: tuple[str, ...] = ()
    """Arguments that came out other than they were measured."""

    @property
    def is_same(self) -> bool:
        return not self.refused and not self.differences


def check_with_vllm(python: str, files: Mapping[Path, Deployment]) -> tuple[Checked, ...]:
    """Parse every file as `vllm serve` would, in one process of `python`, and compare it with what it stands for.

    Nothing is started and no shell is involved. Raises Unavailable when `python` is no Python with a vLLM."""
    paths = list(files)
    parsed = parse_with_vllm(python, [_arguments(path) for path in paths])
    return tuple(_compare(path, files[path], result) for path, result in zip(paths, parsed, strict=True))


OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""With these vLLM looks for the model's files while it parses; only arguments are checked here, nothing is fetched."""


def parse_with_vllm(python: str, argument_lists: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """For each list of words after `vllm`: {"values": name -> value} or {"error": text}."""
    child = str(Path(vllm_dry_parse.__file__).resolve())
    try:
        done = subprocess.run(
            [python, child],
            input=json.dumps(list(map(list, argument_lists))),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env={k: v for k, v in os.environ.items() if k not in OFFLINE},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"--vllm-python {python}: cannot be run: {error}") from None
    _, found, result = done.stdout.partition(f"{vllm_dry_parse.MARK}\n")
    if done.returncode != 0 or not found:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"--vllm-python {python}: its vLLM cannot parse arguments: {last}")
    parsed: list[dict[str, Any]] = json.loads(result)
    return parsed


def _arguments(path: Path) -> list[str]:
    if path.suffix in (".yaml", ".yml"):
        return ["serve", "--config", str(path)]
    start = find_start(path.read_text("utf-8"), str(path))
    return ["serve", *(word.text for word in start.words)]


def _compare(path: Path, deployment: Deployment, result: Mapping[str, Any]) -> Checked:
    if "error" in result:
        return Checked(path, refused=str(result["error"]))
    values = result["values"]
    wanted = {name: value for name, value in deployment.flags().items() if name in FLAGS}
    if deployment.model is not None:
        wanted["model"] = deployment.model
    found = {name: values.get(FLAGS[name].key) for name in wanted}
    wanted = {n: str(v) if FLAGS[n].kind == "text" and v is not None else v for n, v in wanted.items()}
    wrong = [f"{n}: {wanted[n]!r} became {found[n]!r}" for n in wanted if not is_same(wanted[n], found[n])]
    return Checked(path, differences=tuple(wrong))


def is_same(wanted: object, found: object) -> bool:
    """Equal as arguments: `found` may be an enum given by name or value, or a structure with defaults filled in."""
    if isinstance(found, dict) and set(found) == {"enum"}:
        return any(str(wanted).lower() == str(name).lower() for name in found["enum"])
    if isinstance(found, dict) and isinstance(wanted, str):
        return wanted == f"{found.get('name')}={found.get('path')}"  # lora-modules
    if isinstance(wanted, dict):
        return isinstance(found, dict) and all(k in found and is_same(v, found[k]) for k, v in wanted.items())
    if isinstance(found, list):
        items = wanted if isinstance(wanted, list) else [wanted]
        return len(items) == len(found) and all(map(is_same, items, found))
    if isinstance(wanted, bool) or isinstance(found, bool) or isinstance(wanted, str):
        return type(wanted) is type(found) and wanted == found
    return wanted == found
