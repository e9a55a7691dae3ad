"""Who may start next: one server at a time on a card, and as many at once on a host as its memory allows.

Two servers that start together on one GPU count each other's weights as their own, or find memory freed while they
measure it. And several starts at once have run hosts out of memory that hold the running servers easily.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from optimizer.engines.vllm.host_directory import locked, subdirectory, try_lock

WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
MAX_STARTS = 16
LOOK_EVERY_S = 0.2
BOOT_BYTES = 4 * 2**30
"""Host memory that a start may need besides its weights: three processes that import torch took 2.7 GB together, and
a loader buffers more."""


@contextlib.contextmanager
def start_lock(devices: Sequence[str], need_bytes: int | None = None) -> Iterator[None]:
    """Held while one server starts on these devices (GPU UUIDs; none: the CPU); others wait, across processes.

    Leave it only when the server is ready or gone: until then it measures the device's memory. Several cards are
    locked in one order everywhere, so that two starts never wait for each other. `need_bytes`: see `start_room`."""
    with contextlib.ExitStack() as held:
        for device in sorted(set(devices)) or ["cpu"]:
            name = re.sub(r"[^\w.-]", "_", device)
            held.enter_context(locked(subdirectory("starts") / f"{name}.lock"))
        held.enter_context(start_room(BOOT_BYTES if need_bytes is None else need_bytes))
        yield


@contextlib.contextmanager
def start_room(need_bytes: int) -> Iterator[None]:
    """Held while one server starts on this host: waits until its need fits beside that of those now starting.

    The only one to start never waits: a need that is guessed too high must not stop a study."""
    descriptor = _wait_for_room(need_bytes)
    try:
        yield
    finally:
        os.close(descriptor)


def _wait_for_room(need_bytes: int) -> int:
    folder = subdirectory("starts")
    while True:
        with locked(folder / "room.lock"):
            n_starting, descriptor = _take_seat(folder)
            if descriptor is not None and (not n_starting or free_host_bytes() >= need_bytes * (n_starting + 1)):
                return descriptor
            if descriptor is not None:
                os.close(descriptor)
        time.sleep(LOOK_EVERY_S)


def _take_seat(folder: Path) -> tuple[int, int | None]:
    """How many others are starting, and a lock that says that we are."""
    n_taken, seat = 0, None
    for number in range(MAX_STARTS):
        descriptor = try_lock(folder / f"seat-{number}.lock")
        if descriptor is None:
            n_taken += 1
        elif seat is None:
            seat = descriptor
        else:
            os.close(descriptor)
    return n_taken, seat


def free_host_bytes() -> int:
    """Memory this process may still take: the host's, or what its container has left if that is less."""
    free = int(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = re.search(r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
        free = min(free, max(limit - used + (int(cached[1]) if cached else 0), 0))
    return free


def start_need_bytes(model: str, kv_bytes: int = 0) -> int:
    """What a start may need of the host: the weights pass through its memory, and on a CPU the KV cache stays there."""
    return BOOT_BYTES + kv_bytes + sum(path.stat().st_size for path in weight_files(model))


def weight_files(model: str) -> list[Path]:
    """Of a local directory; none for a name that is fetched."""
    folder = Path(model)
    return [path for pattern in WEIGHT_FILES for path in folder.glob(pattern)] if folder.is_dir() else []
