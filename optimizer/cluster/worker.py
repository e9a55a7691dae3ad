"""What runs in a Ray worker process: one engine, kept between trials, and the worker's own account of itself.

Imports numpy and our trial code, nothing heavier: no optuna, no pandas, no torch (it would freeze the list of GPUs).
"""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Sequence
from dataclasses import replace

from optimizer.cluster.badge import Badge, own_badge
from optimizer.cluster.slots import detect_gpus
from optimizer.engines.build import EngineSpec
from optimizer.engines.engine import Engine
from optimizer.errors import Unavailable
from optimizer.trial import TrialPlan, run_trial


class SlotWorker:
    """One slot's process. Made into a Ray actor by the executor; its methods run one after another."""

    def __init__(self, name: str, n_gpus: int, slot: int = 0, n_slots: int = 1) -> None:
        """`slot` of `n_slots` on this node, counted from 0: which share of its cores is this slot's."""
        self._name = name
        self._n_gpus = n_gpus
        self._slot, self._n_slots = slot, n_slots
        self._uuids: tuple[str, ...] = ()
        self._engine: Engine | None = None

    def badge(self) -> Badge:
        """Who it is. Raises Unavailable if its GPUs are not the ones that Ray leased it."""
        if self._n_gpus == 0:
            return own_badge()
        visible = check_lease(os.environ.get("CUDA_VISIBLE_DEVICES"), leased_gpus(), self._n_gpus)
        by_name = {key: gpu for gpu in detect_gpus().gpus for key in (str(gpu.index), gpu.uuid)}
        self._uuids = tuple(by_name[v].uuid if v in by_name else v for v in visible)
        self._slot = slot_on_node(visible, self._n_gpus, self._slot) % self._n_slots
        return own_badge(visible, tuple(by_name[v].kind for v in visible if v in by_name))

    def prepare(self, spec: EngineSpec) -> bool:
        """Build the engine for all trials to come. Whether it is a real one, whose servers outlive a trial."""
        self._engine = spec.build_for(self._slot, self._n_slots, self._uuids)
        return not self._engine.is_simulated

    def run(self, plan: TrialPlan) -> bytes:
        """The outcome, pickled here: Ray would lend its arrays from shared memory for as long as they live."""
        assert self._engine is not None
        return pickle.dumps(replace(run_trial(plan, self._engine), worker=self._name), protocol=5)

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.stop()


def slot_on_node(visible: Sequence[str], n_gpus: int, slot: int) -> int:
    """By the indices of its GPUs, where Ray names them so; else the number it was given."""
    return min(map(int, visible)) // n_gpus if visible and all(v.isdigit() for v in visible) else slot


def leased_gpus() -> tuple[str, ...]:
    """What Ray booked for this worker."""
    import ray

    return tuple(map(str, ray.get_runtime_context().get_accelerator_ids().get("GPU", ())))


def check_lease(visible: str | None, leased: Sequence[str], n_gpus: int) -> tuple[str, ...]:
    """The GPUs this worker may use: exactly those leased to it, and as many as its slot owns.

    Ray hides all GPUs from a task in a placement group that did not ask for some, and a runtime_env can override
    what Ray set; both end as "no CUDA GPUs are available" or as two trials on one card."""
    seen = tuple(v for v in (visible or "").split(",") if v)
    if len(leased) != n_gpus:
        raise Unavailable(
            f"{socket.gethostname()}: Ray leased {len(leased)} GPU(s) to a slot that owns {n_gpus}; "
            "start the slot with num_gpus, also inside a placement group"
        )
    if set(seen) != set(leased):
        raise Unavailable(
            f"{socket.gethostname()}: CUDA_VISIBLE_DEVICES is {visible!r} but Ray leased {','.join(leased)!r}; "
            "remove CUDA_VISIBLE_DEVICES from the runtime_env and from the start-up files of this node"
        )
    return seen
