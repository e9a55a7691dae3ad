"""One GPU, or one MIG slice of one, through NVML. What the driver does not tell is None."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from optimizer.errors import Unavailable

THROTTLES = {
    0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost", 0x20: "sw_thermal", 0x40: "hw_thermal",
    0x80: "hw_power_brake", 0x100: "display_clock",
}  # fmt: skip
"""nvml.h nvmlClocksEventReason*. Idling and clocks that somebody set are no throttling, and left out."""
MPS_SERVER = "nvidia-cuda-mps-server"


@dataclass(frozen=True)
class DeviceFacts:
    """What identifies a device, for the record."""

    uuid: str
    name: str
    memory_bytes: int | None
    """Of the slice, for a MIG slice."""
    power_limit_w: float | None
    driver_version: str
    parent_uuid: str = ""
    """UUID of the card that a MIG slice belongs to."""


@dataclass(frozen=True)
class DeviceMemory:
    used_bytes: int
    free_bytes: int
    total_bytes: int


def load_nvml() -> Any:
    """The pynvml module, initialised. Raises Unavailable where there is no driver or it does not answer."""
    import pynvml as nvml

    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise Unavailable(f"NVML cannot be used ({error}); is the NVIDIA driver loaded?") from None
    return nvml


def list_uuids(nvml: Any) -> tuple[str, ...]:
    """Every device of this machine, in nvidia-smi's order: cards, and instead of a card that is cut its slices.

    The same for every process: NVML does not heed CUDA_VISIBLE_DEVICES. A card that does not answer is left out."""
    uuids: list[str] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            card = nvml.nvmlDeviceGetHandleByIndex(index)
            uuids += _slices(nvml, card) or [_text(nvml.nvmlDeviceGetUUID(card))]
        except nvml.NVMLError:
            continue
    return tuple(uuids)


def _slices(nvml: Any, card: Any) -> list[str]:
    try:
        places = range(nvml.nvmlDeviceGetMaxMigDeviceCount(card) if nvml.nvmlDeviceGetMigMode(card)[0] else 0)
    except nvml.NVMLError:  # a card that cannot be cut
        return []
    uuids = []
    for place in places:
        try:
            uuids.append(_text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, place))))
        except nvml.NVMLError:  # no slice at this place
            continue
    return uuids


class NvmlDevice:
    """Memory and processes are the slice's own; clocks, temperature and power exist for the whole card only."""

    def __init__(self, nvml: Any, name: str) -> None:
        """`name`: a UUID (`GPU-…`, `MIG-…`) or an index. Raises Unavailable for one that NVML does not know."""
        self._nvml = nvml
        try:
            self._handle = (
                nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)
            )
            self.uuid = _text(nvml.nvmlDeviceGetUUID(self._handle))
            self.is_slice = self.uuid.startswith("MIG-")
            card = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._handle) if self.is_slice else self._handle
        except nvml.NVMLError as error:
            raise Unavailable(f"GPU {name}: NVML says {error}; `nvidia-smi -L` lists what there is") from None
        self._card = card

    def _ask(self, question: str, *arguments: Any) -> Any:
        """The answer, or None where this card, driver or permission gives none."""
        try:
            return getattr(self._nvml, question)(*arguments)
        except (self._nvml.NVMLError, AttributeError):
            return None

    @property
    def facts(self) -> DeviceFacts:
        memory, limit_mw = self.memory, self._ask("nvmlDeviceGetEnforcedPowerLimit", self._card)
        return DeviceFacts(
            uuid=self.uuid,
            name=_text(self._ask("nvmlDeviceGetName", self._handle) or ""),
            memory_bytes=None if memory is None else memory.total_bytes,
            power_limit_w=None if limit_mw is None else limit_mw / 1e3,
            driver_version=_text(self._ask("nvmlSystemGetDriverVersion") or ""),
            parent_uuid=_text(self._ask("nvmlDeviceGetUUID", self._card) or "") if self.is_slice else "",
        )

    @property
    def memory(self) -> DeviceMemory | None:
        read = self._ask("nvmlDeviceGetMemoryInfo", self._handle)
        return None if read is None else DeviceMemory(int(read.used), int(read.free), int(read.total))

    @property
    def kernel_resident_share(self) -> float | None:
        """None for a slice: the card's says nothing about it."""
        rates = None if self.is_slice else self._ask("nvmlDeviceGetUtilizationRates", self._card)
        return None if rates is None else rates.gpu / 100

    @property
    def sm_clock_mhz(self) -> float | None:
        return _number(self._ask("nvmlDeviceGetClockInfo", self._card, 1))

    @property
    def temperature_c(self) -> float | None:
        return _number(self._ask("nvmlDeviceGetTemperature", self._card, 0))

    @property
    def power_w(self) -> float | None:
        """Of the whole card, whoever draws it."""
        return _number(self._ask("nvmlDeviceGetPowerUsage", self._card), 1e-3)

    @property
    def throttle_reasons(self) -> tuple[str, ...]:
        mask = self._ask("nvmlDeviceGetCurrentClocksEventReasons", self._card)
        mask = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", self._card) if mask is None else mask
        return tuple(name for bit, name in THROTTLES.items() if mask and mask & bit)

    @property
    def pids(self) -> frozenset[int] | None:
        """Processes that compute on it, MPS clients included, the MPS server left out."""
        plain = self._ask("nvmlDeviceGetComputeRunningProcesses", self._handle)
        if plain is None:
            return None
        clients = self._ask("nvmlDeviceGetMPSComputeRunningProcesses", self._handle) or []
        return frozenset(p.pid for p in [*plain, *clients] if not self._is_mps_server(p.pid))

    @property
    def bytes_by_pid(self) -> dict[int, int]:
        """Memory of each process that computes on it, where the driver tells (in containers and on WSL not)."""
        plain = self._ask("nvmlDeviceGetComputeRunningProcesses", self._handle) or []
        held = {p.pid: getattr(p, "usedGpuMemory", None) for p in plain}
        return {pid: int(size) for pid, size in held.items() if size}

    @property
    def has_mps_clients(self) -> bool:
        if self._ask("nvmlDeviceGetMPSComputeRunningProcesses", self._handle):
            return True
        plain = self._ask("nvmlDeviceGetComputeRunningProcesses", self._handle) or []
        return any(self._is_mps_server(p.pid) for p in plain)

    def _is_mps_server(self, pid: int) -> bool:
        return MPS_SERVER in _text(self._ask("nvmlSystemGetProcessName", pid) or "")

    @property
    def cores(self) -> frozenset[int] | None:
        """CPU cores near the card, as the driver tells."""
        words = self._ask("nvmlDeviceGetCpuAffinity", self._card, 64)
        if words is None:
            return None
        return frozenset(64 * i + bit for i, word in enumerate(words) for bit in range(64) if int(word) >> bit & 1)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _number(value: Any, scale: float = 1.0) -> float | None:
    return None if value is None else float(value) * scale
