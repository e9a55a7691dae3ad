"""A recorded trial diagnosed: the five questions for each of its servers, or why it did not get so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from objectives.comparison import compare
from objectives.measurement import LOADS, Measurement
from objectives.titles import title_of
from optimizer.errors import UserError
from optimizer.profiles.loader import parse_profile
from optimizer.questions.answer import Answer, Change
from optimizer.questions.contrast import NOISE, contrast
from optimizer.questions.diagnosis import Diagnosis, diagnose
from optimizer.questions.figure import figure
from optimizer.questions.of_phase import Server, breakage_of, situation_of
from optimizer.questions.prediction import MOST_PREDICTED, Beside, with_predictions
from optimizer.questions.situation import Situation
from optimizer.questions.tradeoff import Candidate, fastest_or_steadiest
from optimizer.questions.words import diagnosis_lines
from optimizer.reporting.elsewhere import elsewhere_of
from optimizer.reporting.front import load_front
from optimizer.reporting.member import Front, FrontMember
from optimizer.study.board_failures import advice_of
from optimizer.study.folder import StudyFolder
from optimizer.study.manifest import Manifest, load_manifest
from optimizer.trial import Broken, Infeasible, Measured, Outcome, Stopped
from search_spaces.hardware import GpuFacts, find_gpu
from search_spaces.known_models import find_model
from search_spaces.model import ModelFacts

BROKEN = 4
REQUESTS = "saturation_requests_per_s_per_gpu"


@dataclass(frozen=True)
class Failure:
    """Why a trial has no figures."""

    kind: str
    phase: str | None
    cause: str
    is_config_fault: bool
    evidence: tuple[str, ...]
    advice: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind, "phase": self.phase, "cause": self.cause, "config_fault": self.is_config_fault,
            "evidence": list(self.evidence), "advice": list(self.advice),
        }  # fmt: skip


@dataclass(frozen=True)
class Tried:
    """A recommended change that a trial of the study had: what was measured, beside what was recommended."""

    change: Change
    trial: int
    measured: Mapping[str, tuple[float, float]]
    """objective -> (this trial, the one with the change)"""
    inside_noise: tuple[str, ...] = ()
    """Objectives whose difference is smaller than two runs of one configuration differ by."""
    reasons: tuple[str, ...] = ()
    """Why they differ, as far as the loads show it."""

    @property
    def text(self) -> str:
        figures = "; ".join(
            f"{title_of(name)}: {figure(a)} -> {figure(b)}"
            + (" (no measurable difference)" if name in self.inside_noise else "")
            for name, (a, b) in self.measured.items()
        )
        tried = f"{self.change.name} = {self.change.value} was tried as trial {self.trial}: measured {figures}"
        return "; ".join([tried, *self.reasons])

    def to_json(self) -> dict[str, Any]:
        measured = {
            k: {"now": a, "then": b, "is_inside_noise": k in self.inside_noise} for k, (a, b) in self.measured.items()
        }
        return {
            "parameter": self.change.name, "value": self.change.value, "trial": self.trial, "measured": measured,
            "reasons": list(self.reasons),
        }  # fmt: skip


@dataclass(frozen=True)
class TrialDiagnosis:
    trial: int
    label: str
    missed: tuple[str, ...]
    """Limits it misses."""
    servers: Mapping[str, Diagnosis]
    """Empty where nothing was measured."""
    failure: Failure | None
    tried: tuple[Tried, ...] = ()
    across: Answer | None = None
    """Faster or steadier, over all trials of the study."""

    def to_json(self) -> dict[str, Any]:
        return {
            "trial": self.trial,
            "label": self.label,
            "missed_limits": list(self.missed),
            "failure": self.failure.to_json() if self.failure else None,
            "servers": {name: d.to_json() for name, d in self.servers.items()},
            "tried": [t.to_json() for t in self.tried],
            "faster_or_steadier_in_the_study": self.across.to_json() if self.across else None,
        }


class StudyReader:
    """A study's folder as the questions need it. Raises UserError where it holds no trials yet.

    `front`: of a study that has not exported one yet. `most_predicted`: changes a server that are simulated; 0 leaves
    every prediction out."""

    def __init__(
        self, folder: StudyFolder, front: Front | None = None, *, most_predicted: int = MOST_PREDICTED
    ) -> None:
        self.folder = folder
        self._most_predicted = most_predicted
        self.manifest: Manifest = load_manifest(folder.manifest_path)
        self.front: Front = front or load_front(folder.path / "front" / "front.json")
        self.model = _model(self.front.meta.model)
        self.gpu = _gpu(self.front.meta.gpu)
        self.profile = parse_profile(self.manifest.profile_text, self.manifest.profile, self.manifest.profile)
        self.best_per_s = self._best_per_s()

    def outcome(self, trial: int) -> Outcome:
        """Its first run's. Raises UserError if nothing of it is stored."""
        found = self.folder.load_outcome(trial)
        if found is None:
            raise UserError(f"--trial {trial}: nothing of it is stored in {self.folder.path}")
        return found

    def diagnose(self, trial: int) -> TrialDiagnosis:
        member, outcome = self.front.trial(trial), self.outcome(trial)
        missed = tuple(name for name, _ in member.missed)
        if isinstance(outcome, Infeasible | Broken):
            return TrialDiagnosis(
                trial, member.label, missed, {}, _failure(outcome, advice_of(self.folder, trial, outcome))
            )
        assert isinstance(outcome, Measured | Stopped)
        servers = {name: self._server(name, member, outcome.measurement) for name in member.configs}
        changes = [(name, change) for name, d in servers.items() for change in d.considered]
        tried = tuple(t for name, change in changes if (t := self._tried(member, name, change)) is not None)
        return TrialDiagnosis(trial, member.label, missed, servers, None, tried, self.faster_or_steadier())

    def faster_or_steadier(self) -> Answer:
        """Over all trials that have figures."""
        kept = [m for m in self.front.trials if m.values is not None]
        reference = self.front.reference
        return fastest_or_steadiest(
            [_candidate(m) for m in kept],
            self.front.meta.objectives,
            self._floors,
            _candidate(reference) if reference is not None else None,
        )

    @property
    def _floors(self) -> list[float]:
        return [self.front.meta.noise.get(o.metric, 0.0) for o in self.front.meta.objectives]

    def _facts(self, name: str, member: FrontMember, measured: Measurement) -> Server:
        return Server(
            name=name,
            config=dict(member.configs[name]),
            kv_tokens=measured.kv_tokens.get(name),
            model=self.model,
            gpu=self.gpu,
            tenants=self.profile.tenants_of(name) if len(member.configs) > 1 else (),
        )

    def _loads(self, name: str, member: FrontMember, measured: Measurement) -> tuple[Server, list[Situation]]:
        server = self._facts(name, member, measured)
        phases = [measured.phases[load] for load in LOADS if load in measured.phases]
        keeps = member.is_feasible if member.violations else None
        return server, [situation_of(p, server, f"trial {member.trial} {p.load}", keeps) for p in phases]

    def _server(self, name: str, member: FrontMember, measured: Measurement) -> Diagnosis:
        server, situations = self._loads(name, member, measured)
        phases = [measured.phases[load] for load in LOADS if load in measured.phases]
        stressed = [b for p in phases if p.load == "stress" if (b := breakage_of(p, server)) is not None]
        best = self.best_per_s if len(member.configs) == 1 else None
        source = f"trial {member.trial}" + (f", {name}" if len(member.configs) > 1 else "")
        elsewhere = elsewhere_of(self.front, member, name, situations)
        breakage = next(iter(stressed), None)
        found = diagnose(situations, best_per_s=best, elsewhere=elsewhere, breakage=breakage, source=source)
        steady = next((p for p in phases if p.load == "steady"), phases[0])
        others = tuple(self._facts(other, member, measured) for other in member.configs if other != name)
        beside = Beside(others, self.profile.sharing)
        return with_predictions(found, server, steady, self._most_predicted, beside)

    def _tried(self, member: FrontMember, instance: str, change: Change) -> Tried | None:
        """The trial whose arguments are these with the change, if one was measured."""
        for other in self.front.trials:
            if other.trial == member.trial or other.values is None or member.values is None:
                continue
            if _is_changed_by(member, other, instance, change):
                found = compare(other.values, member.values, self.front.meta.objectives, self._floors).deltas
                return Tried(
                    change,
                    other.trial,
                    {d.metric: (d.baseline, d.value) for d in found},
                    tuple(d.metric for d in found if d.verdict == "tie"),
                    self._reasons(instance, member, other),
                )
        return None

    def _reasons(self, instance: str, member: FrontMember, other: FrontMember) -> tuple[str, ...]:
        loads = []
        for one in (member, other):
            outcome = self.folder.load_outcome(one.trial)
            if not isinstance(outcome, Measured | Stopped):
                return ()
            loads.append(self._loads(instance, one, outcome.measurement)[1])
        return contrast(loads[0], loads[1], max(self._floors, default=0.0) or NOISE)

    def _best_per_s(self) -> float | None:
        """Requests per second, of all its GPUs together, of the configuration that serves most a GPU and keeps every
        limit, else of any."""
        known = [(m.is_feasible, rate, m.trial) for m in self.front.trials if (rate := m.metrics.get(REQUESTS))]
        for _, rate, trial in sorted(known, reverse=True):
            outcome = self.folder.load_outcome(trial)
            if isinstance(outcome, Measured | Stopped) and outcome.measurement.phases:
                return rate * max(p.n_gpus for p in outcome.measurement.phases.values())
        return None


