"""Which CPU cores a slot's servers run on, and which are left to its client.

A server that shares cores with another slot's, or with the client that times it, is measured with their noise in it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import TypeVar

from optimizer.errors import Unavailable

T = TypeVar("T")
Cores = tuple[int, ...]
MAX_CLIENT_CORES = 4
"""Physical cores; more client processes than that never had work in any replay planned here."""


@dataclass(frozen=True)
class CoreSet:
    """One slot's cores, as the kernel numbers them."""

    server: Cores
    client: Cores
    is_shared: bool = False
    """Client and servers, or two slots, run on the same cores."""
    note: str = ""
    """Why they do, or what else to know; empty if there is nothing."""


@dataclass(frozen=True)
class Topology:
    """The cores this process may use."""

    physical: tuple[Cores, ...]
    """Each physical core's hyperthreads, in the order of their first."""
    nodes: tuple[frozenset[int], ...] = ()
    """Each NUMA node's cores; empty: unknown, all on one."""
    quota_cores: float | None = None
    """What the control group lets them use together; None: no bound."""
    near_gpu: dict[str, frozenset[int]] = field(default_factory=dict)
    """GPU UUID -> cores of its NUMA node."""

    @property
    def n_cores(self) -> int:
        return sum(map(len, self.physical))


def core_sets(
    n_slots: int,
    gpu_uuids_by_slot: Sequence[Sequence[str]] | None = None,
    *,
    n_client_cores: int | None = None,
    topology: Topology | None = None,
) -> tuple[CoreSet, ...]:
    """A core set for each slot, disjoint wherever there are enough physical cores, on its GPU's NUMA node.

    `n_client_cores`: physical cores of each slot for its client; None: a quarter, at least 1 and at most 4; 0: the
    client shares the servers'. Hyperthreads of one core are never split between two uses."""
    if n_slots < 1:
        raise ValueError(f"at least one slot is needed, got {n_slots}")
    machine = topology or read_topology([u for slot in gpu_uuids_by_slot or () for u in slot])
    near = [_near(g, machine) for g in gpu_uuids_by_slot] if gpu_uuids_by_slot else _spread(n_slots, machine)
    cores, n_sharing = _deal(near, machine)
    return tuple(_with_quota(_split(own, n_sharing, n_client_cores), machine, n_slots) for own in cores)


def slot_cores(
    slot: int,
    n_slots: int,
    own: Sequence[str] = (),
    of_study: Sequence[str] = (),
    *,
    n_client_cores: int | None = None,
    topology: Topology | None = None,
) -> CoreSet:
    """The core set of one slot, as it works it out by itself; `n_client_cores` as in `core_sets`.

    `own`: UUIDs of its GPUs. `of_study`: of all that the study has on this machine, each slot's side by side; empty on
    a cluster, where a slot does not know what others were leased. There every GPU of the machine has its share of the
    cores, so that slots are disjoint whichever GPUs they got."""
    if not own:
        return core_sets(n_slots, n_client_cores=n_client_cores, topology=topology)[slot]
    n = len(own)
    chunks = [tuple(of_study[i : i + n]) for i in range(0, len(of_study) - n + 1, n)][:n_slots]
    place = next((i for i, chunk in enumerate(chunks) if set(chunk) == set(own)), None)
    if place is not None:
        return core_sets(n_slots, chunks, n_client_cores=n_client_cores, topology=topology)[place]
    every = tuple(of_study) if set(own) <= set(of_study) else _gpus_of_machine()
    if not set(own) <= set(every):
        return core_sets(n_slots, [own] * n_slots, n_client_cores=n_client_cores, topology=topology)[slot % n_slots]
    return _shares_of(own, every, n_slots, n_client_cores, topology or read_topology(every))


