"""Distributions of the recorded arguments: decided once, at trial 0, and the same in every trial of the study.

Optuna compares distributions by equality when it computes importances (search_space/intersection.py) and refuses a
parameter whose kind changes (distributions.check_distribution_compatibility). So every argument that any trial
may have gets a range that is wide enough from the start. The sampler does not read these: it has its own space.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
    json_to_distribution,
)

from search_spaces.parameter import Value

_LOG_SPAN = 8.0
"""Whole numbers that span more than this factor are shown and compared by ratio."""


def standing_distributions(configs: Iterable[Mapping[str, Value]]) -> dict[str, BaseDistribution]:
    """One distribution for every argument in `configs`: a sample of the space, with its corners and the baselines.

    Numbers stay numbers, so that a value outside the sample can still be recorded later; text and switches become
    choices. Arguments that never change get a distribution of one value."""
    seen: dict[str, dict[Value, None]] = {}
    for config in configs:
        for name, value in config.items():
            if value is not None:
                seen.setdefault(name, {})[value] = None
    return {name: _around(tuple(values)) for name, values in sorted(seen.items())}


def fitting(distribution: BaseDistribution | None, value: Value) -> BaseDistribution:
    """The standing distribution, or the nearest compatible one that contains `value`."""
    if distribution is None:
        return _around((value,))
    if isinstance(distribution, CategoricalDistribution) or _contains(distribution, value):
        return distribution
    if isinstance(distribution, IntDistribution) and isinstance(value, int) and not (distribution.log and value < 1):
        return IntDistribution(min(distribution.low, value), max(distribution.high, value), log=distribution.log)
    if isinstance(distribution, FloatDistribution) and isinstance(value, int | float):
        return FloatDistribution(min(distribution.low, value), max(distribution.high, value))
    return distribution


def can_record(distribution: BaseDistribution, value: Value) -> bool:
    """False when the value is of another kind (a word where numbers stand, a choice nobody announced)."""
    if isinstance(distribution, CategoricalDistribution):
        return any(type(c) is type(value) and c == value for c in distribution.choices)
    return _contains(distribution, value)


def to_json(distributions: Mapping[str, BaseDistribution]) -> dict[str, str]:
    return {name: distribution_to_json(d) for name, d in distributions.items()}


def from_json(texts: Mapping[str, str]) -> dict[str, BaseDistribution]:
    return {name: json_to_distribution(text) for name, text in texts.items()}


def _around(values: Sequence[Value]) -> BaseDistribution:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(values):
        if all(isinstance(v, bool) for v in values):
            return CategoricalDistribution((False, True))
        return CategoricalDistribution(tuple(sorted((v for v in values), key=str)))
    low, high = min(numbers), max(numbers)
    if all(isinstance(v, int) for v in numbers):
        return _around_ints(int(low), int(high))
    pad = (high - low) / 4
    return FloatDistribution(max(low - pad, min(low, 0.0)), high + pad)


def _around_ints(low: int, high: int) -> IntDistribution:
    """Twice as wide at both ends for ranges by ratio, a quarter of the width for others; 0 is never crossed."""
    if low >= 1 and high > _LOG_SPAN * low:
        return IntDistribution(max(1, low // 2), 2 * high, log=True)
    pad = math.ceil((high - low) / 4)
    return IntDistribution(max(low - pad, min(low, 0)), high + pad)


def _contains(distribution: BaseDistribution, value: Value) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if isinstance(distribution, IntDistribution):
        return value == int(value) and distribution.low <= value <= distribution.high
    return isinstance(distribution, FloatDistribution) and distribution.low <= value <= distribution.high
