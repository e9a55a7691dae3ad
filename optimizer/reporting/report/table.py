"""The trials as a table for learning from: where each lies on the grid of every knob, and what it measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from objectives.objective import Objective
from optimizer.reporting.report.source import Source
from optimizer.study.trial_record import TrialRecord
from search_spaces.hardware import GIB


@dataclass(frozen=True)
class Knob:
    """A parameter that was searched."""

    name: str
    levels: tuple[str, ...]
    """Its grid as the manifest writes it, in order."""

    @property
    def labels(self) -> tuple[str, ...]:
        """For people: bytes in GiB, thousands as k."""
        return tuple(_label(self.name, text) for text in self.levels)

    def level_of(self, trial: TrialRecord) -> int | None:
        """Position of the trial's value on the grid; None for a baseline that lies beside it."""
        text = str((trial.point or {}).get(self.name))
        return self.levels.index(text) if text in self.levels else None


@dataclass(frozen=True)
class Table:
    """Trials that the search proposed and that were measured."""

    knobs: tuple[Knob, ...]
    objectives: tuple[Objective, ...]
    levels: NDArray[np.int64]
    """(n, n_knobs) positions on the grids"""
    values: NDArray[np.float64]
    """(n, n_objectives) as measured, misses included"""
    is_feasible: NDArray[np.bool_]
    """(n,)"""

    def __len__(self) -> int:
        return len(self.values)

    def column(self, i: int) -> NDArray[np.float64]:
        """Objective `i` so that lower is better, by ratio where it can be."""
        own = self.values[:, i]
        scaled = np.log(own) if (own > 0).all() else own
        return -scaled if self.objectives[i].direction == "maximize" else scaled


def knobs_of(source: Source) -> tuple[Knob, ...]:
    """Searched parameters with more than one level."""
    found = [Knob(name, tuple(map(str, levels))) for name, levels in source.manifest.space.items()]
    return tuple(k for k in found if len(k.levels) > 1)


def table_of(source: Source) -> Table:
    knobs = knobs_of(source)
    rows: list[tuple[list[int], Sequence[float], bool]] = []
    for trial in source.trials:
        levels = [k.level_of(trial) for k in knobs]
        if trial.values is not None and "baseline" not in trial.attributes and None not in levels:
            rows.append(([n for n in levels if n is not None], trial.values, trial.is_feasible))
    n, objectives = len(rows), source.terms.objectives
    return Table(
        knobs,
        objectives,
        np.array([levels for levels, _, _ in rows], np.int64).reshape(n, len(knobs)),
        np.array([values for _, values, _ in rows], np.float64).reshape(n, len(objectives)),
        np.array([ok for _, _, ok in rows], np.bool_),
    )


def short_knob(name: str) -> str:
    """`chat.max_num_seqs` -> `chat: max_num_seqs`."""
    owner, _, own = name.rpartition(".")
    return f"{owner}: {own}" if owner else own


def meaning_of(name: str) -> str:
    return _MEANINGS.get(name.rpartition(".")[2], "")


_MEANINGS: Mapping[str, str] = {
    "max_num_batched_tokens": "tokens that one step of the engine may process",
    "max_num_seqs": "requests that may run at once",
    "watermark": "share of the KV cache kept free when a request is admitted",
    "long_prefill_token_threshold": "largest piece of one long prompt in a step, as a share of the token budget;"
    " 0: no limit",
    "kv_cache_memory_bytes": "memory of the KV cache",
    "gpu_memory_utilization": "share of the card's memory that the server takes",
    "kv_split": "share of the card's KV memory that the first server gets",
}


def _label(name: str, text: str) -> str:
    try:
        value = float(text)
    except ValueError:
        return text
    if name.endswith("_bytes"):
        return f"{value / GIB:.2f} GiB"
    return f"{value:g}" if abs(value) < 100_000 else f"{value / 1000:g}k"
