"""Trials on Ray workers: a local Ray started for you, or a cluster that is there.

Starting Ray takes seconds and happens in the background: plans may be submitted at once, and the caller may
calibrate inline meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from threading import Event, Lock, Thread
from typing import Any

from optimizer.cluster.admission import SURPLUS, Admission
from optimizer.cluster.badge import own_badge
from optimizer.cluster.connection import check_runtime_env, connect, fit_slots, most_on_a_node, probe
from optimizer.cluster.executor import NO_SLOT, Finished, NoSlotLeft, WorkerState
from optimizer.cluster.plan_queue import PlanQueue
from optimizer.cluster.ray_slot import STATES, Slot
from optimizer.cluster.slots import Gpu, GpuClass, count_slots
from optimizer.cluster.supervision import LocalRay, local_environment
from optimizer.engines.build import EngineSpec
from optimizer.errors import OptimizerError, Unavailable, UserError
from optimizer.trial import Broken, TrialPlan

START_RAY_WITHIN_S = 90.0
STOP_WITHIN_S = 20.0
"""What the workers get to stop their engines in good order when the executor is closed."""
LOOK_AGAIN_S = 1.0
"""The longest single wait, so that overdue workers are noticed and Ctrl-C is answered."""
_ONE_PER_PROCESS = Lock()
"""Held while an executor is open: Ray itself allows one connection a process."""


class RayExecutor:
    """One worker per slot; each owns whole GPUs or, simulated, one CPU that Ray counts (more workers than cores run
    slower and never wait for each other).

    `study` is Ray's namespace. `address` is a running cluster's head (host:port); without it a local Ray is started,
    that only this machine can reach and that ends with this process, however it ends. `gpus` are the cards to use
    locally. On a cluster `gpu_class` is the kind the study is bound to, or `gpu_name` the card, by its name in the
    table of GPUs; `identity` is the engine it is bound to, where that is known. Workers that have others stay idle.

    Built is not started: `submit`, `wait` and `n_slots` raise what went wrong while starting."""

    def __init__(
        self,
        spec: EngineSpec,
        *,
        study: str,
        n_slots: int | None = None,
        address: str | None = None,
        gpus: Sequence[Gpu] = (),
        gpu_class: GpuClass | None = None,
        gpu_name: str | None = None,
        identity: str | None = None,
    ) -> None:
        check_spec(spec)
        kind = gpus[0].kind if gpus and gpu_class is None else gpu_class
        self._spec, self._study, self._address = spec, study, address
        self._admission = Admission(
            own_badge(),
            kind if spec.n_gpus else None,
            address is None,
            kind is not None,
            n_slots,
            gpu_name if spec.n_gpus else None,
            identity,
        )
        self._pending = PlanQueue()
        self._limit: int | None = None
        self._finished: deque[Finished] = deque()
        self._slots: list[Slot] = []
        self._failure: BaseException | None = None
        self._restore = ExitStack()
        self._local: LocalRay | None = None
        self._has_joined = self._is_joining = self._is_closed = False
        self._turn = Lock()
        """Held to decide between joining Ray and closing: Ray must not end under a driver that is just joining it."""
        self._asked = count_slots(spec.n_gpus, gpus, n_slots) if address is None else n_slots
        if address is not None:
            check_runtime_env()
            probe(address)
        if not _ONE_PER_PROCESS.acquire(blocking=False):
            raise Unavailable("this process has a Ray executor open; close it before another is built")
        self._restore.callback(_ONE_PER_PROCESS.release)
        if address is None:
            self._restore.enter_context(local_environment())
            self._local = LocalRay(n_cpus=self._asked or 1, gpu_uuids=self._uuids(gpus))
        self._is_start_over = Event()
        """Waited for instead of the thread: Python < 3.13 takes a thread for ended when Ctrl-C interrupts its join."""
        Thread(target=self._start, name="ray-start", daemon=True).start()

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _uuids(self, gpus: Sequence[Gpu]) -> tuple[str, ...]:
        """The cards that the local Ray may lease: no more than the slots own."""
        return tuple(gpu.uuid for gpu in gpus[: (self._asked or 0) * self._spec.n_gpus])

    def _start(self) -> None:
        try:
            address = self._local.address(START_RAY_WITHIN_S) if self._local else str(self._address)
            with self._turn:
                self._is_joining = not self._is_closed
            if not self._is_joining:
                return
            connect(address, self._study)
            self._has_joined = True
            import ray

            n_slots = fit_slots(ray.nodes(), self._spec.n_gpus, self._asked, address)
            if self._spec.n_gpus and self._admission.is_choosy and not self._local:  # any may be the wrong one
                n_slots = fit_slots(ray.nodes(), self._spec.n_gpus, None, address)
            n_on_node = most_on_a_node(ray.nodes(), self._spec.n_gpus, n_slots)
            slots = [Slot(f"ray-{i}", self._spec, self._admission, i, n_on_node) for i in range(n_slots)]
            for slot in slots:
                slot.start()
            self._slots = slots
        except (OptimizerError, OSError, RuntimeError, ValueError, ImportError) as error:
            self._failure = error
        finally:
            self._is_start_over.set()

    def _await_start(self, timeout_s: float) -> bool:
        """Whether Ray is up; raises what kept it from starting."""
        self._is_start_over.wait(max(timeout_s, 0.0))
        if self._failure is not None:
            raise self._failure
        return self._is_start_over.is_set()

    def wait_until_started(self, timeout_s: float = START_RAY_WITHIN_S) -> bool:
        """For a caller that has nothing to do meanwhile. Raises what kept Ray from starting."""
        return self._await_start(timeout_s)

    @property
    def n_slots(self) -> int:
        """Slots that still work. Before the start is through: the number asked for, else it waits for the cluster."""
        if not self._await_start(0.0 if self._asked else START_RAY_WITHIN_S) and self._asked:
            return min(self._asked, self._limit or self._asked)
        n_working = sum(slot.stage != "retired" for slot in self._slots)
        return min(n_working, self._asked or n_working, self._limit or n_working)

    @property
    def engine_identity(self) -> str:
        """Of the engine that every worker has; empty until the first has built it, unless it was given."""
        return self._admission.engine_identity or ""

    @property
    def n_outstanding(self) -> int:
        return len(self._pending) + len(self._finished) + sum(slot.stage == "run" for slot in self._slots)

    @property
    def notices(self) -> tuple[str, ...]:
        """Slots that were given up, and why; for the user's eyes."""
        return tuple(
            f"{slot.name}: {slot.cause}" for slot in self._slots if slot.stage == "retired" and slot.cause != SURPLUS
        )

    @property
    def worker_states(self) -> Mapping[str, WorkerState]:
        return {slot.name: STATES[slot.stage] for slot in self._slots}

    def limit(self, n_slots: int) -> None:
        self._limit = max(n_slots, 1)
        if self._is_start_over.is_set():
            self._shed()

    def submit(self, plan: TrialPlan, delay_s: float = 0.0) -> None:
        if self._is_closed:
            raise Unavailable("the executor is closed; build a new one")
        if self._await_start(0.0) and not self.n_slots:
            raise NoSlotLeft(f"no worker is left ({'; '.join(self.notices)})")
        self._pending.add(plan, delay_s)
        if self._is_start_over.is_set():
            self._advance(0.0)

    def wait(self, timeout_s: float) -> tuple[Finished, ...]:
        until = time.monotonic() + timeout_s
        while self.n_outstanding and not self._finished:
            left_s = until - time.monotonic()
            if self._await_start(min(left_s, LOOK_AGAIN_S)):
                self._advance(min(max(left_s, 0.0), LOOK_AGAIN_S))
            if left_s <= 0:
                break
        finished = tuple(self._finished)
        self._finished.clear()
        return finished

    def _advance(self, wait_s: float) -> None:
        """Give plans to idle slots, wait up to `wait_s` for any news, act on all of it, give plans again."""
        import ray

        self._dispatch()
        waiting = {slot.ref: slot for slot in self._slots if slot.ref is not None}
        if not waiting:
            time.sleep(min(wait_s, self._pending.until_ready_s() or 0.0))
        else:
            ray.wait(list(waiting), num_returns=1, timeout=wait_s)
            ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
            for slot in [waiting[ref] for ref in ready]:
                self._keep(slot.take())
        for slot in [s for s in self._slots if s.is_overdue]:
            self._keep(slot.lose("it did not start in time; the cluster may be full or its node gone"))
        self._dispatch()

    def _keep(self, finished: Finished | None) -> None:
        if finished is not None:
            self._finished.append(finished)

    def _dispatch(self) -> None:
        self._shed()
        for slot in self._slots:
            if self._pending and slot.stage == "absent":
                slot.start()
        idle = [slot for slot in self._slots if slot.stage == "idle"]
        for slot in sorted(idle, key=lambda s: not s.key):  # those with servers up choose first
            others = {other.key for other in self._slots if other is not slot and other.key}
            plan = self._pending.take(slot.key, others)
            if plan is not None:
                slot.run(plan)
        if self._slots and all(slot.stage == "retired" for slot in self._slots):
            cause = f"no worker is left ({'; '.join(self.notices)})"
            self._finished += [Finished(p, Broken(cause=cause, kind=NO_SLOT)) for p in self._pending.drain()]

    def _shed(self) -> None:
        """Give up slots beyond the limit as they fall idle, their servers stopped in good order."""
        n_over = sum(slot.stage != "retired" for slot in self._slots) - (self._limit or len(self._slots))
        able = [slot for slot in reversed(self._slots) if slot.stage not in ("run", "retired")]
        for slot in able[: max(n_over, 0)]:
            self._stop([slot])
            slot.retire(SURPLUS)

    def cancel_all(self) -> None:
        """Workers that run a plan are killed; fresh ones start with the next plan."""
        self._pending.drain()
        self._finished.clear()
        for slot in self._slots:
            if slot.stage == "run":
                slot.forget()

    def close(self) -> None:
        """Stop every engine, leave the cluster, end the local Ray. A second call does nothing."""
        if self._is_closed:
            return
        with self._turn:
            self._is_closed = True
        if self._local is not None and not self._is_joining:
            self._local.give_up()
        self._is_start_over.wait(START_RAY_WITHIN_S)
        try:
            self._leave()
        finally:
            if self._local is not None:
                self._local.close()
            self._restore.close()

    def _leave(self) -> None:
        if not self._has_joined:
            return
        import ray

        self.cancel_all()
        self._stop(self._slots)
        ray.shutdown()

    @staticmethod
    def _stop(slots: Sequence[Slot]) -> None:
        import ray

        stopping = [ref for slot in slots if (ref := slot.ask_to_stop()) is not None]
        if stopping:
            ray.wait(stopping, num_returns=len(stopping), timeout=STOP_WITHIN_S)


def check_spec(spec: Any) -> None:
    """Raise UserError unless the engine's slot owns whole GPUs: Ray's fractions limit neither memory nor compute."""
    if isinstance(spec.n_gpus, bool) or not isinstance(spec.n_gpus, int) or spec.n_gpus < 0:
        raise UserError(
            f"a slot owns whole GPUs, got {spec.n_gpus!r}: several instances on one card belong to one slot, which "
            "books the card and shares it among them"
        )
