"""The devices of one slot, watched: GPUs by NVML, or, without one, the host's memory as the device `host`.

What NVML calls utilisation is reported as what it is: the share of time in which any kernel was resident. A frozen
engine can show 96 %.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from objectives.measurement import DeviceSample
from optimizer.clock import REAL_CLOCK, Clock
from optimizer.engines.engine import Sharing
from optimizer.engines.vllm.mps import is_daemon_running
from optimizer.engines.vllm.nvml import NvmlDevice, load_nvml
from optimizer.processes import existing, is_alive

HOST = "host"
TOLERANCE_BYTES = 64 * 1024**2
"""Memory this near to what was in use before is back: a driver gives the last of its own back late."""
N_STABLE = 3
POLL_S = 0.2
INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""include/linux/proc_ns.h PROC_PID_INIT_INO. Elsewhere (a container) NVML counts processes by other numbers."""


@dataclass(frozen=True)
class Release:
    """Whether a trial's memory is back. Not while any of it, or any process of ours, is still there."""

    is_released: bool
    used_bytes: Mapping[str, int | None]
    own_pids: tuple[int, ...] = ()
    foreign_pids: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        used = [f"{d}: {'memory unread' if b is None else f'{b / 1024**3:.2f} GiB in use'}"
                for d, b in self.used_bytes.items()]  # fmt: skip
        ours = [f"still running: {', '.join(map(str, self.own_pids))}"] if self.own_pids else []
        others = [f"processes of others: {', '.join(map(str, self.foreign_pids))}"] if self.foreign_pids else []
        return "; ".join(used + ours + others)


