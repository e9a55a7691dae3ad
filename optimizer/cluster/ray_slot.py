"""One slot on Ray: a worker actor, what we wait for from it, and what happens when it is lost."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping
from typing import Any, Literal

from optimizer.cluster.admission import Admission
from optimizer.cluster.badge import Badge
from optimizer.cluster.connection import first_line
from optimizer.cluster.executor import Finished, WorkerState
from optimizer.cluster.fitness import Fitness
from optimizer.cluster.plan_queue import key_of
from optimizer.cluster.worker import SlotWorker
from optimizer.engines.build import EngineSpec
from optimizer.errors import OptimizerError, Unavailable
from optimizer.trial import Broken, TrialPlan, are_servers_fine

Stage = Literal["absent", "badge", "prepare", "idle", "run", "retired"]
STATES: Mapping[Stage, WorkerState] = {
    "absent": "starting",
    "badge": "starting",
    "prepare": "starting",
    "idle": "idle",
    "run": "running",
    "retired": "given up",
}
START_WITHIN_S = 90.0
"""A worker takes 1 s to start, on a loaded machine 10; one that takes this long found no room or no package."""
MOST_LOSSES = 3
"""Workers lost in a row before the slot is given up."""


class Slot:
    """absent -> badge -> prepare -> idle <-> run; a lost worker leads back to absent, too many to retired.

    A worker is never restarted by Ray: a plan that was lost is told as Broken, once, and a fresh worker takes over.
    Whatever a lost worker still returns is not looked at."""

    def __init__(self, name: str, spec: EngineSpec, admission: Admission, number: int = 0, n_on_node: int = 1) -> None:
        """`number` of `n_on_node`: which share of its node's cores the slot takes, as far as it is known here."""
        self.name = name
        self.stage: Stage = "absent"
        self.ref: Any = None
        """The Ray object waited for, in the stages badge, prepare and run."""
        self.cause = ""
        """Why the last worker was lost, or why the slot was given up."""
        self.badge: Badge | None = None
        self.key = ""
        """What its servers are up for; empty if nothing runs, or nobody knows."""
        self._number, self._n_on_node = number, n_on_node
        self._fitness = Fitness()
        self._is_real = False
        self._spec = spec
        self._admission = admission
        self._actor: Any = None
        self._plan: TrialPlan | None = None
        self._n_losses = 0
        self._start_until_s = 0.0

    def start(self) -> None:
        import ray

        actor_class = ray.remote(max_restarts=0, max_task_retries=0)(SlotWorker)
        booked = {"num_cpus": 1, "num_gpus": self._spec.n_gpus}
        place = (self._number % self._n_on_node, self._n_on_node)
        self._actor = actor_class.options(**booked).remote(self.name, self._spec.n_gpus, *place)
        self._await("badge", self._actor.badge.remote())
        self._start_until_s = time.monotonic() + START_WITHIN_S

    def run(self, plan: TrialPlan) -> None:
        self._plan, self.key = plan, key_of(plan) if self._is_real else ""
        self._await("run", self._actor.run.remote(plan))

    def _await(self, stage: Stage, ref: Any) -> None:
        self.stage, self.ref = stage, ref

    @property
    def is_overdue(self) -> bool:
        return self.stage in ("badge", "prepare") and time.monotonic() > self._start_until_s

    def take(self) -> Finished | None:
        """Act on the result that `ref` has ready. Raises OptimizerError if the worker refuses, or is refused."""
        import ray

        try:
            value = ray.get(self.ref, timeout=30)
        except ray.exceptions.RayTaskError as error:
            return self._take_error(error)
        except ray.exceptions.RayError as error:
            return self.lose(short_cause(error))
        return self._take_value(value)

    def _take_value(self, value: Any) -> Finished | None:
        if self.stage == "badge":
            self.badge = value
            if refusal := self._admission.judge(self.name, value):
                self.retire(refusal)
            else:
                self._await("prepare", self._actor.prepare.remote(self._spec))
            return None
        if self.stage == "prepare":
            assert self.badge is not None
            self._is_real = value.is_real
            if refusal := self._admission.judge_engine(self.name, self.badge, value.identity):
                self.retire(refusal)
            else:
                self._await("idle", None)
            return None
        assert self._plan is not None
        finished = Finished(self._plan, pickle.loads(value))
        self._n_losses, self._plan = 0, None
        self._await("idle", None)
        if not are_servers_fine(finished.outcome):
            self.key = ""
        if (unfit := self._fitness.judge(finished.outcome)) is not None:
            self.retire(unfit)
        return finished

    def _take_error(self, error: Any) -> Finished | None:
        """The worker lives and raised. While starting that is a refusal; with a plan it is a plan it cannot read."""
        cause = getattr(error, "cause", None)
        if self.stage == "run":
            return self.lose(f"the worker could not run the plan: {first_line(cause or error)}")
        if isinstance(cause, OptimizerError):
            raise cause
        raise Unavailable(f"worker {self.name} cannot start: {short_cause(error)}")

    def lose(self, cause: str) -> Finished | None:
        """Give this worker up; the plan it had, as Broken."""
        self.end()
        self.cause = cause
        self._n_losses += 1
        if self._n_losses >= MOST_LOSSES:
            self.retire(f"{MOST_LOSSES} workers lost in a row, the last: {cause}")
        plan, self._plan = self._plan, None
        return (
            None
            if plan is None
            else Finished(plan, Broken(cause=f"worker {self.name} lost: {cause}", worker=self.name))
        )

    def retire(self, cause: str) -> None:
        self.end()
        self.cause = cause
        self._await("retired", None)

    def end(self) -> None:
        """Kill the worker, whatever it does. Its process group, and so the servers in it, goes with it."""
        import ray

        if self._actor is not None:
            ray.kill(self._actor, no_restart=True)
        self._actor, self.key = None, ""
        self._await("absent", None)

    def forget(self) -> None:
        """As `end`, and the plan it had is nobody's any more."""
        self._plan = None
        self.end()

    def ask_to_stop(self) -> Any:
        """The reference of the worker stopping its engine in good order; None if it has nothing to stop."""
        return self._actor.stop.remote() if self.stage == "idle" else None


def short_cause(error: BaseException) -> str:
    """Ray's many lines as one: what ended the worker."""
    text = " ".join(str(error).split())
    for mark in ("Worker exit detail: ", "The actor is dead because ", "The actor is temporarily unavailable: "):
        if mark in text:
            text = text.split(mark, 1)[1]
            return text.split(" Some common causes", 1)[0].split(". The task may", 1)[0][:200]
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200]
