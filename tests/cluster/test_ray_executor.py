"""The Ray executor's own life: slots, closing, other clusters, leased GPUs. What executors share is in the contract."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from optimizer.cluster.executor import Finished
from optimizer.cluster.ray_executor import RayExecutor
from optimizer.cluster.slots import GpuClass, n_usable_cores
from optimizer.cluster.supervision import LocalRay, local_environment
from optimizer.engines.build import SimulatedEngineSpec
from optimizer.engines.engine import Engine, Instance, LoadPlan, Placement
from optimizer.engines.simulator.engine import SimulatorSpec
from optimizer.errors import OptimizerError, Unavailable, UserError
from optimizer.processes import is_alive
from optimizer.trial import Broken, Measured, TrialPlan
from optimizer.workload.trace import Trace
from search_spaces.config import Config
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model
from tests.forwarding_engine import ForwardingEngine

sys.path.insert(0, str(Path(__file__).parents[1] / "contract"))
from faulty_engines import FaultyEngineSpec

pytestmark = [pytest.mark.ray, pytest.mark.slow]

SIMULATOR = SimulatedEngineSpec(SimulatorSpec(model=find_model("Qwen3-8B"), gpu=find_gpu("A100-80")))
A100 = GpuClass("NVIDIA A100-SXM4-80GB", 81920, 400)
L4 = GpuClass("NVIDIA L4", 23034, 72)


def plan(trial: int) -> TrialPlan:
    trace = Trace(np.array([0.0]), np.array([100], np.int32), np.array([10], np.int32), np.array([0], np.int16))
    load = LoadPlan("steady", trace, n_warmup=0, offered_per_s=None, time_limit_s=60.0)
    placement = Placement((Instance("server", Config({"max_num_seqs": 8, "max_model_len": 4096}), ("default",)),))
    return TrialPlan(trial=trial, run=0, purpose="search", placement=placement, loads=(load,), seed=trial)


def collect(executor: RayExecutor, n: int) -> list[Finished]:
    found: list[Finished] = []
    for _ in range(12):
        found += executor.wait(5.0) if len(found) < n else ()
    return found


@dataclass(frozen=True)
class OnGpu:
    """The simulator in a slot that owns a GPU: Ray leases cards it is told of, whether they are there or not."""

    inner: SimulatedEngineSpec
    n_gpus: int = 1

    def build(self) -> Engine:
        return self.inner.build()

    def build_for(self, slot: int, n_slots: int, gpu_uuids: tuple[str, ...]) -> Engine:
        return self.build()


@dataclass(frozen=True)
class UnequalVersions(OnGpu):
    """A cluster of which one L4's node has another version than the other's."""

    def build_for(self, slot: int, n_slots: int, gpu_uuids: tuple[str, ...]) -> Engine:
        return OtherVersion(self.build()) if gpu_uuids == ("GPU-cccc",) else self.build()


class OtherVersion(ForwardingEngine):
    @property
    def identity(self) -> str:
        return "vLLM 0.31.1"


def test_close_stops_engines_leaves_no_process_and_more_workers_than_cores_do_not_wait(tmp_path: Path) -> None:
    n_slots = n_usable_cores() + 1
    stops = tmp_path / "stops"
    executor = RayExecutor(FaultyEngineSpec(SIMULATOR, str(stops)), study="close", n_slots=n_slots)
    try:
        assert executor.n_slots == n_slots
        with pytest.raises(Unavailable, match="has a Ray executor open"):
            RayExecutor(SIMULATOR, study="second")
        for trial in range(2 * n_slots):
            executor.submit(plan(trial))
        assert all(isinstance(f.outcome, Measured) for f in collect(executor, 2 * n_slots))
        assert executor._local is not None
        processes = executor._local.processes()
        n_idle = sum(slot.stage == "idle" for slot in executor._slots)
        stops.write_text("")
    finally:
        executor.close()
    assert not any(map(is_alive, processes)) and len(processes) > n_slots
    assert len(set(stops.read_text().split())) == n_idle >= 1
    executor.close()
    with pytest.raises(Unavailable, match="closed"):
        executor.submit(plan(0))


def test_closing_while_ray_still_starts_leaves_no_process() -> None:
    executor = RayExecutor(SIMULATOR, study="early", n_slots=1)
    executor.submit(plan(0))
    assert executor.wait(0.3) == () and executor.n_outstanding == 1
    assert executor._local is not None
    processes = executor._local.processes()
    executor.close()
    assert processes and not any(map(is_alive, processes))


NVIDIA_SMI = """#!/bin/sh
echo "0, GPU-aaaa, NVIDIA L4, 23034, 4, 72.00, [N/A]"
echo "1, GPU-bbbb, NVIDIA A100-SXM4-80GB, 81920, 4, 400.00, Disabled"
echo "2, GPU-cccc, NVIDIA L4, 23034, 4, 72.00, [N/A]"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A head that is there already, with 3 CPUs and 3 unequal GPUs: so Ray is told, and so nvidia-smi prints."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "nvidia-smi").write_text(NVIDIA_SMI)
    (folder / "nvidia-smi").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch, local_environment():
        patch.setenv("PATH", str(folder), prepend=os.pathsep)
        local = LocalRay(3, ("GPU-aaaa", "GPU-bbbb", "GPU-cccc"))
        try:
            yield local.address(90)
        finally:
            local.close()


