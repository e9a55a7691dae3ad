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

    def __init__(self, name: str, n_gpus: int) -> None:
        self._name = name
        self._n_gpus = n_gpus
        self._engine: Engine | None = None

    def badge(self) -> Badge:
        """Who it is. Raises Unavailable if its GPUs are not the ones that Ray leased it."""
        if self._n_gpus == 0:
            return own_badge()
        visible = check_lease(os.environ.get("CUDA_VISIBLE_DEVICES"), leased_gpus(), self._n_gpus)
        by_name = {key: gpu.kind for gpu in detect_gpus().gpus for key in (str(gpu.index), gpu.uuid)}
        return own_badge(visible, tuple(by_name[v] for v in visible if v in by_name))

    def prepare(self, spec: EngineSpec) -> str:
        """Build the engine for all trials to come; its identity."""
        self._engine = spec.build()
        return self._engine.identity

    def run(self, plan: TrialPlan) -> bytes:
        """The outcome, pickled here: Ray would lend its arrays from shared memory for as long as they live."""
        assert self._engine is not None
        return pickle.dumps(replace(run_trial(plan, self._engine), worker=self._name), protocol=5)

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.stop()


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
