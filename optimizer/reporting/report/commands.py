"""What to type: to run the study again, to go on with it, to deploy a pick, to check it first."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from optimizer.errors import UserError
from optimizer.reporting.front_export import export_files
from optimizer.reporting.member import FrontMember
from optimizer.reporting.report.source import Source
from optimizer.study.storage import dashboard_command


@dataclass(frozen=True)
class Command:
    title: str
    text: str
    note: str = ""


@dataclass(frozen=True)
class Deploy:
    """How one pick is started."""

    trial: int
    title: str
    commands: tuple[tuple[str, str], ...]
    """(server, its command)"""
    notes: tuple[str, ...] = ()
    missing: str = ""


def study_commands(source: Source) -> list[Command]:
    study = shlex.quote(str(source.folder.path.resolve()))
    again = ["python", "-m", "optimizer.run", *source.manifest.command]
    found = []
    if source.manifest.command:
        where = f"cd {shlex.quote(source.manifest.directory)}\n" if source.manifest.directory else ""
        found.append(Command("Run the study again", where + shlex.join(_renamed(again)), _seed_note(source)))
        if source.status != "finished":
            found.append(Command("Go on with it", where + shlex.join([*_named(again, source), "--resume"])))
    if source.picked and is_exported(source):
        name = next((p for p in ("knee", *source.picked[0].picks) if p in source.picked[0].picks), "knee")
        export = f"python -m optimizer.export {study} --pick {name} --format vllm-yaml > vllm.yaml"
        export += "\nvllm serve --config vllm.yaml"
        found.append(Command("Take a pick away as vLLM's YAML", export, "--pick names another, --all writes all."))
        check = f"python -m optimizer.validate {study} --pick {name} --repeats 3 --trace held-out"
        found.append(Command("Measure it again before you deploy", check))
    look = f"python -m optimizer.diagnose --study {study} --trial {_example(source)}"
    url = source.manifest.storage or f"sqlite:///{source.folder.database.resolve()}"
    watch = dashboard_command(url, str(source.folder.artifacts_path.resolve()))
    return [*found, Command("Look into one trial", look), Command("Look at every trial", watch)]


def is_exported(source: Source) -> bool:
    """Before, other commands find no front to read, and the user's untuned flags are not known."""
    return (source.folder.front_path / "front.json").is_file()


def _seed_note(source: Source) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in source.manifest.versions.items())
    return f"Seed {source.manifest.seed}; versions then: {versions or 'not recorded'}."


def _renamed(words: list[str]) -> list[str]:
    """Under another name: the study's own folder is there already."""
    if "--study" in words[:-1]:
        at = words.index("--study") + 1
        return [*words[:at], f"{words[at]}-again", *words[at + 1 :]]
    return [f"{w}-again" if w.startswith("--study=") else w for w in words]


def _named(words: list[str], source: Source) -> list[str]:
    is_named = "--study" in words or any(w.startswith("--study=") for w in words)
    return words if is_named else [*words, "--study", source.folder.name]


def _example(source: Source) -> int:
    return source.shown[0].trial if source.shown else 0


def deployments_of(source: Source, titles: Mapping[int, str]) -> list[Deploy]:
    """Every pick as `vllm serve` commands, the user's untuned flags among them."""
    return [_deploy(source, member, titles.get(member.trial, "")) for member in source.picked]


def _deploy(source: Source, member: FrontMember, title: str) -> Deploy:
    try:
        files = export_files(source.front, (member,), "command")
    except UserError as error:
        return Deploy(member.trial, title, (), (), str(error))
    scripts = {name: text for name, text in files.items() if name.endswith(".sh")}
    commands = tuple((name.removesuffix(".sh"), _bare(text)) for name, text in scripts.items())
    return Deploy(member.trial, title, commands, tuple(_notes(source, scripts)))


def _bare(script: str) -> str:
    """The command without what the export says of itself."""
    return "\n".join(line for line in script.split("\n") if not line.startswith("#")).strip()


def _notes(source: Source, scripts: Mapping[str, str]) -> Iterator[str]:
    """What to know before it is started; what the export warns of."""
    if len(scripts) > 1:
        if source.front.meta.sharing == "mps":
            yield "Start NVIDIA MPS first (nvidia-cuda-mps-control -d): the figures hold with it only."
        yield (
            "Start the servers in this order, one after another: each start measures the memory that is free, so wait"
            " until the one before answers 200 on /health."
        )
    if not is_exported(source):
        yield "The study has not exported yet: flags of your own that are not tuned are missing here; add them."
    warned = ("is not set here", "in your configuration but not", "left out, looks like a secret")
    lines = dict.fromkeys(line.lstrip("# ") for text in scripts.values() for line in text.split("\n"))
    yield from (line for line in lines if any(w in line for w in warned))