def test_a_cluster_that_is_there_is_used_and_left_running(cluster: str) -> None:
    for study in ("first", "second"):
        with RayExecutor(SIMULATOR, study=study, address=cluster) as executor:
            assert executor.n_slots == 3
            executor.submit(plan(0))
            (finished,) = collect(executor, 1)
            assert isinstance(finished.outcome, Measured)


@pytest.mark.parametrize(
    ("spec", "n_slots", "said"),
    [
        (SIMULATOR, 4, r"has room for 3 worker\(s\) \(127.0.0.1: 3\), each needs 1 CPU; asked for 4: use --workers 3"),
        (OnGpu(SIMULATOR, 4), None, r"room for 0 worker\(s\) .* each needs 4 GPU\(s\) and 1 CPU on one node"),
    ],
)
def test_what_a_cluster_cannot_hold_is_refused(cluster: str, spec: OnGpu, n_slots: int | None, said: str) -> None:
    with (
        RayExecutor(spec, study="full", address=cluster, n_slots=n_slots) as executor,
        pytest.raises(UserError, match=said),
    ):
        executor.submit(plan(0))
        executor.wait(30.0)


@pytest.mark.parametrize(("kind", "uuids"), [(L4, {"GPU-aaaa", "GPU-cccc"}), (A100, {"GPU-bbbb"})])
def test_a_study_uses_its_kind_of_gpu_only_and_no_card_twice(  # cases TOOL-01, GPU-02
    cluster: str, kind: GpuClass, uuids: set[str]
) -> None:
    n_slots = len(uuids)
    with RayExecutor(OnGpu(SIMULATOR), study="kind", address=cluster, gpu_class=kind, n_slots=n_slots) as executor:
        for trial in range(4):
            executor.submit(plan(trial))
        outcomes = [f.outcome for f in collect(executor, 4)]
        assert all(isinstance(o, Measured) for o in outcomes) and len(outcomes) == 4
        while any(slot.stage in ("badge", "prepare") for slot in executor._slots):
            executor.submit(plan(9))
            executor.wait(1.0)
        working = [slot.badge.leased for slot in executor._slots if slot.stage != "retired" and slot.badge]
        assert sorted(working) == sorted((uuid,) for uuid in uuids)
        assert executor.n_slots == n_slots


def test_a_kind_that_no_node_has_is_refused_with_what_there_is(cluster: str) -> None:  # case GPU-02
    wanted = GpuClass("NVIDIA H100 80GB HBM3", 81559, 700)
    with RayExecutor(OnGpu(SIMULATOR), study="absent", address=cluster, gpu_class=wanted) as executor:
        executor.submit(plan(0))
        (finished,) = collect(executor, 1)
        assert isinstance(finished.outcome, Broken)
        assert "runs on NVIDIA H100" in finished.outcome.cause and "has NVIDIA L4" in finished.outcome.cause


