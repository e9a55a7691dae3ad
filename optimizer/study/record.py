"""The Optuna study that is the record: arguments, values, constraints and reasons of every trial. The driver writes.

Nothing is sampled here: points come from a `Proposer`, and the arguments they resolve to are written as they are.

How a trial is told:
    Measured      COMPLETE, its true values, every limit's violation as a constraint
    Infeasible    PRUNED without values, constraints above 0 (`told_infeasible="COMPLETE"`: the worst values so far)
    Stopped       the same, with the graded constraints of what was measured
    Broken        FAIL, after the driver's retries; no constraints: it says nothing about the configuration

The budget is the number of Optuna trials. A driver that died leaves RUNNING trials behind; `adopt_running` hands them
out again under their own number, so that a resumed study ends at the same total, with no number spent twice. A trial
that was running when drivers died MAX_LOST times is closed as FAIL: it may be what killed them.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

import optuna
from optuna.exceptions import DuplicatedStudyError, ExperimentalWarning
from optuna.trial import FrozenTrial, TrialState, create_trial

from objectives.objective import Scorecard
from objectives.pareto import Floors, front
from optimizer.deployment.secrets import MASK
from optimizer.errors import StudyMismatch, UserError
from optimizer.study import distributions as standing
from optimizer.study.constraints import constraint_vector, write_constraints
from optimizer.study.files import json_safe
from optimizer.study.outcomes import kind_of, masked_arguments
from optimizer.study.storage import close_connections, mask, open_storage, retrying, use_wal
from optimizer.study.terms import Terms
from optimizer.study.trial_record import (
    BOUNDS,
    FAILURE,
    METRICS,
    N_LOST,
    OTHER,
    OUTCOME,
    PHASE,
    POINT,
    REASON,
    STAGE,
    TrialRecord,
    read_trial,
)
from optimizer.trial import Infeasible, Outcome
from search_spaces.parameter import Value

MAX_LOST = 3
_TERMS = "optimizer:terms"
"""System attribute of the study: what every trial in it has in common."""
_log = logging.getLogger(__name__)
T = TypeVar("T")


class StudyRecord:
    """The study in its storage. One instance a driver; readers use `load`."""

    def __init__(self, study: optuna.Study, storage: optuna.storages.RDBStorage, url: str, terms: Terms) -> None:
        self.study = study
        self.terms = terms
        self.url = url
        """As given, password included: show `mask(url)`."""
        self._storage = storage

    @classmethod
    def open(cls, url: str, name: str, terms: Terms) -> Self:
        """The study `name` in the storage, made if it is not there. Raises StudyMismatch if it has other terms."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = open_storage(url)
        use_wal(storage, is_on=True)
        study = retrying(lambda: _load_or_create(storage, name, terms), url)
        stored = study._storage.get_study_system_attrs(study._study_id).get(_TERMS)
        if stored is None:
            if study.get_trials(deepcopy=False):
                raise StudyMismatch(
                    f"{mask(url)}: the Optuna study {name!r} was written by another program; use another --study"
                )
            record = cls(study, storage, url, terms)
            record._write_terms()
            return record
        kept = Terms.from_json(stored)
        if differences := kept.differences(terms):
            raise StudyMismatch(f"study {name!r} cannot be resumed: {'; '.join(differences)}; use another --study")
        return cls(study, storage, url, kept)

    @classmethod
    def load(cls, url: str, name: str) -> Self:
        """An existing study, for reading. Raises UserError if it is not there or is not one of ours."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = open_storage(url)
        names = retrying(lambda: optuna.get_all_study_names(storage), url)
        if name not in names:
            raise UserError(f"no study {name!r} in {mask(url)}: there is {', '.join(map(repr, names)) or 'none'}")
        study = retrying(lambda: optuna.load_study(study_name=name, storage=storage), url)
        stored = study._storage.get_study_system_attrs(study._study_id).get(_TERMS)
        if stored is None:
            raise UserError(f"{mask(url)}: the Optuna study {name!r} was written by another program")
        return cls(study, storage, url, Terms.from_json(stored))

    @property
    def name(self) -> str:
        return self.study.study_name

    def close_storage(self) -> None:
        """Leave one plain file behind and no open connection."""
        close_connections(self._storage)

    def let_go(self) -> None:
        """A reader is done: its connections end, and the file stays as its writer wants it."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    # writing

    def open_trial(
        self,
        parameters: Mapping[str, Value],
        *,
        stage: str = "",
        point: Mapping[str, Value] | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> int:
        """Record a trial as RUNNING with exactly these arguments, in one transaction; returns its number.

        Arguments of None were not given to the server and are left out. One that cannot stand beside earlier ones
        (another kind of value) is kept in the attribute `other_arguments`."""
        params, other = self._recordable(parameters)
        shown = {STAGE: stage, **(attributes or {})}
        shown |= {POINT: dict(point)} if point is not None else {}
        shown |= {OTHER: other} if other else {}
        trial = create_trial(
            state=TrialState.RUNNING,
            params=params,
            distributions={n: standing.fitting(self.terms.distributions.get(n), v) for n, v in params.items()},
            user_attrs=json_safe(shown),
        )
        self._do(lambda: self.study.add_trial(trial))
        return self._n_recorded() - 1

    def close(
        self,
        number: int,
        outcome: Outcome,
        scorecard: Scorecard | None,
        *,
        reason: str = "",
        columns: Mapping[str, Any] | None = None,
    ) -> bool:
        """Tell a trial, once. A late or repeated result is dropped with a log line and False.

        `scorecard` is None only for Broken. `columns` become user attributes (columns of the dashboard's table)."""
        trial = self._find(number)
        if trial.state.is_finished():
            _log.info(
                "trial %d is already %s; a late result (%s) is dropped", number, trial.state.name, kind_of(outcome)
            )
            return False
        name = kind_of(outcome)
        shown: dict[str, Any] = {OUTCOME: name, REASON: reason, **(columns or {})}
        if isinstance(outcome, Infeasible):
            shown |= {FAILURE: outcome.kind, PHASE: outcome.phase, BOUNDS: dict(outcome.bounds) or None}
        if name == "broken" or scorecard is None:
            return self._tell(trial, shown, TrialState.FAIL, None)
        has_values = name == "measured" and scorecard.values is not None
        shown[METRICS] = dict(scorecard.metrics)
        vector = constraint_vector(self.terms.constraint_names, scorecard.violations, has_values=has_values)
        self._do(lambda: write_constraints(self.study, trial._trial_id, vector))
        values = _checked(scorecard.values, self.terms) if has_values else self._placeholder()
        return self._tell(trial, shown, TrialState.PRUNED if values is None else TrialState.COMPLETE, values)

    def adopt_running(self) -> tuple[TrialRecord, ...]:
        """Trials that a dead driver left RUNNING, to be run again under their own numbers. Call once, at start-up.

        Counted on the trial; at MAX_LOST it is closed as FAIL instead."""
        adopted = []
        for trial in self._do(lambda: self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))):
            n_lost = trial.user_attrs.get(N_LOST, 0) + 1
            if n_lost >= MAX_LOST:
                why = f"the driver died {n_lost} times while this trial ran"
                self._tell(trial, {N_LOST: n_lost, OUTCOME: "broken", REASON: why}, TrialState.FAIL, None)
                continue
            self._write_attributes(trial, {N_LOST: n_lost})
            adopted.append(self.trial(trial.number))
        return tuple(adopted)

    def forgive_running(self) -> None:
        """The user stops the driver on purpose: trials that run now are not counted as lost by it."""
        for trial in self._do(lambda: self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))):
            self._write_attributes(trial, {N_LOST: trial.user_attrs.get(N_LOST, 0) - 1})

    def set_attribute(self, name: str, value: Any) -> None:
        """A user attribute of the study, shown by the dashboard."""
        self._do(lambda: self.study.set_user_attr(name, json_safe(value)))

    # reading

    def trials(self) -> tuple[TrialRecord, ...]:
        """Every trial, in order. Trials that somebody only enqueued are left out: they never ran."""
        found = self._do(lambda: self.study.get_trials(deepcopy=False))
        return tuple(self._read(t) for t in found if t.state != TrialState.WAITING)

    def trial(self, number: int) -> TrialRecord:
        return self._read(self._find(number))

    @property
    def n_trials(self) -> int:
        """What counts against --n-trials: every trial that ran or runs, infeasible and failed ones included."""
        found = self._do(lambda: self.study.get_trials(deepcopy=False))
        return sum(t.state != TrialState.WAITING for t in found)

    def front(self, floors: Floors | None = None) -> tuple[TrialRecord, ...]:
        """The feasible measured trials that no other one beats beyond the noise, by number.

        Not Optuna's or the dashboard's own list: the latter ignores constraints."""
        feasible = [t for t in self.trials() if t.values is not None and t.is_feasible]
        values = [t.values for t in feasible if t.values is not None]
        return tuple(feasible[i] for i in front(values, self.terms.objectives, floors))

    # inside

    def _do(self, call: Callable[[], T]) -> T:
        return retrying(call, self.url)

    def _read(self, trial: FrozenTrial) -> TrialRecord:
        return read_trial(trial, self.terms.constraint_names)

    def _find(self, number: int) -> FrozenTrial:
        trials = self._do(lambda: self.study.get_trials(deepcopy=False))
        if not 0 <= number < len(trials):
            raise ValueError(f"trial {number} is not in study {self.name!r} ({len(trials)} trials)")
        return trials[number]

    def _n_recorded(self) -> int:
        return len(self._do(lambda: self.study.get_trials(deepcopy=False)))

    def _recordable(self, parameters: Mapping[str, Value]) -> tuple[dict[str, Value], dict[str, Value]]:
        params: dict[str, Value] = {}
        other: dict[str, Value] = {}
        for name, value in masked_arguments(parameters).items():
            if value is not None:
                fits = value != MASK and standing.can_record(
                    standing.fitting(self.terms.distributions.get(name), value), value
                )
                (params if fits else other)[name] = value
        return params, other

    def _placeholder(self) -> list[float] | None:
        """For samplers that ignore PRUNED: the worst values measured so far. None until there are any."""
        measured = [t.values for t in self.trials() if t.values is not None]
        if self.terms.told_infeasible == "PRUNED" or not measured:
            return None
        columns = zip(*measured, strict=True)
        return [
            min(c) if o.direction == "maximize" else max(c) for c, o in zip(columns, self.terms.objectives, strict=True)
        ]

    def _tell(
        self, trial: FrozenTrial, shown: Mapping[str, Any], state: TrialState, values: Sequence[float] | None
    ) -> bool:
        self._write_attributes(trial, shown)
        self._do(lambda: self.study.tell(trial.number, values, state=state, skip_if_finished=True))
        return True

    def _write_attributes(self, trial: FrozenTrial, shown: Mapping[str, Any]) -> None:
        storage = self.study._storage
        for key, value in json_safe(shown).items():
            if value not in (None, ""):
                self._do(partial(storage.set_trial_user_attr, trial._trial_id, key, value))

    def _write_terms(self) -> None:
        storage, study_id = self.study._storage, self.study._study_id
        self._do(lambda: storage.set_study_system_attr(study_id, _TERMS, self.terms.to_json()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            self._do(lambda: self.study.set_metric_names(list(self.terms.labels)))


def _load_or_create(storage: optuna.storages.RDBStorage, name: str, terms: Terms) -> optuna.Study:
    """Never `load_if_exists`: it keeps the stored directions whatever is asked for."""
    sampler = optuna.samplers.RandomSampler(seed=0)
    wanted = [o.direction for o in terms.objectives]
    try:
        return optuna.create_study(storage=storage, study_name=name, directions=wanted, sampler=sampler)
    except DuplicatedStudyError:
        study = optuna.load_study(study_name=name, storage=storage, sampler=sampler)
    stored = [d.name.lower() for d in study.directions]
    if stored != wanted:
        raise StudyMismatch(
            f"study {name!r} cannot be resumed: directions {stored} in the study, {wanted} now; use another --study"
        )
    return study


def _checked(values: Sequence[float] | None, terms: Terms) -> list[float]:
    """Plain floats, as many as objectives. Optuna would turn anything else into FAIL with only a warning."""
    numbers = [float(v) for v in values or ()]
    if len(numbers) != len(terms.objectives) or not all(map(math.isfinite, numbers)):
        raise ValueError(f"expected {len(terms.objectives)} finite values, got {numbers}")
    return numbers
