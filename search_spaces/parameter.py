"""One serving argument that may be tuned: its range, why it is tuned, and what a change of it costs.

Parameters are frozen and checked when built. Every value a parameter admits lies on its finite grid
(`values()`), so that "have we tried this?" is an exact question.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Value = int | float | str | bool | None
Change = Literal["boot", "live"]
Group = Literal["main", "advanced"]


@dataclass(frozen=True, kw_only=True)
class Parameter(ABC):
    """What every kind of parameter has."""

    name: str
    """The vLLM argument with underscores, e.g. `max_num_seqs`."""
    why: str
    """Why it is tuned and why over this range; shown to the user."""
    unit: str = ""
    group: Group = "main"
    change: Change = "boot"
    """`boot`: a change needs a new server; `live`: a running engine can be moved (the scheduler's budgets)."""
    since: str | None = None
    until: str | None = None
    """First vLLM version that has it; first version that no longer does."""
    can_change_answers: bool = False
    """True if the model's answers can differ (KV dtype, quantisation, speculation): opt-in only."""
    default: Value = None
    """What vLLM does when the flag is not given, where one value is known for all devices."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @abstractmethod
    def values(self) -> tuple[Value, ...]:
        """Every admissible value, in order."""

    @abstractmethod
    def nearest(self, value: Value) -> Value:
        """The admissible value closest to `value`. Numbers: by ratio on geometric grids, else by distance."""


def _check_grid(name: str, grid: Sequence[Value]) -> None:
    if not grid:
        raise ValueError(f"{name}: no admissible value is left")
    if len(set(map(repr, grid))) != len(grid):
        raise ValueError(f"{name}: values repeat: {list(grid)}")


@dataclass(frozen=True, kw_only=True)
class NumberParameter(Parameter):
    """A number on an ascending grid. Use `IntParameter` or `FloatParameter`."""

    grid: tuple[float, ...]
    is_log: bool = True

    def __post_init__(self) -> None:
        _check_grid(self.name, self.grid)
        if any(not math.isfinite(v) for v in self.grid):
            raise ValueError(f"{self.name}: values must be finite, got {list(self.grid)}")
        if list(self.grid) != sorted(self.grid):
            raise ValueError(f"{self.name}: values must ascend, got {list(self.grid)}")
        if self.is_log and self.grid[0] <= 0:
            raise ValueError(f"{self.name}: a geometric range must start above 0, got {self.grid[0]}")

    def values(self) -> tuple[Value, ...]:
        return self.grid

    def nearest(self, value: Value) -> Value:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{self.name}: expected a number, got {value!r}")
        if self.is_log:
            return min(self.grid, key=lambda g: abs(math.log(g) - math.log(max(value, 1e-12))))
        return min(self.grid, key=lambda g: abs(g - value))


@dataclass(frozen=True, kw_only=True)
class IntParameter(NumberParameter):
    """A whole number on a grid, e.g. `geometric_ints(256, 32768, multiple_of=64)`."""

    grid: tuple[int, ...]

    def __post_init__(self) -> None:
        if any(isinstance(v, bool) or not isinstance(v, int) for v in self.grid):
            raise ValueError(f"{self.name}: expected whole numbers, got {list(self.grid)}")
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class FloatParameter(NumberParameter):
    """A real number on a grid."""

    is_log: bool = False


@dataclass(frozen=True, kw_only=True)
class ChoiceParameter(Parameter):
    """One of a few named values without an order that matters."""

    choices: tuple[Value, ...]

    def __post_init__(self) -> None:
        _check_grid(self.name, self.choices)

    def values(self) -> tuple[Value, ...]:
        return self.choices

    def nearest(self, value: Value) -> Value:
        if value not in self.choices:
            raise ValueError(f"{self.name}: {value!r} is not one of {list(self.choices)}")
        return value


@dataclass(frozen=True, kw_only=True)
class FlagParameter(ChoiceParameter):
    """A switch; rendered as `--x` or `--no-x`."""

    choices: tuple[Value, ...] = field(default=(False, True))


@dataclass(frozen=True, kw_only=True)
class ShareParameter(ChoiceParameter):
    """A whole number that is a share of another parameter, e.g. long_prefill_token_threshold = MNBT/4.

    The sampler sees the shares (a few ordered choices that mean the same at every budget); the study records
    and the server gets `round(share * config[of])`."""

    of: str
    """The parameter it is a share of."""

    def resolve(self, share: Value, whole: int) -> int:
        if isinstance(share, bool) or not isinstance(share, int | float):
            raise ValueError(f"{self.name}: a share must be a number, got {share!r}")
        return round(share * whole)


def geometric_ints(low: int, high: int, *, ratio: float = math.sqrt(2.0), multiple_of: int = 1) -> tuple[int, ...]:
    """Whole numbers from `low` to `high`, each `ratio` above the last, rounded to `multiple_of`; both ends included.

    Raises ValueError if low < 1, low > high or ratio <= 1."""
    if low < 1 or low > high:
        raise ValueError(f"a geometric range needs 1 <= low <= high, got {low}..{high}")
    if ratio <= 1:
        raise ValueError(f"a geometric range needs a ratio above 1, got {ratio}")
    grid = {low, high}
    k = 0
    while (value := low * ratio**k) < high:
        grid.add(min(max(low, round(value / multiple_of) * multiple_of), high))
        k += 1
    return tuple(sorted(grid))
