from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from optimizer.engines.vllm import topology as module
from optimizer.engines.vllm.topology import CoreSet, Topology, core_sets, instance_cores, read_topology, slot_cores

TWO_NODES = Topology(
    physical=tuple((i, i + 32) for i in range(32)),
    nodes=(frozenset([*range(16), *range(32, 48)]), frozenset([*range(16, 32), *range(48, 64)])),
    near_gpu={
        "GPU-a": frozenset([*range(16), *range(32, 48)]),
        "GPU-b": frozenset([*range(16, 32), *range(48, 64)]),
        "GPU-c": frozenset([*range(16, 32), *range(48, 64)]),
    },
)


def plain(n: int, quota: float | None = None) -> Topology:
    return Topology(tuple((i,) for i in range(n)), quota_cores=quota)


def uses(sets: tuple[CoreSet, ...]) -> list[set[int]]:
    return [set(cores) for s in sets for cores in (s.server, s.client)]


@pytest.mark.parametrize("n_slots", [1, 2, 3, 5, 16])
def test_no_core_has_two_uses_and_no_physical_core_is_split(n_slots: int) -> None:
    sets = core_sets(n_slots, topology=TWO_NODES)
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(uses(sets), 2))
    assert all(use >= set(core) or use.isdisjoint(core) for use in uses(sets) for core in TWO_NODES.physical)
    assert not any(s.is_shared for s in sets)
    assert {(len(s.server), len(s.client)) for s in sets} == {(len(sets[0].server), len(sets[0].client))}


def test_each_slot_is_on_its_gpus_node() -> None:
    sets = core_sets(3, [["GPU-a"], ["GPU-b"], ["GPU-c"]], topology=TWO_NODES)
    for slot, gpu in zip(sets, ("GPU-a", "GPU-b", "GPU-c"), strict=True):
        assert set(slot.server + slot.client) <= TWO_NODES.near_gpu[gpu]
    assert not set(sets[1].server) & set(sets[2].server)


def test_slots_of_several_gpus_that_meet_on_a_node_share_it_out() -> None:
    sets = core_sets(2, [["GPU-a", "GPU-b"], ["GPU-c"]], topology=TWO_NODES)
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(uses(sets), 2))
    assert set(sets[1].server) <= TWO_NODES.near_gpu["GPU-c"]


def test_without_a_gpu_slots_stay_inside_a_node() -> None:
    for slot in core_sets(4, topology=TWO_NODES):
        assert any(set(slot.server + slot.client) <= node for node in TWO_NODES.nodes)


def test_the_client_gets_a_quarter_and_no_more_than_four() -> None:
    assert [len(core_sets(1, topology=plain(n))[0].client) for n in (2, 4, 8, 12, 16, 64)] == [1, 1, 2, 3, 4, 4]
    assert len(core_sets(1, topology=plain(16), n_client_cores=6)[0].client) == 6


def test_few_cores_are_shared_and_said_so() -> None:
    [only] = core_sets(1, topology=plain(1))
    assert (only.server, only.client, only.is_shared) == ((0,), (0,), True)
    assert "share 1 physical core" in only.note
    sets = core_sets(3, topology=plain(2))
    assert all(s.is_shared and s.server == (0, 1) for s in sets)
    assert "3 slots share 2 physical core(s)" in sets[0].note


def test_two_cores_are_one_for_the_servers_and_one_for_the_client() -> None:
    assert core_sets(1, topology=plain(2)) == (CoreSet((0,), (1,)),)
    assert core_sets(1, topology=plain(2), n_client_cores=0)[0].server == (0, 1)


def test_a_quota_below_the_cores_is_told() -> None:
    [only] = core_sets(1, topology=plain(64, quota=8.0))
    assert only.is_shared
    assert "allows 8 of 64 cores" in only.note
    assert not core_sets(1, topology=plain(8, quota=8.0))[0].is_shared


