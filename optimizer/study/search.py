"""Search: ask, submit, tell, until the study's total of trials is reached or nothing untried is left.

One process runs this and is the only one that writes the study. Whatever kills it, what was told stays told, and a
resume goes on: trials that were running are run again under their own numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from objectives.objective import Scorecard
from objectives.pareto import front
from optimizer.cluster.executor import Executor
from optimizer.engines.engine import LoadPlan, Placement
from optimizer.study.events import Listener, Notice, StageStarted, TrialFinished, TrialStarted
from optimizer.study.judge import Judge, reason_of
from optimizer.study.learned_bounds import LearnedBounds
from optimizer.study.outcomes import kind_of
from optimizer.study.proposer import Point, Proposer, SpaceExhausted
from optimizer.study.record import StudyRecord
from optimizer.study.runs import RETRY_STEP, Runs
from optimizer.study.stages import (
    BASELINE,
    FAST,
    STABLE,
    WHY,
    Probe,
    Proposal,
    StableRegion,
    at_level,
    has_survived_stress,
    propose_within,
    seqs_names,
)
from optimizer.study.trial_record import TrialRecord
from optimizer.trial import Broken, Outcome, StopRule, TrialPlan

SEED_STEP = 104_729
"""Trials' seeds are this far apart, so that a trial's repeats never share one."""


@dataclass(frozen=True)
class SearchPlan:
    """What is searched, frozen before trial 0."""

    baselines: tuple[tuple[str, Placement, Point | None], ...]
    """(name, placement as it is, nearest point or None), in trial order"""
    base_point: Point
    """Where the stable stage varies the number of sequences: defaults, memory at its ceiling."""
    grid: Mapping[str, Sequence[object]]
    place: Callable[[Point], Placement]
    """The servers of a point."""
    loads: tuple[LoadPlan, ...]
    n_trials: int
    n_stable: int
    n_levels: int
    """Levels of the sequence limit that the stable stage bisects."""
    floors: tuple[float, ...]
    hypervolume: Callable[[Sequence[Sequence[float]]], float]
    seed: int
    stage_name: str = FAST
    stop_rule: StopRule | None = None
    cannot_start: Callable[[Placement], str | None] | None = None
    """Why servers cannot start, by the memory that real starts took; None where none told."""


class Search:
    """The one stateful object of a running study."""

    def __init__(
        self,
        plan: SearchPlan,
        record: StudyRecord,
        proposer: Proposer,
        judge: Judge,
        executor: Executor,
        runs: Runs,
        listener: Listener,
    ) -> None:
        self._plan = plan
        self._record = record
        self._proposer = proposer
        self._judge = judge
        self._executor = executor
        self._runs = runs
        self._listener = listener
        self._bounds = LearnedBounds(plan.cannot_start)
        proposer.leave_out(lambda point: bool(self._bounds) and self._bounds.rules_out(plan.place(point)) is not None)
        self._region = StableRegion(plan.n_levels, plan.n_stable) if plan.n_stable > 0 else None
        self._running: dict[int, Proposal] = {}
        self._levels_of: dict[int, int] = {}
        """Running trials of other stages whose servers are those of a probe -> the probe's level."""
        self._to_adopt: list[tuple[int, Proposal]] = []
        self._stage = ""
        self._started = time.monotonic()
        self._n_before = 0
        self.stop_reason = ""

    def run(self) -> str:
        """Search to the end. Returns why it ended; raises NoSlotLeft when no slot is left to go on."""
        self._restore()
        while True:
            while self._executor.n_outstanding < self._executor.n_slots and self._start_next():
                pass
            if not self._running:
                if not self.stop_reason and self._record.n_trials < self._plan.n_trials:
                    self._runs.check_slots()
                break
            for finished in self._executor.wait(1.0):
                self._finish(finished.plan, finished.outcome)
        return self.stop_reason or f"all {self._plan.n_trials} trials are done"

    # going on where an earlier process stopped

    def _restore(self) -> None:
        adopted = {t.number for t in self._record.adopt_running()}
        trials = self._record.trials()
        self._n_before = sum(t.is_finished for t in trials)
        for trial in trials:
            proposal = self._proposal_of(trial)
            if trial.number in adopted:
                self._to_adopt.append((trial.number, proposal))
                if proposal.point is not None:
                    self._proposer.mark_running(proposal.point)
                self._note_probe_started(proposal)
            elif trial.is_finished:
                self._learn(trial, proposal.placement)
                self._tell_proposer(trial, proposal)
                self._note_probe(proposal, _card_of(trial))

    def _learn(self, trial: TrialRecord, placement: Placement) -> tuple[str, ...]:
        """What a failed start said would fit. Not from figures that are no configuration's fault."""
        if trial.state != "infeasible" or trial.failure is None:
            return ()
        return self._bounds.learn(placement, trial.failure, trial.failed_in, trial.bounds)

    def _proposal_of(self, trial: TrialRecord) -> Proposal:
        name = trial.attributes.get("baseline")
        for baseline, placement, point in self._plan.baselines:
            if baseline == name:
                return Proposal(BASELINE, placement, point, {"baseline": name})
        assert trial.point is not None
        attributes = {"level": trial.attributes["level"]} if "level" in trial.attributes else {}
        return Proposal(trial.stage, self._plan.place(trial.point), trial.point, attributes)

    def _tell_proposer(self, trial: TrialRecord, proposal: Proposal) -> None:
        if proposal.point is None or trial.state == "running" or trial.state == "broken":
            return
        is_exact = self._plan.place(proposal.point).parameters() == proposal.placement.parameters()
        failure = trial.failure if is_exact else None
        self._proposer.tell(proposal.point, trial.values, trial.violations, trial.state, failure)
        if not is_exact:  # a baseline that is only near its point: the point itself was never tried
            self._proposer.forget(proposal.point)

    # starting trials

    def _start_next(self) -> bool:
        """Start one trial; False if nothing can be started now."""
        if self._to_adopt:
            self._adopt(*self._to_adopt.pop(0))
            return True
        if self.stop_reason or self._record.n_trials >= self._plan.n_trials:
            return False
        proposal_now = self._next_proposal()
        if proposal_now is None:
            return False
        number = self._record.open_trial(
            proposal_now.placement.parameters(),
            stage=proposal_now.stage,
            point=proposal_now.point,
            attributes=proposal_now.attributes,
        )
        self._submit(number, proposal_now)
        return True

    def _submit(self, number: int, proposal: Proposal) -> None:
        self._executor.submit(self._begin(number, proposal))

    def _adopt(self, number: int, proposal: Proposal) -> None:
        """Run it again, unless it came back just before its driver died: then it is only told."""
        plan = self._begin(number, proposal)
        stored = self._runs.stored(plan)
        if stored is None:
            self._executor.submit(plan)
        else:
            self._tell(plan, stored)

    def _begin(self, number: int, proposal: Proposal) -> TrialPlan:
        if proposal.stage != self._stage:
            self._stage = proposal.stage
            self._listener(StageStarted(proposal.stage, WHY[proposal.stage]))
        self._running[number] = proposal
        self._listener(TrialStarted(number, proposal.stage))
        return self._trial_plan(number, proposal)

    def _trial_plan(self, number: int, proposal: Proposal) -> TrialPlan:
        rule = None if proposal.stage == BASELINE else self._plan.stop_rule
        if rule is not None and proposal.stage == STABLE:
            rule = replace(rule, max_unsustained=math.inf)  # it is asked about the peak, which is replayed later
        seed = self._plan.seed * 1_000_003 + (number + 1) * SEED_STEP
        return TrialPlan(number, 0, "search", proposal.placement, self._plan.loads, seed, rule)

    def _next_proposal(self) -> Proposal | None:
        return self._next_baseline() or self._next_probe() or self._next_sampled()

    def _next_baseline(self) -> Proposal | None:
        known = {t.attributes.get("baseline") for t in self._record.trials()}
        for name, placement, point in self._plan.baselines:
            if name not in known:
                if point is not None:
                    self._proposer.mark_running(point)
                return Proposal(BASELINE, placement, point, {"baseline": name})
        return None

    def _next_probe(self) -> Proposal | None:
        if self._region is None:
            return None
        level = self._region.next_level()
        while level is not None:
            point = at_level(self._plan.base_point, self._plan.grid, level, self._region.n_levels)
            placement = self._plan.place(point)
            same = self._same_trial(placement)
            if same is None and self._bounds.rules_out(placement) is not None:
                self._region.tell(Probe(level, False))
            elif same is None:
                self._proposer.mark_running(point)
                return Proposal(STABLE, placement, point, {"level": level})
            elif same.number in self._running:
                self._levels_of[same.number] = level
            else:
                self._region.tell(Probe(level, has_survived_stress(_card_of(same))))
            level = self._region.next_level()
        return None

    def _same_trial(self, placement: Placement) -> TrialRecord | None:
        """A trial that runs or ran exactly these servers: a probe is never a duplicate of it."""
        wanted = placement.parameters()
        trials = (t for t in self._record.trials() if t.state != "broken")
        return next((t for t in trials if dict(t.parameters) == wanted), None)

    def _next_sampled(self) -> Proposal | None:
        if self._region is not None and not self._region.is_settled and self._running:
            return None
        try:
            point = propose_within(self._proposer, self._plan.grid, self._region, self._is_new)
        except SpaceExhausted as exhausted:
            self.stop_reason = str(exhausted)
            self._listener(Notice(f"{exhausted}: the study ends before {self._plan.n_trials} trials"))
            return None
        return Proposal(self._plan.stage_name, self._plan.place(point), point)

    def _is_new(self, point: Point) -> bool:
        """Neither tried nor known to fail."""
        placement = self._plan.place(point)
        return self._same_trial(placement) is None and self._bounds.rules_out(placement) is None

    # telling results

    def _finish(self, plan: TrialPlan, outcome: Outcome) -> None:
        if plan.trial in self._running and not self._runs.retry(plan, outcome):
            self._tell(plan, self._runs.keep(plan, outcome))

    def _tell(self, plan: TrialPlan, outcome: Outcome) -> None:
        proposal = self._running.pop(plan.trial)
        card = self._judge.score(outcome)
        reason = reason_of(outcome, card)
        self._record.close(plan.trial, outcome, card, reason=reason, columns=_columns(outcome, plan))
        trial = self._record.trial(plan.trial)
        for ruled_out in self._learn(trial, proposal.placement):
            self._listener(Notice(f"trial {plan.trial} rules out {ruled_out} from now on"))
        if proposal.point is not None and isinstance(outcome, Broken):
            self._proposer.forget(proposal.point)
        else:
            self._tell_proposer(trial, proposal)
        self._listener(self._finished_event(trial, outcome, card, reason))
        self._note_probe(proposal, card, self._levels_of.pop(plan.trial, None))

    def _note_probe_started(self, proposal: Proposal) -> None:
        level = proposal.attributes.get("level")
        if self._region is not None and isinstance(level, int):
            self._region.start(level)

    def _note_probe(self, proposal: Proposal, card: Scorecard | None, level: int | None = None) -> None:
        """`level`: of a trial that is no probe but has the servers of one. `card`: None for a broken trial."""
        level = proposal.attributes.get("level", level)  # type: ignore[assignment]
        if self._region is None or level is None:
            return
        if card is None:
            self._region.forget(level)
            return
        self._region.tell(Probe(level, has_survived_stress(card)))
        if self._region.is_settled and self._stage == STABLE:
            low, high = self._region.bounds
            self._listener(Notice(f"stable region: {self._region_text(low, high)}"))

    def _region_text(self, low: int, high: int | None) -> str:
        """The bound in sequences, one figure an instance."""
        if high is None:
            return "every max_num_seqs of the space survives the peak"
        if low < 0:
            return "no max_num_seqs of the space survives the peak as it is"
        point = at_level(self._plan.base_point, self._plan.grid, low, self._plan.n_levels)
        seqs = ", ".join(f"{name} {point[name]}" for name in seqs_names(self._plan.grid))
        return f"the peak is survived up to {seqs}"

    def _finished_event(
        self, trial: TrialRecord, outcome: Outcome, card: Scorecard | None, reason: str
    ) -> TrialFinished:
        trials = [t for t in self._record.trials() if t.is_finished]
        feasible = [t for t in trials if t.is_feasible and t.values is not None]
        values = [t.values for t in feasible if t.values is not None]
        members = front(values, self._judge.objectives, self._plan.floors)
        return TrialFinished(
            trial=trial.number,
            stage=trial.stage,
            state=kind_of(outcome),
            is_feasible=card is not None and card.is_feasible,
            values=trial.values,
            reason=reason,
            n_done=len(trials),
            n_total=self._plan.n_trials,
            n_feasible=len(feasible),
            n_front=len(members),
            hypervolume=self._plan.hypervolume(values) if values else 0.0,
            front=tuple((feasible[i].number, values[i]) for i in members),
            seconds_left=self._seconds_left(len(trials)),
            label=str(trial.attributes.get("baseline", "")),
        )

    def _seconds_left(self, n_done: int) -> float | None:
        n_here = n_done - self._n_before
        if n_here < 2:
            return None
        return (time.monotonic() - self._started) / n_here * max(self._plan.n_trials - n_done, 0)


def _card_of(trial: TrialRecord) -> Scorecard | None:
    """None for a broken trial."""
    return None if trial.state == "broken" else Scorecard(trial.values, trial.violations, trial.metrics)


def _columns(outcome: Outcome, plan: TrialPlan) -> dict[str, object]:
    """What the dashboard shows of a trial beside its arguments."""
    columns: dict[str, object] = {
        "engine_s": round(sum(outcome.engine_seconds.values()), 3),
        "wall_s": round(outcome.wall_s, 3),
        "worker": outcome.worker,
        "seed": plan.seed,
        "run": plan.run % RETRY_STEP,
    }
    if outcome.boot is not None:
        columns |= {f"kv_tokens {name}": n for name, n in outcome.boot.kv_tokens.items()}
    return columns
