"""A creep is told from noise, steps, sawtooths and warm-ups."""

from __future__ import annotations

import numpy as np
import pytest

from optimizer.diagnosis.memory_trend import judge_memory

GIB = 2**30
TIME_S = np.arange(0, 600, 5.0)


def trend_of(used_gib: np.ndarray, seed: int = 1, noise_gib: float = 0.02) -> object:
    noise = np.random.default_rng(seed).normal(0, noise_gib, len(TIME_S))
    return judge_memory(list(zip(TIME_S, (used_gib + noise) * GIB, strict=True)), 80 * GIB)


STEADY = {
    "flat": np.full_like(TIME_S, 70.0),
    "falling": 70 - TIME_S / 300,
    "sawtooth": 70 + (TIME_S % 60) / 60,
    "slow sawtooth": 70 + (TIME_S % 150) / 100,
    "one step": 70 + (TIME_S > 350) * 2.0,
    "warm-up": 60 + 10 * (1 - np.exp(-TIME_S / 60)),
    "burst": 70 + 3.0 * ((TIME_S > 200) & (TIME_S < 300)),
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", STEADY)
def test_steady(name: str, seed: int) -> None:
    assert trend_of(STEADY[name], seed) is None


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("gib_per_min", [0.1, 0.2, 1.0])
def test_creeping(gib_per_min: float, seed: int) -> None:
    trend = judge_memory(list(zip(TIME_S, (70 + TIME_S / 60 * gib_per_min) * GIB, strict=True)), 80 * GIB)
    assert trend is not None
    assert trend.slope_bytes_per_s * 60 / GIB == pytest.approx(gib_per_min, rel=0.05)
    assert trend_of(70 + TIME_S / 60 * gib_per_min, seed) is not None


def test_a_creep_under_a_sawtooth() -> None:
    assert trend_of(70 + TIME_S / 60 * 0.5 + (TIME_S % 60) / 60) is not None


def test_too_little_to_judge() -> None:
    assert judge_memory([]) is None
    assert judge_memory([(float(n), 1e10 + n * 1e9) for n in range(100)]) is None
    assert judge_memory([(60.0 * n, 1e10 + n * 1e9) for n in range(7)]) is None
    assert judge_memory([(60.0 * n, float("nan")) for n in range(20)]) is None


def test_without_the_cards_size_no_time_is_given() -> None:
    trend = judge_memory([(60.0 * n, (70 + 0.2 * n) * GIB) for n in range(10)])
    assert trend is not None and trend.text == "not steady: about +0.2 GiB/min"
