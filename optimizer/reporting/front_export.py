"""Configurations to take away: vLLM YAML, command line, JSON and CSV, each carrying what was measured and how.

Everything is text by relative path; `write_files` puts it into a folder. A member of several instances becomes one
file an instance and a README.txt that says in which order they start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from objectives.wording import limit_text
from optimizer.deployment.deployment import Deployment
from optimizer.deployment.secrets import mask
from optimizer.deployment.vllm_command import write_command
from optimizer.deployment.vllm_yaml import write_yaml
from optimizer.errors import UserError
from optimizer.reporting.front_data import csv_text, json_text
from optimizer.reporting.front_table import UNPAID, change_text, figure, reference_name, unseen_text, verdict_text
from optimizer.reporting.member import FREE_MEMORY, STEADY_PREEMPTIONS, STRESS_PREEMPTIONS, Front, FrontMember
from search_spaces.config import Config
from search_spaces.vllm import START_UTILIZATION

Format = Literal["vllm-yaml", "command", "json", "csv"]
FORMATS: tuple[Format, ...] = ("vllm-yaml", "command", "json", "csv")
SAVED = "FILE, the name that you save this under"
FIRST_PORT = 8000
"""vLLM's default; further instances of one card get the next ports."""

_SUFFIX = {"vllm-yaml": ".yaml", "command": ".sh", "json": ".json", "csv": ".csv"}


def export_files(front: Front, members: Sequence[FrontMember], format: Format) -> dict[str, str]:
    """Relative path -> text. One member of several instances lies flat, several members in a folder each."""
    if format == "json":
        return {"front.json": json_text(front, members)}
    if format == "csv":
        return {"front.csv": csv_text(front, members)}
    files = {}
    for member in members:
        texts = _member_files(front, member, format)
        folder = f"trial-{member.trial:04d}/" if len(members) > 1 and len(texts) > 1 else ""
        files.update({folder + name: text for name, text in texts.items()})
    return files


def deployments(front: Front, member: FrontMember) -> dict[str, Deployment]:
    """Instance -> what its server is started with: the measured arguments and the user's other flags."""
    kept = front.meta.kept or Deployment(model=None, config=next(iter(member.configs.values())))
    model = kept.model or front.meta.model
    if mask(model) != model:
        raise UserError(f"the model {mask(model)!r} holds a password and cannot be exported; use one without it")
    port = kept.other.get("port", FIRST_PORT)
    found = {}
    for i, (name, config) in enumerate(member.configs.items()):
        other = dict(kept.other)
        if len(member.configs) > 1:
            other["port"] = (port if isinstance(port, int) else FIRST_PORT) + i
        filled = {n: t for n, t in kept.shell_filled.items() if n != "model" and n.replace("-", "_") not in config}
        if len(member.configs) > 1:
            filled.pop("port", None)
            if front.meta.gpu != "CPU" and "kv_cache_memory_bytes" in config and "gpu_memory_utilization" not in config:
                other["gpu-memory-utilization"] = START_UTILIZATION  # else the second server would not start
        own_model = str(config.get("model", model))
        config = Config({k: v for k, v in config.items() if k != "model"})
        found[name] = replace(kept, model=own_model, config=config, other=other, shell_filled=filled)
    return {
        name: Deployment(**{f: getattr(d, f) for f in Deployment.__dataclass_fields__}) for name, d in found.items()
    }


def _member_files(front: Front, member: FrontMember, format: Format) -> dict[str, str]:
    found = deployments(front, member)
    texts = {}
    for name, deployment in found.items():
        file = (_file_stem(name) if len(found) > 1 else f"trial-{member.trial:04d}") + _SUFFIX[format]
        doubts = [*_open_budgets(deployment), *_unmeasured(front, deployment)]
        about = [*_instance_lines(member, name), *doubts, f"start: {_start(file, format)}"]
        header = [*header_lines(front, member), *about]
        texts[file] = _write(deployment, header, format, front.meta.versions.get("vllm", ""))
    if len(found) > 1:
        texts["README.txt"] = _readme(front, member, found, format)
    return texts


