"""Runs: plans carried out on an executor, retried when Broken, each stored before it is used.

A run belongs to a trial (its first run, a confirmation) or to none (calibration). A run that is already in the study's
folder is not repeated: that is what makes every stage resumable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from optimizer.cluster.executor import Executor
from optimizer.study.events import Listener, RunFinished
from optimizer.study.folder import StudyFolder
from optimizer.trial import Broken, Outcome, TrialPlan

MAX_RETRIES = 2
"""A Broken run is repeated this often before it counts as lost."""
RETRY_STEP = 100_000
"""Retries run under a number of their own (run + k * step) and are stored under the first."""


class Runs:
    """Carries out plans to their end and counts the engine seconds they cost."""

    def __init__(self, executor: Executor, folder: StudyFolder, listener: Listener) -> None:
        self._executor = executor
        self._folder = folder
        self._listener = listener
        self.engine_s = 0.0
        """Engine seconds spent by this process, boots included; virtual for the simulator."""
        self.wall_s = 0.0
        self.n_kept = 0

    def carry_out(
        self,
        plans: Sequence[TrialPlan],
        purpose: str,
        describe: Callable[[TrialPlan, Outcome], str] = lambda plan, outcome: "",
    ) -> list[Outcome]:
        """Every plan's outcome, in order. Plans already stored are not run again. A lost run comes back Broken."""
        outcomes: dict[int, Outcome] = {}
        waiting: dict[tuple[int, int], int] = {}
        for i, plan in enumerate(plans):
            stored = self.stored(plan)
            if stored is not None:
                outcomes[i] = stored
            else:
                waiting[(plan.trial, plan.run)] = i
                self._executor.submit(plan)
        while waiting:
            for finished in self._executor.wait(1.0):
                i = waiting[(finished.plan.trial, finished.plan.run % RETRY_STEP)]
                if self.retry(finished.plan, finished.outcome):
                    continue
                del waiting[(finished.plan.trial, finished.plan.run % RETRY_STEP)]
                outcomes[i] = self.keep(plans[i], finished.outcome)
                self._listener(RunFinished(purpose, len(outcomes), len(plans), describe(plans[i], finished.outcome)))
        return [outcomes[i] for i in range(len(plans))]

    def stored(self, plan: TrialPlan) -> Outcome | None:
        """The outcome of a run that an earlier process finished; a Broken one is tried again."""
        outcome = self._folder.load_outcome(plan.trial, plan.run, plan.purpose)
        return None if isinstance(outcome, Broken) else outcome

    def retry(self, plan: TrialPlan, outcome: Outcome) -> bool:
        """Submit a Broken run once more while it has tries left; False if the outcome stands."""
        n_tries = plan.run // RETRY_STEP
        if not isinstance(outcome, Broken) or n_tries >= MAX_RETRIES:
            return False
        self._executor.submit(replace(plan, run=plan.run + RETRY_STEP))
        return True

    def keep(self, plan: TrialPlan, outcome: Outcome) -> Outcome:
        """Store an outcome under its first number and count its engine seconds."""
        self.engine_s += sum(outcome.engine_seconds.values())
        self.wall_s += outcome.wall_s
        self.n_kept += 1
        first = replace(plan, run=plan.run % RETRY_STEP)
        self._folder.save_outcome(first, outcome)
        return outcome
