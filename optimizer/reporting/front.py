"""The front of a study as one JSON file, `front/front.json`: what tables, exports and reports are made from.

It holds every trial that was told, so that one that is not on the front can still be exported, and so that a study
without a feasible configuration can say what blocks it. Readers need neither the study's storage nor a GPU.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from objectives.objective import Direction, Objective
from optimizer.deployment.deployment import Deployment
from optimizer.errors import UserError
from optimizer.reporting.member import PICKS, Front, FrontMember, FrontMeta, name_picks
from search_spaces.config import Config

__all__ = ["PICKS", "Front", "FrontMember", "FrontMeta", "front_json", "load_front", "name_picks", "save_front"]

FORMAT = "vllm-config-optimizer/front"
SCHEMA = 1
"""Raised when a field changes its meaning or goes; new fields do not raise it."""


def front_json(members: Iterable[FrontMember], meta: FrontMeta) -> dict[str, Any]:
    """The file's content, ready for `json.dumps`."""
    front = Front(meta, tuple(sorted(members, key=lambda m: m.trial)))
    return {
        "format": FORMAT,
        "version": SCHEMA,
        "meta": _meta_json(meta),
        "members": [_member_json(m, meta) for m in front.members],
        "others": [_member_json(m, meta) for m in front.trials if m not in front.members],
        "nearest_misses": [
            {"trial": m.trial, "total_violation": m.total_violation, "blocking": dict(m.missed)}
            for m in front.nearest_misses()
        ],
    }


def save_front(path: Path, members: Iterable[FrontMember], meta: FrontMeta) -> None:
    """Write `path` whole or not at all; readers never see half a file."""
    text = json.dumps(front_json(members, meta), indent=1, ensure_ascii=False, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text + "\n", "utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_front(path: Path) -> Front:
    """Raises UserError when the file is missing, damaged or written by a newer program."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no trial has ended yet, so there is no front; let the study run on") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); run the study's command again with --resume") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UserError(f"{path}: is not a study's front (format {FORMAT})")
    if data.get("version") != SCHEMA:
        raise UserError(f"{path}: has schema version {data.get('version')}, this program reads {SCHEMA}")
    try:
        meta = _meta_of(data["meta"])
        trials = [_member_of(m, meta) for m in (*data["members"], *data["others"])]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: is damaged ({type(error).__name__}: {error}); --resume writes it again") from None
    return Front(meta, tuple(sorted(trials, key=lambda m: m.trial)))


def _member_json(member: FrontMember, meta: FrontMeta) -> dict[str, Any]:
    names = [o.metric for o in meta.objectives]
    return {
        "trial": member.trial,
        "label": member.label,
        "picks": list(member.picks),
        "is_on_front": member.is_on_front,
        "is_confirmed": member.is_confirmed,
        "note": member.note,
        "again": dict(member.again),
        "cause": member.cause,
        "objectives": None if member.values is None else dict(zip(names, member.values, strict=True)),
        "configs": {name: dict(config) for name, config in member.configs.items()},
        "metrics": {k: v if v is not None and math.isfinite(v) else None for k, v in member.metrics.items()},
        "violations": {k: v for k, v in member.violations.items() if math.isfinite(v)},
    }


def _member_of(data: Mapping[str, Any], meta: FrontMeta) -> FrontMember:
    values = data["objectives"]
    return FrontMember(
        trial=int(data["trial"]),
        configs={name: Config(config) for name, config in data["configs"].items()},
        values=None if values is None else tuple(float(values[o.metric]) for o in meta.objectives),
        metrics=data["metrics"],
        violations=data["violations"],
        is_on_front=bool(data["is_on_front"]),
        picks=tuple(data["picks"]),
        is_confirmed=bool(data["is_confirmed"]),
        note=data.get("note", ""),
        again=data.get("again", {}),
        label=data.get("label", ""),
        cause=data.get("cause", ""),
    )


_PLAIN_META = ("study", "model", "gpu", "engine", "is_simulated", "workload_hash", "profile", "workload", "rate_per_s")
_MORE_META = ("versions", "noise", "reference", "sharing")


def _meta_json(meta: FrontMeta) -> dict[str, Any]:
    data = {name: getattr(meta, name) for name in (*_PLAIN_META, *_MORE_META)}
    data["objectives"] = {o.metric: o.direction for o in meta.objectives}
    data["versions"], data["noise"] = dict(meta.versions), dict(meta.noise)
    data["kept"] = None if meta.kept is None else _deployment_json(meta.kept)
    return data


def _meta_of(data: Mapping[str, Any]) -> FrontMeta:
    objectives: dict[str, Direction] = data["objectives"]
    return FrontMeta(
        objectives=tuple(Objective(metric, direction) for metric, direction in objectives.items()),
        kept=None if data.get("kept") is None else _deployment_of(data["kept"]),
        **{name: data[name] for name in (*_PLAIN_META, *_MORE_META)},
    )


def _deployment_json(kept: Deployment) -> dict[str, Any]:
    return {
        "model": kept.model,
        "config": dict(kept.config),
        "other": dict(kept.other),
        "order": list(kept.order),
        "environment": dict(kept.environment),
        "shell_filled": dict(kept.shell_filled),
        "withheld": list(kept.withheld),
    }


def _deployment_of(data: Mapping[str, Any]) -> Deployment:
    return Deployment(
        model=data["model"],
        config=Config(data["config"]),
        other=data["other"],
        order=tuple(data["order"]),
        environment=data["environment"],
        shell_filled=data["shell_filled"],
        withheld=tuple(data["withheld"]),
    )
