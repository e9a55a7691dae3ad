"""What slots exist: GPUs found on this machine and their kinds, or simulated slots of one CPU each.

A slot owns whole GPUs. A study is bound to one kind of GPU, since values from unequal cards cannot be compared.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from optimizer.errors import Unavailable, UserError

QUERY = ("index", "uuid", "name", "memory.total", "memory.used", "power.limit", "mig.mode.current")
IDLE_USED_MIB = 1024
"""More memory in use than this and the card is taken: an idle driver, or a desktop, holds a few hundred MiB."""
WORKERS_PER_CORE = 16
"""More simulated workers than this per core (each about 120 MB) cannot be meant."""


@dataclass(frozen=True)
class GpuClass:
    """GPUs whose results may be compared: the same card, memory, power limit and slice."""

    name: str
    memory_mib: int
    power_limit_w: int | None = None
    """None where the driver does not tell."""
    mig_profile: str = ""
    """E.g. `2g.20gb`; empty for a whole card."""

    @property
    def text(self) -> str:
        power = "" if self.power_limit_w is None else f", {self.power_limit_w} W"
        return f"{self.name} ({self.memory_mib} MiB{power}{', MIG ' + self.mig_profile if self.mig_profile else ''})"


@dataclass(frozen=True)
class Gpu:
    """One device that a server can be pinned to: a card, or a MIG slice of one."""

    index: int
    uuid: str
    kind: GpuClass
    used_mib: int | None
    """Memory in use by anybody; None for a slice, where nvidia-smi tells the whole card's only."""
    parent: str = ""
    """UUID of the card a slice belongs to."""

    @property
    def is_free(self) -> bool:
        return self.used_mib is None or self.used_mib <= IDLE_USED_MIB


@dataclass(frozen=True)
class GpuDetection:
    """The GPUs this process may use, and what was looked at."""

    gpus: tuple[Gpu, ...]
    checked: tuple[str, ...] = field(default=())
    """One phrase for each place that has no GPU to offer."""

    @property
    def text(self) -> str:
        if not self.gpus:
            return f"no GPU found: {', '.join(self.checked)}"
        return "; ".join(f"GPU {g.index}: {g.kind.text}{'' if g.is_free else ', in use'}" for g in self.gpus)


Shell = Callable[[Sequence[str]], str]


