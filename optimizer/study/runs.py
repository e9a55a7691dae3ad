"""Runs: plans carried out on an executor, retried when Broken, each stored before it is used.

How often and how soon a run is repeated depends on what broke it: what hung or was killed once may do it again, and
what found the machine busy finds it free a little later.

A run belongs to a trial (its first run, a confirmation) or to none (calibration). A run that is already in the study's
folder is not repeated: that is what makes every stage resumable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from optimizer.cluster.executor import NO_SLOT, Executor, NoSlotLeft
from optimizer.study.events import Listener, Notice, RunFinished
from optimizer.study.folder import StudyFolder
from optimizer.trial import Broken, Measured, Outcome, TrialPlan, are_servers_fine

MAX_RETRIES = 2
"""A Broken run is repeated this often before it counts as lost."""
RETRIES = {"hang": 1, "killed": 1}
"""Kinds that are repeated less often: the configuration may be what does it, and a hang costs minutes."""
NOT_ITS_TURN = frozenset({"quarantine", NO_SLOT})
"""Kinds that say only that the slot is no place to run it: it goes to another, until none is left."""
PASSING = frozenset({"profiling_race", "neighbour", "orphan", "port", "host_ram"})
"""Kinds that pass by themselves: the repeat waits, longer each time, so that starts do not meet again."""
PAUSE_S, PAUSE_FACTOR = 5.0, 3.0
"""The first pause on a real machine, and how it grows."""
RETRY_STEP = 100_000
"""Retries run under a number of their own (run + k * step) and are stored under the first."""


class Runs:
    """Carries out plans to their end and counts the engine seconds they cost."""

    def __init__(self, executor: Executor, folder: StudyFolder, listener: Listener, *, pause_s: float = 0.0) -> None:
        """`pause_s`: before the first repeat of what passes by itself; PAUSE_S on a real engine."""
        self._pause_s = pause_s
        self._told: set[str] = set()
        """Slots given up that the user knows of."""
        self._executor = executor
        self._folder = folder
        self._listener = listener
        self.engine_s = 0.0
        """Engine seconds spent by this process, boots included; virtual for the simulator."""
        self.wall_s = 0.0
        self.n_kept = 0
        self._disturbed: dict[tuple[int, int], Measured] = {}
        """(trial, run) -> what was measured while the machine was disturbed, for when the repeat breaks."""

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

    @property
    def n_slots(self) -> int:
        """Runs that go on at once."""
        return self._executor.n_slots

    def limit_slots(self, n_slots: int) -> None:
        self._executor.limit(n_slots)

    def stored(self, plan: TrialPlan) -> Outcome | None:
        """The outcome of a run that an earlier process finished; a Broken one is tried again."""
        outcome = self._folder.load_outcome(plan.trial, plan.run, plan.purpose)
        return None if isinstance(outcome, Broken) else outcome

    def retry(self, plan: TrialPlan, outcome: Outcome) -> bool:
        """Submit a Broken run once more while it has tries left, and one that the machine disturbed a single time;
        False if the outcome stands. A machine that is always disturbed has to be lived with, and the figures say so.

        Raises NoSlotLeft when no slot is left to run it: the trial then stays open, for a resume."""
        self._tell_lost_slots()
        n_tries = plan.run // RETRY_STEP
        if isinstance(outcome, Measured) and n_tries == 0 and (disturbances := _disturbances(outcome)):
            self._listener(Notice(f"measured again: {disturbances[0]}"))
            self._disturbed[(plan.trial, plan.run)] = outcome
            self._executor.submit(replace(plan, run=plan.run + RETRY_STEP), self._pause_s)
            return True
        if not isinstance(outcome, Broken):
            return False
        if outcome.kind not in NOT_ITS_TURN and n_tries >= RETRIES.get(outcome.kind, MAX_RETRIES):
            return False
        delay_s = self._pause_s * PAUSE_FACTOR**n_tries if outcome.kind in PASSING else 0.0
        self._executor.submit(replace(plan, run=plan.run + RETRY_STEP, is_fresh=not are_servers_fine(outcome)), delay_s)
        return True

    def check_slots(self) -> None:
        """Raises NoSlotLeft when nothing can be run any more."""
        if self._executor.n_slots == 0:
            raise NoSlotLeft(f"no worker is left ({'; '.join(self._executor.notices)})")

    def _tell_lost_slots(self) -> None:
        for text in self._executor.notices:
            if text not in self._told:
                self._told.add(text)
                self._listener(Notice(f"given up: {text}", is_warning=True))

    def keep(self, plan: TrialPlan, outcome: Outcome) -> Outcome:
        """Store an outcome under its first number and count its engine seconds."""
        earlier = self._disturbed.pop((plan.trial, plan.run % RETRY_STEP), None)
        if earlier is not None and isinstance(outcome, Broken):
            outcome = earlier
        self.engine_s += sum(outcome.engine_seconds.values())
        self.wall_s += outcome.wall_s
        self.n_kept += 1
        first = replace(plan, run=plan.run % RETRY_STEP)
        self._folder.save_outcome(first, outcome)
        return outcome


def _disturbances(outcome: Measured) -> list[str]:
    """What the machine did that a configuration cannot be held to: throttling, strangers on the card."""
    return [text for phase in outcome.measurement.phases.values() for text in phase.disturbances]