def _shares_of(
    own: Sequence[str], every: Sequence[str], n_slots: int, n_client_cores: int | None, machine: Topology
) -> CoreSet:
    """A machine that could hold fewer slots than `n_slots`, the most of any, deals shares as if it held as many."""
    n_missing = max(0, n_slots * len(own) - len(every))
    dealt, n_sharing = _deal([_near((u,), machine) for u in (*every, *islice(cycle(every), n_missing))], machine)
    mine = dict.fromkeys(core for uuid, cores in zip(every, dealt, strict=False) if uuid in own for core in cores)
    cores = _split(tuple(mine), -(-n_sharing // len(own)), n_client_cores)
    return _with_quota(cores, machine, max(n_slots, len(every) // len(own)))


def _deal(near: Sequence[frozenset[int]], machine: Topology) -> tuple[list[tuple[Cores, ...]], int]:
    """Each slot's physical cores, and how many slots run on them.

    As many for every slot as the worst placed can have, so that trials on different slots can be compared; where
    that is none, all that are near, together with the others."""
    pools = [tuple(c for c in machine.physical if c[0] in node) or machine.physical for node in near]
    n_rivals = [sum(bool(set(pool) & set(other)) for other in pools) for pool in pools]
    n_each = min(len(pool) // n for pool, n in zip(pools, n_rivals, strict=True))
    if n_each == 0:
        return list(pools), max(n_rivals)
    taken: set[Cores] = set()
    dealt = []
    for pool in pools:
        dealt.append(tuple(c for c in pool if c not in taken)[:n_each])
        taken |= set(dealt[-1])
    return dealt, 1


def _near(uuids: Sequence[str], machine: Topology) -> frozenset[int]:
    """Cores near any of a slot's GPUs; all of them where the driver does not tell."""
    known = [machine.near_gpu[u] for u in uuids if u in machine.near_gpu]
    return frozenset().union(*known) if known else frozenset(c for core in machine.physical for c in core)


def _spread(n_slots: int, machine: Topology) -> list[frozenset[int]]:
    """Slots over NUMA nodes, neighbours together; with fewer slots than nodes each gets whole nodes."""
    usable = frozenset(c for core in machine.physical for c in core)
    nodes = [n & usable for n in machine.nodes if n & usable] or [usable]
    if n_slots >= len(nodes):
        return [nodes[slot * len(nodes) // n_slots] for slot in range(n_slots)]
    return [frozenset().union(*_run(nodes, slot, n_slots)) for slot in range(n_slots)]


def _run(things: Sequence[T], place: int, n: int) -> Sequence[T]:
    """The place-th of n runs, as equal as they can be."""
    return things[place * len(things) // n : (place + 1) * len(things) // n]


def _split(cores: tuple[Cores, ...], n_slots: int, n_client: int | None) -> CoreSet:
    n_client = max(1, min(len(cores) // 4, MAX_CLIENT_CORES)) if n_client is None else n_client
    everything = _flat(cores)
    if n_slots > 1:
        return CoreSet(everything, everything, True, f"{n_slots} slots share {len(cores)} physical core(s)")
    if n_client == 0:
        return CoreSet(everything, everything, True, "the client shares the servers' cores, as asked")
    if len(cores) <= n_client:
        return CoreSet(everything, everything, True, f"servers and client share {len(cores)} physical core(s)")
    return CoreSet(_flat(cores[:-n_client]), _flat(cores[-n_client:]))


def _with_quota(cores: CoreSet, machine: Topology, n_slots: int) -> CoreSet:
    """A quota below the number of cores throttles every slot at once, whatever it is pinned to."""
    quota = machine.quota_cores
    if quota is None or quota >= machine.n_cores:
        return cores
    note = f"the control group allows {quota:g} of {machine.n_cores} cores to {n_slots} slot(s) together"
    return CoreSet(cores.server, cores.client, True, "; ".join(filter(None, (cores.note, note))))


def _flat(cores: Sequence[Cores]) -> Cores:
    return tuple(sorted(c for core in cores for c in core))


def instance_cores(
    server_cores: Cores, n_instances: int, is_shared: bool, topology: Topology | None = None
) -> tuple[Cores, ...]:
    """Each instance's cores out of a slot's: all of them, or equally many whole physical cores each.

    Raises ValueError when there are too few for each to have one of its own."""
    if is_shared or n_instances == 1:
        return (server_cores,) * n_instances
    whole = [tuple(c for c in core if c in server_cores) for core in (topology or read_topology()).physical]
    cores = tuple(c for c in whole if c) or tuple((c,) for c in server_cores)
    if len(cores) < n_instances:
        raise ValueError(
            f"{n_instances} instances with cores of their own need {n_instances} physical cores; the slot's servers "
            f"have {len(cores)}: let them share cores, or run fewer slots"
        )
    n_each = len(cores) // n_instances
    return tuple(_flat(cores[i * n_each : (i + 1) * n_each]) for i in range(n_instances))


def read_topology(gpu_uuids: Sequence[str] = (), root: Path = Path("/sys")) -> Topology:
    """This machine's, as far as it tells: without Linux's /sys every core stands alone on one node."""
    usable = _usable()
    cpus = root / "devices/system/cpu"
    siblings = {c: _core_list(cpus / f"cpu{c}/topology/thread_siblings_list") & usable or {c} for c in sorted(usable)}
    physical = tuple(dict.fromkeys(tuple(sorted(s)) for s in siblings.values()))
    nodes = [_core_list(p) & usable for p in sorted((root / "devices/system/node").glob("node[0-9]*/cpulist"))]
    return Topology(
        physical=physical,
        nodes=tuple(frozenset(n) for n in nodes if n),
        quota_cores=_quota(root / "fs/cgroup"),
        near_gpu={u: cores for u in gpu_uuids if (cores := _near_gpu(u))},
    )


def _usable() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _core_list(path: Path) -> set[int]:
    """`0-3,8` as numbers; empty where there is no such file."""
    try:
        parts = [p.split("-") for p in path.read_text().strip().split(",") if p]
    except OSError:
        return set()
    return {c for p in parts for c in range(int(p[0]), int(p[-1]) + 1)}


def _quota(cgroup: Path) -> float | None:
    """cpu.max (version 2), else cfs_quota_us over cfs_period_us (version 1)."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota_us = int((cgroup / "cpu/cpu.cfs_quota_us").read_text())
        return None if quota_us < 0 else quota_us / int((cgroup / "cpu/cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return None


def _gpus_of_machine() -> tuple[str, ...]:
    """UUIDs, in the driver's order; empty where there is none to ask."""
    from optimizer.engines.vllm.nvml import list_uuids, load_nvml

    try:
        return list_uuids(load_nvml())
    except Unavailable:
        return ()


def _near_gpu(uuid: str) -> frozenset[int] | None:
    from optimizer.engines.vllm.nvml import NvmlDevice, load_nvml

    try:
        return NvmlDevice(load_nvml(), uuid).cores
    except Unavailable:
        return None