class Devices:
    """Opened before the first server starts: what is on a device then is not ours."""

    def __init__(self, gpus: Sequence[NvmlDevice], clock: Clock = REAL_CLOCK, *, sees_pids: bool | None = None) -> None:
        """`sees_pids`: whether NVML's process numbers are those of this process's world; None: find out."""
        self._gpus = tuple(gpus)
        self._clock = clock
        self._sees_pids = _sees_pids() if sees_pids is None else sees_pids
        self._at_opening = {gpu.uuid: gpu.pids or frozenset() for gpu in self._gpus}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(gpu.uuid for gpu in self._gpus) or (HOST,)

    def facts(self) -> tuple[dict[str, Any], ...]:
        """`DeviceFacts` of each, fit for JSON; empty without a GPU."""
        return tuple(asdict(gpu.facts) for gpu in self._gpus)

    @property
    def sharing(self) -> Sharing:
        """How several processes here share compute now: as slices, through MPS, or in turns (also on a CPU)."""
        if self._gpus and all(gpu.is_slice for gpu in self._gpus):
            return "mig"
        if self._gpus and is_daemon_running(os.environ):
            return "mps"
        return "mps" if any(gpu.has_mps_clients for gpu in self._gpus) else "time-slice"

    def sample(self, time_s: float, own_pids: Collection[int] = ()) -> tuple[DeviceSample, ...]:
        if not self._gpus:
            memory = psutil.virtual_memory()
            return (DeviceSample(time_s, HOST, memory.total - memory.available, memory.available),)
        return tuple(self._sample(gpu, time_s, own_pids) for gpu in self._gpus)

    def _sample(self, gpu: NvmlDevice, time_s: float, own_pids: Collection[int]) -> DeviceSample:
        memory = gpu.memory
        return DeviceSample(
            time_s=time_s,
            device=gpu.uuid,
            used_bytes=None if memory is None else memory.used_bytes,
            free_bytes=None if memory is None else memory.free_bytes,
            kernel_resident_share=gpu.kernel_resident_share,
            sm_clock_mhz=gpu.sm_clock_mhz,
            temperature_c=gpu.temperature_c,
            power_w=gpu.power_w,
            throttle_reasons=gpu.throttle_reasons,
            foreign_pids=self._foreign(gpu, own_pids),
        )

    def _foreign(self, gpu: NvmlDevice, own_pids: Collection[int]) -> tuple[int, ...]:
        """Not ours. In a container our own have other numbers there, so only those that were there before us count."""
        there = gpu.pids or frozenset()
        strangers = there - frozenset(own_pids) if self._sees_pids else there & self._at_opening[gpu.uuid]
        return tuple(sorted(strangers))

    def held_bytes(self, pids: Collection[int]) -> dict[int, int]:
        """Of those processes that NVML tells the memory of, over all cards."""
        held: dict[int, int] = {}
        for gpu in self._gpus:
            for pid, size in gpu.bytes_by_pid.items():
                if pid in pids:
                    held[pid] = held.get(pid, 0) + size
        return held

    def used_bytes(self) -> dict[str, int | None]:
        return {s.device: s.used_bytes for s in self.sample(0.0)}

    def free_bytes(self) -> int | None:
        """On the fullest device; None if one cannot be read."""
        free = [s.free_bytes for s in self.sample(0.0)]
        return None if None in free else min(b for b in free if b is not None)

    def wait_until_released(
        self, baseline: Mapping[str, int | None], within_s: float, own_pids: Collection[int]
    ) -> Release:
        """Wait until none of these processes lives and each device's memory is back where `baseline` (an earlier
        `used_bytes()`) had it, three readings in a row; no longer than `within_s`. On the host, whose memory others
        use too, the end of the processes is enough."""
        deadline_s, n_good = self._clock.now_s() + within_s, 0
        while True:
            release = self._release(baseline, own_pids)
            n_good = n_good + 1 if release.is_released else 0
            if n_good >= (N_STABLE if self._gpus else 1):
                return release
            if self._clock.now_s() >= deadline_s:
                return Release(False, release.used_bytes, release.own_pids, release.foreign_pids)
            self._clock.sleep_s(POLL_S)

    def _release(self, baseline: Mapping[str, int | None], own_pids: Collection[int]) -> Release:
        used = self.used_bytes()
        alive = tuple(sorted(p.pid for p in existing(own_pids) if is_alive(p)))
        is_back = not self._gpus or all(_is_back(used[d], baseline.get(d)) for d in used)
        foreign = {pid for gpu in self._gpus for pid in self._foreign(gpu, own_pids)}
        return Release(is_back and not alive, used, alive, tuple(sorted(foreign)))

    def wait_until_stable(self, for_s: float, within_s: float) -> bool:
        """Whether the memory in use did not move for `for_s`: a neighbour that frees its own while a server measures
        makes it give up. True at once on the host."""
        begin_s = still_since_s = self._clock.now_s()
        last = self.used_bytes()
        while self._gpus and self._clock.now_s() - still_since_s < for_s:
            if self._clock.now_s() - begin_s >= within_s:
                return False
            self._clock.sleep_s(POLL_S)
            used = self.used_bytes()
            if not all(_is_same(used[d], last[d]) for d in used):
                last, still_since_s = used, self._clock.now_s()
        return True


class NoDevices(Devices):
    """Of servers whose machine is not ours to look at: nothing is read, so every figure of memory is missing."""

    def __init__(self) -> None:
        super().__init__(())

    def sample(self, time_s: float, own_pids: Collection[int] = ()) -> tuple[DeviceSample, ...]:
        return ()

    def free_bytes(self) -> int | None:
        return None


def open_devices(names: Sequence[str], nvml: Any = None, clock: Clock = REAL_CLOCK) -> Devices:
    """The GPUs or MIG slices with these UUIDs (or indices); none of them: the host.

    Raises Unavailable if NVML, or one of them, is not there: the host's memory never stands in for a GPU's."""
    if not names:
        return Devices((), clock)
    module = load_nvml() if nvml is None else nvml
    return Devices([NvmlDevice(module, name) for name in names], clock)


def _is_back(used: int | None, before: int | None) -> bool:
    return used is not None and before is not None and used <= before + TOLERANCE_BYTES


def _is_same(used: int | None, last: int | None) -> bool:
    return used is not None and last is not None and abs(used - last) <= TOLERANCE_BYTES


def _sees_pids() -> bool:
    try:
        return Path("/proc/self/ns/pid").readlink().name == INITIAL_PID_NAMESPACE
    except OSError:
        return True
