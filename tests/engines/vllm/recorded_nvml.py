"""pynvml as the optimizer calls it, answering with recorded facts. A fact that is not recorded is not supported.

The names, arguments and error class are pynvml's own; the last test of `test_devices.py` holds them to the module."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

GIB = 1024**3


class NVMLError(Exception):
    pass


@dataclass
class Card:
    """A GPU or a slice. Each list of readings is consumed from the front; its last stays."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    total_bytes: int | None = 80 * GIB
    used_bytes: list[int] = field(default_factory=lambda: [0])
    resident_percent: int | None = 0
    sm_mhz: list[int] = field(default_factory=list)
    celsius: list[int] = field(default_factory=list)
    milliwatts: int | None = None
    limit_milliwatts: int | None = None
    throttle_mask: list[int] = field(default_factory=list)
    pids: list[int] | None = field(default_factory=list)
    mps_pids: list[int] = field(default_factory=list)
    pid_bytes: dict[int, int] = field(default_factory=dict)
    """Of those whose memory the driver tells."""
    parent: Card | None = None
    cpu_words: list[int] | None = None


def _next(readings: list[Any]) -> Any:
    if not readings:
        raise NVMLError("Not Supported")
    return readings.pop(0) if len(readings) > 1 else readings[0]


def _known(value: Any) -> Any:
    if value is None:
        raise NVMLError("Not Supported")
    return value


class RecordedNvml:
    NVMLError = NVMLError

    def __init__(self, *cards: Card, driver: str = "570.86.15", names: dict[int, str] | None = None) -> None:
        self.cards, self.driver, self.names = cards, driver, names or {}

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len([c for c in self.cards if c.parent is None])

    def nvmlDeviceGetMigMode(self, card: Card) -> list[int]:
        raise NVMLError("Not Supported")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:
        for card in self.cards:
            if card.uuid == uuid:
                return card
        raise NVMLError("Not Found")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        whole = [c for c in self.cards if c.parent is None]
        if index >= len(whole):
            raise NVMLError("Invalid Argument")
        return whole[index]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, card: Card) -> Card:
        return _known(card.parent)

    def nvmlDeviceGetUUID(self, card: Card) -> str:
        return card.uuid

    def nvmlDeviceGetName(self, card: Card) -> str:
        return card.name

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.driver

    def nvmlSystemGetProcessName(self, pid: int) -> str:
        return _known(self.names.get(pid))

    def nvmlDeviceGetEnforcedPowerLimit(self, card: Card) -> int:
        return _known(card.limit_milliwatts)

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> SimpleNamespace:
        total, used = _known(card.total_bytes), _next(card.used_bytes)
        return SimpleNamespace(total=total, used=used, free=total - used)

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> SimpleNamespace:
        return SimpleNamespace(gpu=_known(card.resident_percent), memory=0)

    def nvmlDeviceGetClockInfo(self, card: Card, kind: int) -> int:
        assert kind == 1  # NVML_CLOCK_SM
        return _next(card.sm_mhz)

    def nvmlDeviceGetTemperature(self, card: Card, sensor: int) -> int:
        assert sensor == 0  # NVML_TEMPERATURE_GPU
        return _next(card.celsius)

    def nvmlDeviceGetPowerUsage(self, card: Card) -> int:
        return _known(card.milliwatts)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, card: Card) -> int:
        return _next(card.throttle_mask)

    def nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=card.pid_bytes.get(pid)) for pid in _known(card.pids)]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, card: Card) -> list[SimpleNamespace]:
        return [SimpleNamespace(pid=pid) for pid in card.mps_pids]

    def nvmlDeviceGetCpuAffinity(self, card: Card, n_words: int) -> list[int]:
        words = _known(card.cpu_words)
        return words + [0] * (n_words - len(words))
