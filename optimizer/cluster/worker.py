"""What runs in a Ray worker process: one engine, kept between trials, and the worker's own account of itself.

Imports numpy and our trial code, nothing heavier: no optuna, no pandas, no torch (it would freeze the list of GPUs).
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass, replace

from optimizer.cluster.badge import Badge, own_badge
from optimizer.cluster.lease import check_lease, find_leased, leased_gpus, slot_on_node
from optimizer.cluster.slots import list_gpus
from optimizer.engines.build import EngineSpec
from optimizer.engines.engine import Engine
from optimizer.trial import TrialPlan, run_trial


@dataclass(frozen=True)
class EngineBadge:
    """The engine that a worker has built."""

    identity: str
    is_real: bool
    """Its servers outlive a trial."""


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
        """Who it is. Raises Unavailable if its GPUs are not the ones that Ray leased it, or several have that name."""
        if self._n_gpus == 0:
            return own_badge()
        visible = check_lease(os.environ.get("CUDA_VISIBLE_DEVICES"), leased_gpus(), self._n_gpus)
        on_node = list_gpus().gpus
        found = {name: find_leased(name, on_node) for name in visible}
        self._uuids = tuple(name if gpu is None else gpu.uuid for name, gpu in found.items())
        self._slot = slot_on_node(self._uuids, on_node, self._slot)
        return own_badge(visible, tuple(gpu.kind for gpu in found.values() if gpu))

    def prepare(self, spec: EngineSpec) -> EngineBadge:
        """Build the engine for all trials to come."""
        self._engine = spec.build_for(self._slot, self._n_slots, self._uuids)
        return EngineBadge(self._engine.identity, not self._engine.is_simulated)

    def run(self, plan: TrialPlan) -> bytes:
        """The outcome, pickled here: Ray would lend its arrays from shared memory for as long as they live."""
        assert self._engine is not None
        return pickle.dumps(replace(run_trial(plan, self._engine), worker=self._name), protocol=5)

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.stop()
