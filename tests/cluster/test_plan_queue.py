"""PlanQueue and Fitness: which plan a slot gets next, and when a slot gets none any more."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from objectives.measurement import Measurement
from optimizer.cluster.executor import NO_SLOT, NoSlotLeft
from optimizer.cluster.fitness import Fitness
from optimizer.cluster.inline import InlineExecutor
from optimizer.cluster.lease import slot_on_node
from optimizer.cluster.plan_queue import PlanQueue, key_of
from optimizer.cluster.slots import Gpu, GpuClass
from optimizer.engines.build import EngineSpec
from optimizer.engines.engine import BootReport, Engine, Instance, Placement
from optimizer.engines.simulator.engine import SimulatedEngine, SimulatorSpec
from optimizer.errors import EngineFailed
from optimizer.trial import Broken, Measured, TrialPlan
from search_spaces.config import Config
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model
from tests.forwarding_engine import ForwardingEngine


def plan(trial: int, seqs: int, *, is_fresh: bool = False) -> TrialPlan:
    placement = Placement((Instance("server", Config({"max_num_seqs": seqs}), ("default",)),))
    return TrialPlan(trial, 0, "search", placement, (), seed=trial, is_fresh=is_fresh)


def queue(*plans: TrialPlan) -> PlanQueue:
    made = PlanQueue()
    for each in plans:
        made.add(each)
    return made


def order(made: PlanQueue) -> list[int]:
    """One slot, alone, until nothing is left."""
    key, found = "", []
    while (taken := made.take(key)) is not None:
        key = key_of(taken)
        found.append(taken.trial)
    return found


def test_one_slot_goes_on_with_the_servers_that_are_up() -> None:
    made = queue(plan(0, 8), plan(1, 16), plan(2, 32), plan(3, 16), plan(4, 8), plan(5, 32))
    assert order(made) == [0, 4, 1, 3, 2, 5]


def test_a_fresh_run_keeps_its_place() -> None:
    assert order(queue(plan(0, 8), plan(1, 16), plan(2, 8, is_fresh=True), plan(3, 8))) == [0, 3, 1, 2]


def test_a_slot_leaves_alone_what_another_is_up_for_while_there_is_something_else() -> None:
    made = queue(plan(0, 8), plan(1, 16))
    other = {key_of(plan(9, 8))}
    first = made.take("", other)
    assert first is not None and first.trial == 1
    second = made.take("", other)
    assert second is not None and second.trial == 0


def test_a_delayed_plan_waits_and_others_pass_it() -> None:
    made = PlanQueue()
    made.add(plan(0, 8), delay_s=0.2)
    made.add(plan(1, 16))
    assert [t.trial if (t := made.take("")) else None for _ in range(2)] == [1, None]
    pause_s = made.until_ready_s()
    assert pause_s is not None and 0 < pause_s <= 0.2 and len(made) == 1
    time.sleep(pause_s)
    assert order(made) == [0] and made.until_ready_s() is None


def broken(kind: str) -> Broken:
    return Broken(cause=f"{kind}: GPU-aa still holds 3 GiB", kind=kind)


@pytest.mark.parametrize(
    ("kinds", "is_given_up"),
    [
        (["quarantine"], True),
        (["orphan"], False),
        (["orphan", "orphan"], True),
        (["orphan", "", "orphan"], False),
        (["hang", "hang", "hang", "port"], False),
    ],
)
def test_a_device_that_cannot_be_proven_clean_is_given_up(kinds: list[str], is_given_up: bool) -> None:
    fitness = Fitness()
    found = [fitness.judge(broken(k) if k else Measured(measurement=Measurement({}, False, "x"))) for k in kinds]
    assert (found[-1] is not None) == is_given_up and all(cause is None for cause in found[:-1])
    if is_given_up:
        assert "quarantined" in str(found[-1]) and "still holds 3 GiB" in str(found[-1])


class Dirty(ForwardingEngine):
    def boot(self, placement: Placement, seed: int) -> BootReport:
        raise EngineFailed("quarantine", None, "GPU-aa still holds 3 GiB", is_config_fault=False)


class DirtySpec:
    n_gpus = 0

    def build(self) -> Engine:
        return Dirty(SimulatedEngine(SimulatorSpec(find_model("Qwen3-8B"), find_gpu("A100-80"))))

    def build_for(self, slot: int, n_slots: int, gpu_uuids: tuple[str, ...]) -> Engine:
        return self.build()


def test_inline_a_quarantined_device_ends_in_a_clear_refusal() -> None:
    spec: EngineSpec = DirtySpec()
    with InlineExecutor(spec) as executor:
        executor.submit(plan(0, 8))
        executor.submit(plan(1, 16))
        first, second = executor.wait(1.0)
        assert isinstance(first.outcome, Broken) and first.outcome.kind == "quarantine"
        assert isinstance(second.outcome, Broken) and second.outcome.kind == NO_SLOT
        assert executor.n_slots == 0
        with pytest.raises(NoSlotLeft, match=r"no worker is left \(its device is quarantined: .*GPU-aa"):
            executor.submit(plan(2, 8))


def test_inline_a_delayed_plan_is_waited_for_no_longer_than_asked() -> None:
    with InlineExecutor(DirtySpec()) as executor:
        executor.submit(replace(plan(0, 8)), delay_s=0.3)
        began = time.monotonic()
        assert executor.wait(0.05) == () and time.monotonic() - began < 0.25
        assert len(executor.wait(5.0)) == 1 and time.monotonic() - began >= 0.3


@pytest.mark.parametrize(
    ("uuids", "expected"), [(["GPU-3"], 3), (["GPU-4", "GPU-5"], 2), (["GPU-5", "GPU-4"], 2), (["GPU-x"], 9), ([], 9)]
)
def test_a_slots_place_on_its_node_is_the_rank_of_its_gpus(uuids: list[str], expected: int) -> None:
    on_node = [Gpu(i, f"GPU-{i}", GpuClass("NVIDIA L4", 23034), 0) for i in range(6)]
    assert slot_on_node(uuids, on_node, 9) == expected


@pytest.mark.parametrize(("names", "expected"), [(["3"], 3), (["4", "5"], 2), (["GPU-3"], 9), ([], 9)])
def test_without_nvidia_smi_a_slots_place_is_that_of_its_indices(names: list[str], expected: int) -> None:
    assert slot_on_node(names, (), 9) == expected