def test_no_slot_is_no_question() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        core_sets(0, topology=plain(2))


# ---- one slot by itself ----------------------------------------------------------------------------------------------

EIGHT = tuple(f"GPU-{i}" for i in range(8))
NODE_OF_EIGHT = Topology(
    physical=TWO_NODES.physical,
    nodes=TWO_NODES.nodes,
    near_gpu={uuid: TWO_NODES.nodes[i // 4] for i, uuid in enumerate(EIGHT)},
)


def on_cluster(monkeypatch: pytest.MonkeyPatch, leases: list[tuple[str, ...]], n_slots: int) -> tuple[CoreSet, ...]:
    """What each slot takes on a machine of eight, where all were given the same number."""
    monkeypatch.setattr(module, "_gpus_of_machine", lambda: EIGHT)
    return tuple(slot_cores(0, n_slots, own, topology=NODE_OF_EIGHT) for own in leases)


@pytest.mark.parametrize(
    ("leases", "n_slots"),
    [
        ([(uuid,) for uuid in EIGHT], 8),
        ([("GPU-1",), ("GPU-6",), ("GPU-2",)], 3),
        ([("GPU-0", "GPU-1"), ("GPU-2", "GPU-3"), ("GPU-4", "GPU-5"), ("GPU-6", "GPU-7")], 4),
        ([("GPU-0", "GPU-2"), ("GPU-1", "GPU-3"), ("GPU-7", "GPU-4"), ("GPU-6", "GPU-5")], 4),
    ],
)
def test_slots_of_a_cluster_are_disjoint_whatever_they_were_leased(
    monkeypatch: pytest.MonkeyPatch, leases: list[tuple[str, ...]], n_slots: int
) -> None:
    sets = on_cluster(monkeypatch, leases, n_slots)
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(uses(sets), 2))
    assert {len(s.server + s.client) for s in sets} == {8 * len(leases[0])}
    for own, cores in zip(leases, sets, strict=True):
        assert set(cores.server) <= frozenset().union(*(NODE_OF_EIGHT.near_gpu[u] for u in own))
        assert not cores.is_shared


def test_a_slot_of_a_cluster_has_the_cores_it_would_have_here(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ("GPU-4", "GPU-5")
    here = slot_cores(2, 4, own, EIGHT, topology=NODE_OF_EIGHT)
    assert on_cluster(monkeypatch, [own], 4) == (here,)


def test_a_machine_with_fewer_gpus_than_another_gives_a_slot_no_more_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_gpus_of_machine", lambda: EIGHT[:2])
    small = slot_cores(0, 8, ("GPU-1",), topology=TWO_NODES)
    assert len(small.server + small.client) == 8


def test_more_gpus_than_cores_share_them_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_gpus_of_machine", lambda: EIGHT)
    few = slot_cores(0, 4, ("GPU-2", "GPU-3"), topology=plain(2))
    assert few.is_shared and few.server == (0, 1) and "4 slots share 2 physical core(s)" in few.note
    alone = slot_cores(0, 1, EIGHT, topology=plain(2))
    assert (alone.server, alone.client) == ((0,), (1,))


def test_where_the_driver_lists_nothing_the_given_number_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_gpus_of_machine", lambda: ())
    sets = tuple(slot_cores(i, 2, (name,), topology=TWO_NODES) for i, name in ((3, "GPU-x"), (4, "GPU-y")))
    assert all(a.isdisjoint(b) for a, b in itertools.combinations(uses(sets), 2))


def test_here_slots_divide_the_machine_among_those_that_run() -> None:
    two = [slot_cores(i, 2, (EIGHT[i],), EIGHT, topology=NODE_OF_EIGHT) for i in (0, 1)]
    assert tuple(two) == core_sets(2, [("GPU-0",), ("GPU-1",)], topology=NODE_OF_EIGHT)
    assert slot_cores(1, 2, topology=TWO_NODES) == core_sets(2, topology=TWO_NODES)[1]
    assert slot_cores(0, 1, n_client_cores=0, topology=plain(2)).server == (0, 1)


class ListingNvml:
    """What `list_uuids` asks, answered as for: a card, one that is lost, one cut into two of at most seven slices, one
    that cannot be cut. `test_its_questions_are_pynvmls_own` holds the names to the module."""

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if index == 1:
            raise self.NVMLError("GPU is lost")
        return f"GPU-{index}"

    def nvmlDeviceGetMigMode(self, card: str) -> list[int]:
        if card == "GPU-3":
            raise self.NVMLError("Not Supported")
        return [int(card == "GPU-2"), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, card: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, card: str, place: int) -> str:
        if place not in (0, 4):
            raise self.NVMLError("Not Found")
        return f"MIG-{place}"

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle


def test_the_driver_lists_cards_and_slices_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    from optimizer.engines.vllm import nvml

    assert nvml.list_uuids(ListingNvml()) == ("GPU-0", "MIG-0", "MIG-4", "GPU-3")
    monkeypatch.setattr(nvml, "load_nvml", ListingNvml)
    assert module._gpus_of_machine() == ("GPU-0", "MIG-0", "MIG-4", "GPU-3")


def test_its_questions_are_pynvmls_own() -> None:
    pynvml: Any = pytest.importorskip("pynvml")
    assert all(hasattr(pynvml, name) for name in vars(ListingNvml) if name.startswith("nvml"))


# ---- instances -------------------------------------------------------------------------------------------------------


def test_instances_get_whole_cores_of_their_own() -> None:
    server = core_sets(1, topology=TWO_NODES)[0].server
    own = instance_cores(server, 3, False, TWO_NODES)
    assert len({len(cores) for cores in own}) == 1
    assert all(set(a).isdisjoint(b) for a, b in itertools.combinations(own, 2))
    assert all((i in cores) == (i + 32 in cores) for cores in own for i in range(32))


def test_instances_that_share_have_all_of_them() -> None:
    assert instance_cores((0, 1, 2), 2, True, plain(4)) == ((0, 1, 2), (0, 1, 2))
    assert instance_cores((0, 1, 2), 1, False, plain(4)) == ((0, 1, 2),)


def test_too_few_cores_for_instances_of_their_own_are_refused() -> None:
    with pytest.raises(ValueError, match="need 2 physical cores; the slot's servers have 1"):
        instance_cores((0, 32), 2, False, TWO_NODES)


# ---- reading ---------------------------------------------------------------------------------------------------------


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_kernels_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_usable", lambda: {0, 1, 4, 5})
    for cpu, pair in {0: "0,4", 4: "0,4", 1: "1,5", 5: "1,5"}.items():
        write(tmp_path / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", pair + "\n")
    write(tmp_path / "devices/system/node/node0/cpulist", "0-3\n")
    write(tmp_path / "devices/system/node/node1/cpulist", "4-7\n")
    write(tmp_path / "fs/cgroup/cpu.max", "150000 100000\n")
    assert read_topology(root=tmp_path) == Topology(
        physical=((0, 4), (1, 5)), nodes=(frozenset({0, 1}), frozenset({4, 5})), quota_cores=1.5
    )


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "250000", "cpu/cpu.cfs_period_us": "100000"}, 2.5),
        ({}, None),
    ],
)
def test_quotas_of_both_kinds_of_control_groups(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    for name, text in files.items():
        write(tmp_path / "fs/cgroup" / name, text)
    assert read_topology(root=tmp_path).quota_cores == quota


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux' core sets")
def test_this_machines_cores_are_those_we_may_use() -> None:
    found = read_topology()
    assert {c for core in found.physical for c in core} == os.sched_getaffinity(0)
    [slot] = core_sets(1)
    assert set(slot.server + slot.client) <= os.sched_getaffinity(0)
