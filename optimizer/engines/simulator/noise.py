"""Seeded noise, so that repeats, confirmation and ties are exercised: a factor per boot, and one per step."""

from __future__ import annotations

import zlib

import numpy as np

BOOT_SD = 0.02
"""Boot-to-boot spread: 1-3 % on real cards (SLO-Guard's repeats: 1.4-2.3 % sd)."""
STEP_SD = 0.02
_BLOCK = 4096


def boot_factor(seed: int, instance: str, scale: float) -> float:
    """Step time of this boot over the mean boot's; the same for the same seed and instance in any process."""
    return float(np.exp(scale * BOOT_SD * _generator(seed, instance, "boot").standard_normal()))


class StepNoise:
    """Factors by step number, for one load of one boot. Which loads ran before does not matter. Scale 0: no noise."""

    def __init__(self, seed: int, instance: str, load: str, scale: float) -> None:
        self._generator = _generator(seed, instance, load)
        self._boot_factor = boot_factor(seed, instance, scale)
        self._scale = scale
        self._factors: list[float] = []

    def until(self, n_steps: int) -> list[float]:
        """At least the first `n_steps` factors."""
        while len(self._factors) < n_steps:
            z = self._generator.standard_normal(_BLOCK)
            self._factors += (self._boot_factor * np.exp(self._scale * STEP_SD * z)).tolist()
        return self._factors


def _generator(seed: int, *names: str) -> np.random.Generator:
    return np.random.default_rng([seed & 0xFFFFFFFF, *(zlib.crc32(n.encode()) for n in names)])
