"""An Outcome on disk: `outcome.json` for people, `samples.npz` for the raw samples, `<instance>.log` for what its
servers printed; all or nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from optimizer.deployment.secrets import MASK, has_secret, is_secret_name, mask
from optimizer.engines.engine import BootReport
from optimizer.study.files import json_safe
from optimizer.study.samples import read_measurement, write_measurement
from optimizer.trial import Broken, Infeasible, Measured, Outcome, Stopped

T = TypeVar("T")
_KINDS: dict[str, type[Outcome]] = {
    "measured": Measured,
    "infeasible": Infeasible,
    "broken": Broken,
    "stopped": Stopped,
}
_OWN_FIELDS = {
    "measured": ("findings",),
    "infeasible": ("kind", "phase", "cause", "violation", "evidence", "bounds"),
    "broken": ("cause", "kind", "evidence"),
    "stopped": ("bound", "violation", "reason"),
}


def kind_of(outcome: Outcome) -> str:
    """`measured`, `infeasible`, `broken` or `stopped`."""
    for name, kind in _KINDS.items():
        if isinstance(outcome, kind):
            return name
    raise TypeError(f"not an outcome of a trial: {outcome!r}")


def masked_arguments(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The same arguments with `***` for those named or shaped like a secret: keys and tokens are never recorded."""
    return {
        name: MASK if is_secret_name(name.rpartition(".")[2]) or has_secret(value) else value
        for name, value in parameters.items()
    }


def own_entries(entries: Mapping[str, T], instance: str) -> dict[str, T]:
    """Those of one of several instances: `chat.max_num_seqs` is `max_num_seqs` of `chat`."""
    prefix = f"{instance}."
    return {name.removeprefix(prefix): value for name, value in entries.items() if name.startswith(prefix)}


def write_outcome(folder: Path, outcome: Outcome, about: dict[str, Any]) -> None:
    """Into a folder that is there. `about` (purpose, placement, seed, …) is stored beside the outcome."""
    name = kind_of(outcome)
    body: dict[str, Any] = {"outcome": name, **{field: getattr(outcome, field) for field in _OWN_FIELDS[name]}}
    body |= {"engine_seconds": dict(outcome.engine_seconds), "wall_s": outcome.wall_s, "worker": outcome.worker}
    boot = outcome.boot
    body["boot"] = None if boot is None else {f: getattr(boot, f) for f in BootReport.__dataclass_fields__}
    body["about"] = about
    if isinstance(outcome, Measured | Stopped):
        write_measurement(folder / "samples.npz", outcome.measurement)
    for instance, printed in outcome.logs.items():
        (folder / f"{instance}.log").write_text(mask(printed), "utf-8", errors="replace")
    text = json.dumps(json_safe(body), indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "outcome.json").write_text(text + "\n", "utf-8")


def read_outcome(folder: Path) -> Outcome:
    """The outcome as it was written, without its logs; times to 0.1 µs, facts of the boot as JSON gave them back."""
    body = json.loads((folder / "outcome.json").read_text("utf-8"))
    name = body["outcome"]
    fields: dict[str, Any] = {field: body[field] for field in _OWN_FIELDS[name] if field in body}
    if "evidence" in fields:
        fields["evidence"] = tuple(fields["evidence"])
    fields |= {key: body[key] for key in ("engine_seconds", "wall_s", "worker")}
    fields["boot"] = None if body["boot"] is None else BootReport(**body["boot"])
    if name == "measured":
        fields["findings"] = tuple(fields["findings"])
    if name in ("measured", "stopped"):
        fields["measurement"] = read_measurement(folder / "samples.npz")
    return _KINDS[name](**fields)