def run_nvidia_smi(arguments: Sequence[str]) -> str:
    """Raises Unavailable with its own words when it cannot be run, fails, or hangs for 20 s."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise Unavailable("nvidia-smi not on PATH")
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        raise Unavailable("nvidia-smi did not answer within 20 s") from None
    except OSError as error:
        raise Unavailable(f"nvidia-smi cannot be run ({error.strerror})") from None
    if done.returncode:
        words = " ".join((done.stdout + done.stderr).split())
        raise Unavailable(f"nvidia-smi failed with status {done.returncode} ({words[:120]})")
    return done.stdout


def detect_gpus(shell: Shell = run_nvidia_smi) -> GpuDetection:
    """As `list_gpus`, but only those that CUDA_VISIBLE_DEVICES leaves this process."""
    found = list_gpus(shell)
    return only_visible(found.gpus, os.environ.get("CUDA_VISIBLE_DEVICES")) if found.gpus else found


def list_gpus(shell: Shell = run_nvidia_smi) -> GpuDetection:
    """All of this machine, hidden or not, in nvidia-smi's order. NVIDIA only.

    Never raises: a machine whose GPUs cannot be read has none, and `checked` says why."""
    try:
        cards = parse_query(shell([f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]))
        devices = with_slices(cards, shell(["-L"])) if any(is_mig for _, is_mig in cards) else [g for g, _ in cards]
    except Unavailable as error:
        return GpuDetection((), (str(error), device_files()))
    if not devices:
        return GpuDetection((), ("nvidia-smi lists no GPU", device_files()))
    return GpuDetection(tuple(devices))


def device_files() -> str:
    found = sorted(p.name for p in Path("/dev").glob("nvidia[0-9]*"))
    return f"/dev/{' /dev/'.join(found)} present" if found else "/dev/nvidia* absent"


def parse_query(text: str) -> list[tuple[Gpu, bool]]:
    """Each card, and whether it is cut into MIG slices."""
    cards = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != len(QUERY):
            raise Unavailable(f"nvidia-smi printed {' '.join(row)[:80]!r} where a GPU's row was expected")
        index, uuid, name, total, used, power, mig = (cell.strip() for cell in row)
        kind = GpuClass(name, _whole(total) or 0, _whole(power))
        cards.append((Gpu(int(index), uuid, kind, _whole(used)), mig == "Enabled"))
    return cards


def _whole(text: str) -> int | None:
    """A figure as nvidia-smi prints it; None for `[N/A]` and its relatives."""
    try:
        return round(float(text))
    except ValueError:
        return None


def with_slices(cards: Sequence[tuple[Gpu, bool]], listing: str) -> list[Gpu]:
    """Cards that are cut into slices replaced by those slices, as `nvidia-smi -L` lists them.

    A slice's memory is its profile's nominal size; what is free on it only the server will know."""
    slices: dict[str, list[Gpu]] = {card.uuid: [] for card, _ in cards}
    by_uuid = {card.uuid: card for card, _ in cards}
    card: Gpu | None = None
    for line in listing.splitlines():
        if match := re.match(r"GPU \d+: .*\(UUID: (\S+)\)", line):
            card = by_uuid.get(match[1])
        elif card and (match := re.match(r"\s+MIG (\S*?(\d+)gb\S*)\s+Device\s+\d+: \(UUID: (\S+)\)", line)):
            kind = replace(card.kind, memory_mib=int(match[2]) * 1024, mig_profile=match[1])
            slices[card.uuid].append(Gpu(card.index, match[3], kind, None, parent=card.uuid))
    return [gpu for card, is_mig in cards for gpu in (slices[card.uuid] if is_mig else [card])]


def only_visible(gpus: tuple[Gpu, ...], visible: str | None) -> GpuDetection:
    """Those that CUDA_VISIBLE_DEVICES names, by index or by (the beginning of) a UUID, in its order.

    As CUDA does, it stops at the first name that fits nothing."""
    if visible is None:
        return GpuDetection(gpus)
    kept: list[Gpu] = []
    for name in (part.strip() for part in visible.split(",")):
        match = [g for g in gpus if name and (name == str(g.index) or g.uuid.startswith(name))]
        if not match:
            break
        kept += [g for g in match[:1] if g not in kept]
    if not kept:
        return GpuDetection((), (f"{len(gpus)} GPU(s) hidden by CUDA_VISIBLE_DEVICES={visible!r}",))
    return GpuDetection(tuple(kept))


def choose_gpus(detection: GpuDetection, wanted: GpuClass | None = None) -> tuple[Gpu, ...]:
    """The free GPUs of one kind that a study runs on: the wanted kind, else the most numerous (first one listed).

    Raises Unavailable when there is none, and says what is there instead. Other kinds stay idle."""
    if not detection.gpus:
        raise Unavailable(detection.text)
    free = [g for g in detection.gpus if g.is_free]
    if not free:
        raise Unavailable(f"every GPU is in use by other processes ({detection.text}); stop them, or wait")
    kinds = [g.kind for g in free]
    kind = wanted or max(dict.fromkeys(kinds), key=kinds.count)
    if kind not in kinds:
        raise Unavailable(
            f"this study runs on {kind.text}; free here: {'; '.join(k.text for k in dict.fromkeys(kinds))}"
        )
    return tuple(g for g in free if g.kind == kind)


def count_slots(n_gpus_each: int, gpus: Sequence[Gpu], asked: int | None) -> int:
    """How many trials run at once: as many as there are free GPUs for (simulated: as cores, at most 8), or fewer if
    asked. Two trials never share a GPU.

    Raises UserError when more are asked for than there is room."""
    if asked is not None and asked < 1:
        raise UserError(f"--workers {asked}: at least one worker is needed")
    cores = n_usable_cores()
    room = len(gpus) // n_gpus_each if n_gpus_each else cores * WORKERS_PER_CORE
    if n_gpus_each and room == 0:
        raise Unavailable(f"a trial needs {n_gpus_each} GPU(s) of one kind, {len(gpus)} are free")
    if asked is not None and asked > room:
        what = f"{len(gpus)} free GPU(s) at {n_gpus_each} a trial" if n_gpus_each else f"{cores} core(s)"
        raise UserError(f"--workers {asked}: {what} allow at most {room}; use --workers {room} or fewer")
    return asked or (room if n_gpus_each else min(cores, 8))


def n_usable_cores() -> int:
    """Cores this process may run on (a container's CPU set counts)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