def test_a_card_named_as_in_the_table_is_found_wherever_it_is(cluster: str) -> None:  # case GPU-02
    with RayExecutor(OnGpu(SIMULATOR), study="named", address=cluster, gpu_name="A100-80", n_slots=1) as executor:
        assert executor.engine_identity == ""
        executor.submit(plan(0))
        (finished,) = collect(executor, 1)
        assert isinstance(finished.outcome, Measured)
        assert [slot.badge.leased for slot in executor._slots if slot.stage == "idle" and slot.badge] == [("GPU-bbbb",)]
        assert executor.engine_identity == SIMULATOR.build().identity
        assert all("runs on A100-80" in notice and "has NVIDIA L4" in notice for notice in executor.notices)


def test_workers_with_another_engine_than_the_drivers_stay_idle(cluster: str) -> None:
    spec, mine = UnequalVersions(SIMULATOR), SIMULATOR.build().identity
    with RayExecutor(spec, study="engines", address=cluster, gpu_class=L4, identity=mine, n_slots=1) as executor:
        executor.submit(plan(0))
        (finished,) = collect(executor, 1)
        assert isinstance(finished.outcome, Measured)
        while any(slot.stage in ("badge", "prepare") for slot in executor._slots):
            executor.submit(plan(9))
            executor.wait(1.0)
        assert [s.badge.leased for s in executor._slots if s.stage != "retired" and s.badge] == [("GPU-aaaa",)]
        (stranger,) = [s for s in executor._slots if s.badge and s.badge.leased == ("GPU-cccc",)]
        assert stranger.cause == "not needed" or (f"measures {mine}" in stranger.cause and "0.31.1" in stranger.cause)


def test_unequal_engines_end_a_study_that_knows_none(cluster: str) -> None:
    with RayExecutor(UnequalVersions(SIMULATOR), study="versions", address=cluster, gpu_class=L4) as executor:
        executor.submit(plan(0))
        with pytest.raises(UserError, match="its results would not compare: install one version on every node"):
            while executor.wait(5.0) or any(slot.stage in ("badge", "prepare") for slot in executor._slots):
                executor.submit(plan(0))


def test_unequal_gpus_are_refused_by_a_study_that_names_none(cluster: str) -> None:  # case GPU-02
    with RayExecutor(OnGpu(SIMULATOR), study="mixed", address=cluster) as executor:
        executor.submit(plan(0))
        with pytest.raises(UserError, match="say which of them the study is for"):
            deadline = time.monotonic() + 60  # the second worker may start long after the first has run ten plans
            while time.monotonic() < deadline:
                executor.wait(5.0)
                executor.submit(plan(0))


def test_a_stranger_is_refused_before_its_first_trial(cluster: str) -> None:
    executor = RayExecutor(SIMULATOR, study="stranger", address=cluster)
    mine = executor._admission.driver
    executor._admission.driver = replace(mine, identity=replace(mine.identity, version="9.9", package_hash="0" * 64))
    with (
        executor,
        pytest.raises(UserError, match=f"(?s)runs .*{mine.identity.package_hash[:12]}.* this command runs .* 9.9"),
    ):
        executor.submit(plan(0))
        executor.wait(30.0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"n_slots": 0}, "--workers 0"),
        ({"n_slots": 10**6}, "--workers 1000000"),
        ({"address": "127.0.0.1:1"}, "no Ray head answers"),
    ],
)
def test_bad_options_are_refused_when_built_and_start_nothing(options: dict[str, object], said: str) -> None:
    before = set(psutil.Process().children())
    with pytest.raises(OptimizerError, match=said):
        RayExecutor(SIMULATOR, study="bad", **options)  # type: ignore[arg-type]
    assert set(psutil.Process().children()) == before
