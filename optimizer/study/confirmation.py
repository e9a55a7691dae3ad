"""Confirmation: the front's members, or those of them that are picked, measured once more, on traffic the search never
saw and with another seed.

Each runs three times: every load on the held-out window, and the steady load on the searched one with two other
seeds, where it must sustain R again, both times.

The reference runs there too: levels differ between windows by far more than between configurations, so what must
persist is the gain over the reference, not the figure. Limits that are relative to the reference are relative to its
run there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeVar

from objectives.comparison import Comparison, Delta, Verdict, compare
from objectives.objective import Limit, Objective, Scorecard
from objectives.wording import name_of
from optimizer.engines.engine import LoadPlan, Placement
from optimizer.study.judge import UNSUSTAINED, Judge, missed_text
from optimizer.study.runs import Runs
from optimizer.trial import TrialPlan

CONFIRMATION_RUN, AGAIN_RUNS = 1, (2, 3)
"""Run numbers of a trial's confirmation: other traffic, and R again; run 0 is the search's."""

OTHER_TRAFFIC = 0.03
"""Other traffic at the same rate may leave this much more unserved than the reference does: as much as `sustained`
itself allows, since windows differ in load by more."""


Scope = Literal["none", "pick", "front"]
"""What is measured again: nothing, the members that are picked, or every member of the front."""


def scope_of(asked: Scope | None, *, is_simulated: bool) -> Scope:
    """As asked; else the whole front where a run costs virtual time, and the picks where it costs real time."""
    return asked or ("front" if is_simulated else "pick")


class Candidate(Protocol):
    """A member of the front, as far as choosing needs it."""

    @property
    def trial(self) -> int: ...

    @property
    def picks(self) -> Sequence[str]: ...


M = TypeVar("M", bound=Candidate)


def to_confirm(members: Sequence[M], scope: Scope, confirmed: Collection[int]) -> list[M]:
    """The members still to be measured again. Asked anew after each round, since a pick that does not hold passes to
    another member. What is never measured again stays labelled unconfirmed."""
    able = {"none": [], "pick": [m for m in members if m.picks], "front": list(members)}[scope]
    return [m for m in able if m.trial not in confirmed]


@dataclass(frozen=True)
class Confirmation:
    """What the second measurement of one trial said."""

    trial: int
    is_confirmed: bool
    note: str
    values: tuple[float, ...] | None
    """The objectives there; None if they could not be read."""
    again: Mapping[str, Verdict] = field(default_factory=dict)
    """Objective -> how it compares with the reference there; empty where the two could not be compared."""


@dataclass(frozen=True)
class Confirmer:
    """What confirming needs. `loads` are made from the held-out window, or from the searched one if there is none."""

    judge: Judge
    loads: tuple[LoadPlan, ...]
    is_held_out: bool
    steady_again: tuple[LoadPlan, ...]
    """The steady load of the searched window."""
    reference: Placement
    reference_values: tuple[float, ...]
    """The reference's objectives on the searched window."""
    relative: Mapping[str, float]
    """metric -> factor of the limits that are multiples of the reference's figure"""
    floors: tuple[float, ...]
    seed: int
    runs: Runs

    def confirm(self, members: Sequence[tuple[int, Placement, tuple[float, ...]]]) -> tuple[Confirmation, ...]:
        """`members`: (trial, servers, values on the searched window). Runs all of them and the reference."""
        if not members:
            return ()
        plans = self._interleaved(members)
        outcomes = self.runs.carry_out(plans, "confirmation", lambda p, o: _whose(p))
        done = {(p.trial, p.run): o for p, o in zip(plans, outcomes, strict=True)}
        there = self.judge.score(done[-1, 0])
        judge = self._judge_there(there)
        return tuple(
            self._verdict(
                trial,
                values,
                judge.score(done[trial, CONFIRMATION_RUN]),
                [self.judge.score(done[trial, run]) for run in AGAIN_RUNS],
                there,
            )
            for trial, _, values in members
        )

    def _interleaved(self, members: Sequence[tuple[int, Placement, tuple[float, ...]]]) -> list[TrialPlan]:
        """The reference amid the members: a machine that grows warm meanwhile then favours nobody. A member's repeats
        stand together, since servers of the same arguments are kept between runs."""
        first = [self._plan(trial, CONFIRMATION_RUN, placement, self.loads) for trial, placement, _ in members]
        first.insert(len(first) // 2, self._plan(-1, 0, self.reference, self.loads))
        return first + [
            self._plan(t, run, placement, self.steady_again) for t, placement, _ in members for run in AGAIN_RUNS
        ]

    def _plan(self, trial: int, run: int, placement: Placement, loads: tuple[LoadPlan, ...]) -> TrialPlan:
        """The first run of each on servers of its own, so that a lucky boot is not confirmed by itself."""
        seed = self.seed * 1_000_003 + 500_009 + max(trial, -1) * 13 + run
        is_fresh = run not in AGAIN_RUNS
        return TrialPlan(trial, run, "confirmation", placement, loads, seed, is_fresh=is_fresh)

    def _judge_there(self, reference: Scorecard | None) -> Judge:
        if reference is None:
            return self.judge
        return replace(self.judge, limits=tuple(self._relative_there(x, reference) for x in self.judge.limits))

    def _relative_there(self, limit: Limit, reference: Scorecard) -> Limit:
        factor, value = self.relative.get(limit.metric), reference.metrics.get(limit.metric)
        if factor is None or value is None or limit.at_most is None or limit.why == "promised by the user":
            return limit
        return replace(limit, at_most=factor * value)

    def _verdict(
        self,
        trial: int,
        values: tuple[float, ...],
        card: Scorecard | None,
        again: Sequence[Scorecard | None],
        reference: Scorecard | None,
    ) -> Confirmation:
        if any(one is None or one.violations.get(UNSUSTAINED, 1.0) > 0 for one in again):
            return Confirmation(trial, False, "same window, other seed: it does not sustain R again", None)
        where = "held-out window, other seed" if self.is_held_out else "same window, other seed"
        if card is None or card.values is None:
            return Confirmation(trial, False, f"{where}: it could not be measured again", None)
        if missed := self._missed(card, reference):
            return Confirmation(trial, False, f"{where}: {missed}", card.values)
        objectives = self.judge.objectives
        before = compare(values, self.reference_values, objectives, self.floors)
        if reference is None or reference.values is None:
            return Confirmation(trial, False, f"{where}: the reference could not be measured there", card.values)
        after = compare(card.values, reference.values, objectives, self.floors)
        lost = lost_gains(before, after, objectives)
        verdicts = {d.metric: d.verdict for d in after.deltas}
        if lost:
            names = ", ".join(map(name_of, lost))
            return Confirmation(trial, False, f"{where}: the gain in {names} is gone", card.values, verdicts)
        return Confirmation(trial, True, f"{where}: {_gains_text(after)}", card.values, verdicts)

    @staticmethod
    def _missed(card: Scorecard, reference: Scorecard | None) -> str:
        """Limits missed there. Not keeping up counts only where the reference keeps up better: windows differ."""
        there = reference.violations.get(UNSUSTAINED, 0.0) if reference is not None else 0.0
        missed = [n for n in card.binding if n != UNSUSTAINED or card.violations[n] > max(there, 0.0) + OTHER_TRAFFIC]
        return "; ".join(missed_text(n, card.violations[n]) for n in missed)


def lost_gains(before: Comparison, after: Comparison, objectives: Sequence[Objective]) -> tuple[str, ...]:
    """Objectives that were better than the reference and now are worse, or all of them if no gain is left at all."""
    gained = [i for i, d in enumerate(before.deltas) if d.verdict == "better"]
    lost = [i for i in gained if after.deltas[i].verdict == "worse"]
    if gained and not any(after.deltas[i].verdict == "better" for i in gained):
        lost = gained
    return tuple(objectives[i].metric for i in lost)


def _gains_text(after: Comparison) -> str:
    return "against the reference there " + ", ".join(
        f"{name_of(d.metric)} {_change(d)}" if d.change is not None else f"{name_of(d.metric)} {d.value:.4g}"
        for d in after.deltas
    )


def _change(delta: Delta) -> str:
    change = f"{delta.change:+.1%}".replace("%", " %")
    return f"≈ {change}" if delta.verdict == "tie" else change


def _whose(plan: TrialPlan) -> str:
    return "reference" if plan.trial < 0 else f"trial {plan.trial}"
