"""The executor without processes: plans run in the caller, one at a time, inside `wait`. To debug and calibrate."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from optimizer.cluster.executor import NO_SLOT, Finished, NoSlotLeft, WorkerState
from optimizer.cluster.fitness import Fitness
from optimizer.cluster.plan_queue import PlanQueue, key_of
from optimizer.engines.build import EngineSpec
from optimizer.trial import Broken, Outcome, TrialPlan, run_trial

NAME = "inline"


class InlineExecutor:
    """One slot in this process. `wait` runs one queued plan to its end, however small its time-out:
    nothing can interrupt it but Ctrl-C. A slot whose device is quarantined takes no more plans."""

    def __init__(self, spec: EngineSpec) -> None:
        self._engine = spec.build()
        self._pending = PlanQueue()
        self._fitness = Fitness()
        self._key, self._cause = "", ""
        self._is_running = False

    def __enter__(self) -> InlineExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def n_slots(self) -> int:
        return 0 if self._cause else 1

    @property
    def notices(self) -> tuple[str, ...]:
        return (self._cause,) if self._cause else ()

    @property
    def n_outstanding(self) -> int:
        return len(self._pending)

    @property
    def worker_states(self) -> Mapping[str, WorkerState]:
        return {NAME: "given up" if self._cause else "running" if self._is_running else "idle"}

    @property
    def engine_identity(self) -> str:
        return self._engine.identity

    def submit(self, plan: TrialPlan, delay_s: float = 0.0) -> None:
        if self._cause:
            raise NoSlotLeft(f"no worker is left ({self._cause})")
        self._pending.add(plan, delay_s)

    def limit(self, n_slots: int) -> None:
        """There is one slot anyway."""

    def wait(self, timeout_s: float) -> tuple[Finished, ...]:
        pause_s = self._pending.until_ready_s()
        if pause_s:
            time.sleep(min(pause_s, max(timeout_s, 0.0)))
        plan = self._pending.take(self._key)
        if plan is None:
            return ()
        outcome = self._run(plan)
        self._key = "" if self._engine.is_simulated else key_of(plan)
        self._cause = self._fitness.judge(outcome) or ""
        left = self._pending.drain() if self._cause else ()
        lost = (Finished(p, Broken(cause=f"no worker is left ({self._cause})", kind=NO_SLOT)) for p in left)
        return (Finished(plan, outcome), *lost)

    def _run(self, plan: TrialPlan) -> Outcome:
        self._is_running = True
        try:
            return replace(run_trial(plan, self._engine), worker=NAME)
        finally:
            self._is_running = False

    def cancel_all(self) -> None:
        self._pending.drain()

    def close(self) -> None:
        self.cancel_all()
        self._engine.stop()
