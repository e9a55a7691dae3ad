"""Manifest: what a study is, written once. A resume is held against it, line by line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from optimizer.errors import StudyMismatch, UserError
from optimizer.study.files import json_safe, write_json

FORMAT = 1
_MAY_CHANGE = {
    "format", "created", "n_trials", "n_workers", "versions", "rate_per_s", "calibration", "storage", "profile_text",
    "command", "directory",
}  # fmt: skip
"""Fields that a resume may give anew. Everything else decides what the recorded numbers mean; of the profile's text,
what matters stands in fields of its own, so that a comment may be edited."""
_SETTINGS_THAT_MAY_CHANGE = {"confirm"}
"""What of the settings decides only what is done after the search."""
_FINGERPRINTS = {"space_fingerprint", "model_fingerprint"}
_PACKAGES = ("vllm-config-optimizer", "optuna", "optuna-dashboard", "ray", "numpy", "pandas", "vllm")
_MAX_SHOWN_CHARS = 80


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Every field is JSON-safe. Nothing secret: storage URLs are masked, traces are hashes."""

    study: str
    """Display name, as given."""
    profile: str
    profile_text: str
    """The YAML as read: the study can be repeated from its folder alone."""
    objectives: tuple[str, ...]
    """`maximize metric` or `minimize metric`, in order."""
    limits: tuple[str, ...]
    """As the profile and the user state them; limits relative to the reference stay relative here."""
    constraints: tuple[str, ...] = ()
    """Names of the recorded constraints, in order; known once calibration has resolved the limits."""
    space_fingerprint: str
    space: Mapping[str, Any] = field(default_factory=dict)
    """Parameter -> admissible values, for people."""
    workload: Mapping[str, str]
    """load or tenant -> content hash of its frozen window."""
    model: str
    model_fingerprint: str = ""
    gpu: str
    engine: str
    """Engine identity: name and version."""
    sharing: str = "exclusive"
    sampler: str
    seed: int
    told_infeasible: str = "PRUNED"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else decides what numbers mean: noise, fixed rate, promises, caps."""
    n_trials: int
    n_workers: int = 1
    storage: str = ""
    """Where the Optuna study is if not in the folder; without its password."""
    rate_per_s: float | None = None
    """R, once calibration has found it."""
    calibration: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    """The words behind `optimizer.run` that began the study, without secrets: `validate` reads them back."""
    directory: str = ""
    """Where it was typed: paths in it are relative to that."""
    created: str = ""
    format: int = FORMAT

    @property
    def profile_hash(self) -> str:
        """16 hex digits of the profile's text."""
        return hashlib.sha256(self.profile_text.encode()).hexdigest()[:16]

    def with_(self, **changes: Any) -> Manifest:
        """A copy with what calibration found. Refuses to change what the study is."""
        fixed = [k for k in changes if k not in _MAY_CHANGE | {"constraints"}]
        if fixed:
            raise ValueError(f"{fixed[0]} is fixed for the whole study")
        return replace(self, **changes)

    def save(self, path: Path) -> None:
        write_json(path, {**asdict(self), "profile_hash": self.profile_hash})


def load_manifest(path: Path) -> Manifest:
    """Raises UserError that names the file when it is not a manifest this version can read."""
    try:
        body = json.loads(path.read_text("utf-8"))
        if body["format"] > FORMAT:
            raise UserError(
                f"{path}: written by a newer version (format {body['format']}); update vllm-config-optimizer"
            )
        known = {f.name for f in fields(Manifest)}
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in body.items() if k in known}
        return Manifest(**values)
    except FileNotFoundError:
        raise UserError(f"{path}: not there; the folder holds no study") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a study's manifest ({error}); restore it or start another --study") from error


def differences(old: Manifest, new: Manifest) -> list[str]:
    """What a resume would change about the study, a line each: `gpu: A100-80 in the study, H100-80 now`.

    Fingerprints are named only where nothing that people can read differs. `constraints` are compared once both are
    known."""
    lines: list[str] = []
    prints: list[str] = []
    a, b = json_safe(asdict(old)), json_safe(asdict(new))
    for name in (f.name for f in fields(Manifest) if f.name not in _MAY_CHANGE):
        if name == "constraints" and not (a[name] and b[name]):
            continue
        if a[name] != b[name]:
            (prints if name in _FINGERPRINTS else lines).extend(_lines(name, a[name], b[name]))
    return lines or prints


def notices(old: Manifest, new: Manifest) -> list[str]:
    """What may change but should be seen: package versions and the profile's text."""
    both = old.versions.keys() & new.versions.keys()
    edited = [f"the profile's text changed since the study began ({old.profile_hash}, {new.profile_hash} now)"]
    return (edited if old.profile_hash != new.profile_hash else []) + [
        f"{name} was {old.versions[name]} when the study began, {new.versions[name]} now"
        for name in sorted(both)
        if old.versions[name] != new.versions[name]
    ]


def check_resumable(old: Manifest, new: Manifest) -> None:
    """Raises StudyMismatch with every difference."""
    lines = differences(old, new)
    if lines:
        raise StudyMismatch(
            f"study {old.study!r} cannot be resumed: {'; '.join(lines)}; give the same again or use another --study"
        )


def package_versions() -> dict[str, str]:
    """Installed versions of the packages that results depend on."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _lines(name: str, old: Any, new: Any) -> list[str]:
    """Mappings are compared entry by entry."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [k for k in (*old, *(k for k in new if k not in old)) if old.get(k) != new.get(k)]
        keys = [k for k in keys if name != "settings" or k not in _SETTINGS_THAT_MAY_CHANGE]
        return [_line(f"{name} {k}", old.get(k), new.get(k)) for k in keys]
    if isinstance(old, list) and isinstance(new, list):
        gone, fresh = [x for x in old if x not in new], [x for x in new if x not in old]
        is_cut = any(len(_text(value)) > _MAX_SHOWN_CHARS for value in (old, new))
        if is_cut and (gone or fresh):
            return [_line(name.replace("_", " "), gone or None, fresh or None)]
    return [_line(name.replace("_", " "), old, new)]


def _line(name: str, old: Any, new: Any) -> str:
    return f"{name}: {_shown(old)} in the study, {_shown(new)} now"


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = _text(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 1] + "…"


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
