"""A calibration of the simulator: residuals of one model on one card, what they were learned from, and its file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from optimizer.engines.simulator.residuals import Residuals, by_tp_from
from optimizer.errors import UserError
from search_spaces.hardware import GpuFacts
from search_spaces.memory_seen import MemorySeen, seen_from
from search_spaces.model import ModelFacts

FORMAT = 1


@dataclass(frozen=True)
class SimulatorCalibration:
    """Holds for this model on this card only."""

    model: str
    gpu: str
    engine: str
    """What was measured, e.g. `vLLM 0.32.0`."""
    learned_from: str
    """For people: `3 trials of study chat-1`."""
    residuals: Mapping[int, Residuals]
    """Tensor-parallel size -> residuals."""
    memory: tuple[MemorySeen, ...] = ()
    """What the study's starts said of the card's memory."""
    errors: Mapping[str, Any] = field(default_factory=dict)
    """What learning did to the error, as the command printed it."""
    file: str = ""
    """Where it was read from."""

    @property
    def text(self) -> str:
        sizes = "; ".join(f"TP {tp}: {r.text}" for tp, r in self.residuals.items()) or "memory only"
        return f"calibrated from {self.learned_from} ({self.engine}): {sizes}"

    @property
    def fingerprint(self) -> str:
        """8 hex digits over what it changes."""
        told = {k: v for k, v in self.to_json().items() if k in ("residuals", "memory")}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:8]

    def check(self, model: ModelFacts, gpu: GpuFacts, source: str) -> None:
        """Raises UserError when it was learned on another model or card."""
        for what, here, there in (("model", model.name, self.model), ("GPU", gpu.name, self.gpu)):
            if here != there:
                raise UserError(f"{source}: was learned on {what} {there!r}, this is {here!r}; calibrate on this one")

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "model": self.model,
            "gpu": self.gpu,
            "engine": self.engine,
            "learned_from": self.learned_from,
            "residuals": {str(tp): r.to_json() for tp, r in self.residuals.items()},
            "memory": [seen.to_json() for seen in self.memory],
            "errors": dict(self.errors),
        }


def calibration_from(fields: Mapping[str, Any]) -> SimulatorCalibration:
    """Raises ValueError, KeyError or TypeError for what is none."""
    if fields["format"] != FORMAT:
        raise ValueError(f"format {fields['format']!r}, {FORMAT} was expected")
    residuals, memory = by_tp_from(fields["residuals"]), seen_from(fields.get("memory", ()))
    if not residuals and not memory:
        raise ValueError("no residuals")
    names = {name: str(fields[name]) for name in ("model", "gpu", "engine", "learned_from")}
    return SimulatorCalibration(**names, residuals=residuals, memory=memory, errors=dict(fields.get("errors", {})))


def load_calibration(path: Path) -> SimulatorCalibration:
    """Raises UserError that names the file and what is wrong with it."""
    try:
        return replace(calibration_from(json.loads(path.read_text("utf-8"))), file=str(path))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; `optimizer.calibrate STUDY` writes such a file") from None
    except KeyError as error:
        raise UserError(f"{path}: no calibration of the simulator: {error.args[0]!r} is missing") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: no calibration of the simulator ({error}); calibrate again") from None


def calibration_for(file: Path | None, model: ModelFacts, gpu: GpuFacts) -> SimulatorCalibration | None:
    """The file that `--simulator-calibration` names, held to this model and card; None without one."""
    if file is None:
        return None
    found = load_calibration(file)
    found.check(model, gpu, f"--simulator-calibration {file}")
    return found
