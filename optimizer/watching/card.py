"""Which card a local server runs on: the GPUs that its processes hold memory of, by NVML; or the host's CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from optimizer.engines.vllm.devices import Devices, NoDevices
from optimizer.engines.vllm.nvml import NvmlDevice, list_uuids, load_nvml
from optimizer.errors import Unavailable, UserError
from optimizer.watching.local import LocalServer
from search_spaces.cpu import host_cpu
from search_spaces.hardware import GpuFacts, find_gpu

DRIVERS = ("libcuda.so", "libamdhip64.so", "libtpu.so", "libze_loader.so", "libhccl.so", "libhabanalabs")
"""What a process that computes on an accelerator has loaded: NVIDIA, AMD, TPU, Intel, Ascend, Gaudi."""


@dataclass(frozen=True)
class Card:
    facts: GpuFacts | None
    devices: Devices
    notes: tuple[str, ...] = ()


def find_card(local: LocalServer, named: str | None, nvml: Any = None) -> Card:
    """`named`: what the user says it is. Raises UserError for a name that is no card's."""
    if (named or "").upper() == "CPU" or (named is None and local.is_seen and not _drivers(local)):
        host = host_cpu(psutil.virtual_memory().total, local.n_cores or psutil.cpu_count() or 1)
        return Card(host, Devices(()) if local.is_seen else NoDevices())
    devices, notes = _devices(local, nvml) if local.is_seen else ((), ())
    facts, more = _facts(named, devices)
    return Card(facts, Devices(devices) if devices else NoDevices(), (*notes, *more))


def _devices(local: LocalServer, nvml: Any) -> tuple[tuple[NvmlDevice, ...], tuple[str, ...]]:
    try:
        module = load_nvml() if nvml is None else nvml
        every = tuple(NvmlDevice(module, uuid) for uuid in list_uuids(module))
    except Unavailable as error:
        return (), (f"its GPU is not watched: {error}",)
    own = frozenset(local.pids())
    held = tuple(gpu for gpu in every if own & (gpu.pids or frozenset()))
    if held or len(every) == 1:
        return held or every, ()
    return (), (
        f"which of this machine's {len(every)} GPUs it runs on cannot be told (a container?): they are not watched",
    )


def _facts(named: str | None, devices: Sequence[NvmlDevice]) -> tuple[GpuFacts | None, tuple[str, ...]]:
    if named is not None:
        try:
            return find_gpu(named), ()
        except ValueError as error:
            raise UserError(f"--gpu: {error}") from None
    if not devices:
        return None, ("the card is not known (--gpu NAME gives it): no roofline",)
    name = devices[0].facts.name
    try:
        return find_gpu(name), ()
    except ValueError:
        return None, (f"{name} is not among the known cards (--gpu NAME takes a near one): no roofline",)


def _drivers(local: LocalServer) -> frozenset[str]:
    """Accelerator libraries that its processes have loaded; a CPU build loads none. Where that cannot be read (not on
    Linux, or another user's processes) CUDA is assumed, so that a GPU's server is never taken for a CPU's."""
    found: set[str] = set()
    for pid in local.pids():
        try:
            maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        except OSError:
            return frozenset({"libcuda.so"})
        found |= {name for name in DRIVERS if name in maps}
    return frozenset(found)
