"""What the machine did to a load: clocks that fell, others on the card, memory that creeps, a cache too small."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from objectives.measurement import DeviceSample, PhaseMeasurement
from optimizer.diagnosis.memory_trend import creep_of
from optimizer.engines.vllm.client_findings import open_requests
from optimizer.engines.vllm.finding import Finding

GIB = 1024**3
SLOWED = frozenset({"hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"})
"""Heat or power supply took the clocks down: another day it would be faster. A power cap is the card's own limit."""
DISTURBED_SHARE = 0.05
"""Of the readings of a card: slowed in more than this, the figures are those of a hot card."""


def device_findings(phase: PhaseMeasurement) -> Iterator[Finding]:
    for device in dict.fromkeys(s.device for s in phase.devices):
        own = [s for s in phase.devices if s.device == device]
        yield from _throttle_findings(device, own)
        foreign = sorted({pid for s in own for pid in s.foreign_pids})
        if foreign:
            text = f"{device}: processes of others computed on it ({', '.join(map(str, foreign))})"
            yield Finding("disturbed", "neighbour", text)


def _throttle_findings(device: str, samples: Sequence[DeviceSample]) -> Iterator[Finding]:
    slowed = [s for s in samples if SLOWED & set(s.throttle_reasons)]
    if slowed:
        share = len(slowed) / len(samples)
        reasons = ", ".join(sorted({r for s in slowed for r in s.throttle_reasons if r in SLOWED}))
        text = f"{device}: throttled ({reasons}) in {share:.0%} of {len(samples)} readings{_clocks(samples)}"
        yield Finding("disturbed" if share > DISTURBED_SHARE else "note", "throttled", text)
    n_capped = sum("sw_power_cap" in s.throttle_reasons for s in samples)
    if n_capped:
        yield Finding("note", "throttled", f"{device}: at its power limit in {n_capped / len(samples):.0%} of readings")


def _clocks(samples: Sequence[DeviceSample]) -> str:
    clocks = [s.sm_clock_mhz for s in samples if s.sm_clock_mhz is not None]
    heat = [s.temperature_c for s in samples if s.temperature_c is not None]
    fell = f", SM clock {max(clocks):.0f} to {min(clocks):.0f} MHz" if clocks else ""
    return fell + (f", up to {max(heat):.0f} °C" if heat else "")


def leak_findings(phase: PhaseMeasurement) -> Iterator[Finding]:
    if (trend := creep_of(phase.devices)) is not None:
        yield Finding("note", "leak", f"device memory is {trend.text}; not to be recommended without a soak run")


def capacity_findings(phase: PhaseMeasurement, kv_tokens: Mapping[str, int]) -> Iterator[Finding]:
    """More requests open than the KV cache holds, in the median second of a load that should drain."""
    if phase.load == "saturation" or not phase.records or not kv_tokens:
        return
    waiting = [s.n_waiting for s in phase.samples if s.n_waiting is not None]
    n_open = open_requests(phase)
    mean_tokens = float(np.mean([r.prompt_tokens + r.asked_output_tokens for r in phase.records]))
    room = sum(kv_tokens.values()) / mean_tokens
    if n_open is None or n_open <= room or not waiting or np.median(waiting) == 0:
        return
    yield Finding(
        "note",
        "kv_capacity",
        f"the load keeps {n_open:.0f} requests open, {sum(kv_tokens.values())} KV tokens hold about {room:.0f} of its"
        f" {mean_tokens:.0f} tokens each: parameters cannot fix that; admit at most about {room:.0f} at once, or add"
        " replicas",
    )
