"""The executor without processes: plans run in the caller, one at a time, inside `wait`. To debug and calibrate."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from optimizer.cluster.executor import Finished
from optimizer.engines.build import EngineSpec
from optimizer.trial import TrialPlan, run_trial


class InlineExecutor:
    """One slot in this process. `wait` runs one queued plan to its end, however small its time-out:
    nothing can interrupt it but Ctrl-C."""

    def __init__(self, spec: EngineSpec) -> None:
        self._engine = spec.build()
        self._pending: deque[TrialPlan] = deque()

    def __enter__(self) -> InlineExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def n_slots(self) -> int:
        return 1

    @property
    def n_outstanding(self) -> int:
        return len(self._pending)

    @property
    def engine_identity(self) -> str:
        return self._engine.identity

    def submit(self, plan: TrialPlan) -> None:
        self._pending.append(plan)

    def wait(self, timeout_s: float) -> tuple[Finished, ...]:
        if not self._pending:
            return ()
        plan = self._pending.popleft()
        return (Finished(plan, replace(run_trial(plan, self._engine), worker="inline")),)

    def cancel_all(self) -> None:
        self._pending.clear()

    def close(self) -> None:
        self.cancel_all()
        self._engine.stop()