def _file_stem(instance: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", instance).strip("-") or "server"


def _start(file: str, format: Format) -> str:
    return f"vllm serve --config {file}" if format == "vllm-yaml" else f"sh {file}"


def _open_budgets(deployment: Deployment) -> list[str]:
    """vLLM derives one budget from the other and from the card, so a missing one is not what was measured elsewhere."""
    missing = [n for n in ("max_num_batched_tokens", "max_num_seqs") if n not in deployment.config]
    return [f"{n.replace('_', '-')} is not set here: vLLM chooses it by GPU" for n in missing]


def _unmeasured(front: Front, deployment: Deployment) -> list[str]:
    """What the user's configuration sets and the measured one does not: left out, and said."""
    kept = front.meta.kept.config if front.meta.kept else Config({})
    memory = {"gpu_memory_utilization", "kv_cache_memory_bytes"}
    usual = {"enable_prefix_caching": True, "kv_cache_dtype": "auto", "tensor_parallel_size": 1}
    gone = [
        f"{k.replace('_', '-')} {v}"
        for k, v in kept.items()
        if k not in deployment.config and k not in memory and usual.get(k) != v
    ]
    return [f"in your configuration but not in what was measured, so left out: {', '.join(gone)}"] if gone else []


def _write(deployment: Deployment, header: list[str], format: Format, version: str) -> str:
    if format == "command":
        return "#!/bin/sh\n" + write_command(deployment, header)
    return write_yaml(deployment, header, version)


def header_lines(front: Front, member: FrontMember) -> list[str]:
    """What the configuration is, what it gave and how that was found; the comment on top of every export."""
    meta = front.meta
    names = [f"trial {member.trial}", *member.picks, *([member.label] if member.label else [])]
    names += [UNPAID] if member == front.unpaid else []
    versions = ", ".join(f"{name} {version}" for name, version in meta.versions.items())
    rate = f", R {meta.rate_per_s:.4g} requests/s" if meta.rate_per_s is not None else ""
    lines = [
        f"study {meta.study}, {', '.join(names)}: {_standing(front, member)}",
        f"{'SIMULATED, not measured on a GPU' if meta.is_simulated else 'measured'}: {meta.engine}; {meta.gpu}",
        f"workload {meta.workload or '-'} (hash {meta.workload_hash}){rate}",
        f"versions: {versions or 'not recorded'}",
        *_figures(front, member),
    ]
    return [mask(line) for line in lines]


def _standing(front: Front, member: FrontMember) -> str:
    place = "on the front" if member.is_on_front else "not on the front"
    limits = "" if not member.missed else f", misses {'; '.join(limit_text(limit) for limit, _ in member.missed)}"
    confirmed = "confirmed by a second measurement" if member.is_confirmed else "NOT confirmed by a second measurement"
    unseen = unseen_text(member, front) if member.is_confirmed else ""
    doubt = f", but {unseen}" if unseen else ""
    return f"{place}{limits}, {confirmed}{doubt}{f' ({member.note})' if member.note else ''}"


def _figures(front: Front, member: FrontMember) -> list[str]:
    comparison = front.comparison(member)
    lines = []
    for i, objective in enumerate(front.meta.objectives):
        value = None if member.values is None else member.values[i]
        change = f" ({change_text(comparison.deltas[i])})" if comparison and member is not front.reference else ""
        lines.append(f"{objective.metric}: {'-' if value is None else f'{value:.6g}'}{change}")
    for name in (STEADY_PREEMPTIONS, STRESS_PREEMPTIONS, FREE_MEMORY):
        if name in member.metrics:
            value = member.metrics[name]
            lines.append(f"{name}: {figure(value) if name != FREE_MEMORY or value is None else f'{value:.0f}'}")
    if comparison and member is not front.reference:
        lines.append(f"against {reference_name(front)}: {verdict_text(comparison)}")
    return lines


def _instance_lines(member: FrontMember, name: str) -> list[str]:
    if len(member.configs) == 1:
        return []
    return [f"instance {name}, one of {len(member.configs)} on one card: {', '.join(member.configs)}; see README.txt"]


def memory_share(deployment: Deployment) -> str:
    """The flag that gives an instance its part of the card, as it is written."""
    for key in ("kv_cache_memory_bytes", "gpu_memory_utilization"):
        if key in deployment.config:
            return f"{key.replace('_', '-')} {deployment.config[key]!r}"
    return "no memory flag: vLLM takes its default share, and two instances do not fit; add kv-cache-memory-bytes"


def _readme(front: Front, member: FrontMember, found: Mapping[str, Deployment], format: Format) -> str:
    how = {"mps": "Start NVIDIA MPS first (nvidia-cuda-mps-control -d): the figures hold with it only.\n"}
    lines = [
        f"{len(found)} vLLM servers on one card ({front.meta.sharing}), study {front.meta.study}, trial {member.trial}",
        "",
        *header_lines(front, member),
        "",
        how.get(front.meta.sharing, "") + "Start them in this order, one after another: each start measures the memory",
        "that is free, so wait until the one before answers 200 on /health.",
        "",
    ]
    for i, (name, deployment) in enumerate(found.items(), 1):
        file = _file_stem(name) + _SUFFIX[format]
        port = deployment.other.get("port", FIRST_PORT)
        lines += [f"{i}. {_start(file, format)}", f"   port {port}, {memory_share(deployment)}", ""]
    return "\n".join(lines)


def write_files(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write every file below `folder`. Raises UserError when the folder cannot be written."""
    written = []
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
            written.append(path)
    except OSError as error:
        raise UserError(f"--output {folder}: cannot be written: {error.strerror or error}") from None
    return written


def joined(files: Mapping[str, str]) -> str:
    """All files as one text, each under its name where there are several; one alone is saved under a name of the
    reader's."""
    if len(files) == 1:
        ((name, text),) = files.items()
        return text.replace(f"# start: vllm serve --config {name}", f"# start: vllm serve --config {SAVED}").replace(
            f"# start: sh {name}", f"# start: sh {SAVED}"
        )
    return "\n".join(_titled(files.items()))


def _titled(files: Iterable[tuple[str, str]]) -> Iterable[str]:
    for name, text in files:
        yield f"# ==> {name}\n{text}"