def _candidate(member: FrontMember) -> Candidate:
    name = member.label or f"trial {member.trial}"
    return Candidate(name, member.values or (), tuple(name for name, _ in member.missed))


def exit_code_of(found: TrialDiagnosis) -> int:
    """0 healthy, 1 degraded (or a limit is missed), 4 broken."""
    if found.failure is not None or any(d.health == "broken" for d in found.servers.values()):
        return BROKEN
    return 1 if found.missed or any(d.health == "degraded" for d in found.servers.values()) else 0


def text_of(found: TrialDiagnosis) -> str:
    """For people."""
    label = f" ({found.label})" if found.label else ""
    lines = [f"trial {found.trial}{label}" + (f": misses {', '.join(found.missed)}" if found.missed else "")]
    if found.failure is not None:
        lines += _failure_lines(found.failure)
    for name, server in found.servers.items():
        lines += diagnosis_lines(server, name)
    lines += [f"  {tried.text}" for tried in found.tried]
    return "\n".join([*lines, *([f"  in the study: {found.across.text}"] if found.across else [])])


def _failure_lines(failure: Failure) -> list[str]:
    lines = [f"{failure.kind} ({failure.phase or 'phase unknown'}): {failure.cause}"]
    lines += [f"  evidence: {text}" for text in failure.evidence]
    return lines + [f"  {n}. {text}" for n, text in enumerate(failure.advice, 1)]


def _is_changed_by(member: FrontMember, other: FrontMember, instance: str, change: Change) -> bool:
    if set(member.configs) != set(other.configs):
        return False
    for name, config in member.configs.items():
        wanted = {**config, change.name: change.value} if name == instance else dict(config)
        if wanted != dict(other.configs[name]):
            return False
    return True


def _failure(outcome: Infeasible | Broken, advice: tuple[str, ...]) -> Failure:
    if isinstance(outcome, Broken):
        return Failure(outcome.kind or "unknown", None, outcome.cause, False, outcome.evidence, advice)
    return Failure(outcome.kind, outcome.phase, outcome.cause, True, outcome.evidence, advice)


def _model(name: str) -> ModelFacts | None:
    try:
        return find_model(name)
    except (ValueError, OSError):
        return None


def _gpu(name: str) -> GpuFacts | None:
    try:
        return find_gpu(name)
    except ValueError:
        return None
