"""A recorded trial diagnosed: the five questions for each of its servers, or why it did not get so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from objectives.measurement import LOADS, Measurement
from optimizer.diagnosis.advice import advise
from optimizer.diagnosis.circumstances import Circumstances
from optimizer.diagnosis.vllm_log import LogFacts
from optimizer.errors import UserError
from optimizer.profiles.loader import parse_profile
from optimizer.questions.answer import Change
from optimizer.questions.diagnosis import Diagnosis, diagnose
from optimizer.questions.of_phase import Server, breakage_of, situation_of
from optimizer.questions.prediction import MOST_PREDICTED, with_predictions
from optimizer.questions.words import diagnosis_lines
from optimizer.reporting.front import load_front
from optimizer.reporting.member import Front, FrontMember
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

    @property
    def text(self) -> str:
        figures = ", ".join(f"{name} {a:.4g} -> {b:.4g}" for name, (a, b) in self.measured.items())
        return f"{self.change.name} = {self.change.value} was tried as trial {self.trial}: measured {figures}"

    def to_json(self) -> dict[str, Any]:
        measured = {k: {"now": a, "then": b} for k, (a, b) in self.measured.items()}
        return {"parameter": self.change.name, "value": self.change.value, "trial": self.trial, "measured": measured}


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

    def to_json(self) -> dict[str, Any]:
        return {
            "trial": self.trial,
            "label": self.label,
            "missed_limits": list(self.missed),
            "failure": self.failure.to_json() if self.failure else None,
            "servers": {name: d.to_json() for name, d in self.servers.items()},
            "tried": [t.to_json() for t in self.tried],
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
            return TrialDiagnosis(trial, member.label, missed, {}, _failure(outcome))
        assert isinstance(outcome, Measured | Stopped)
        servers = {name: self._server(name, member, outcome.measurement) for name in member.configs}
        changes = [(name, change) for name, d in servers.items() for change in d.changes]
        tried = tuple(t for name, change in changes if (t := self._tried(member, name, change)) is not None)
        return TrialDiagnosis(trial, member.label, missed, servers, None, tried)

    def _server(self, name: str, member: FrontMember, measured: Measurement) -> Diagnosis:
        server = Server(
            name=name,
            config=dict(member.configs[name]),
            kv_tokens=measured.kv_tokens.get(name),
            model=self.model,
            gpu=self.gpu,
            tenants=self.profile.tenants_of(name) if len(member.configs) > 1 else (),
        )
        phases = [measured.phases[load] for load in LOADS if load in measured.phases]
        situations = [situation_of(p, server, f"trial {member.trial} {p.load}") for p in phases]
        stressed = [b for p in phases if p.load == "stress" if (b := breakage_of(p, server)) is not None]
        best = self.best_per_s if len(member.configs) == 1 else None
        source = f"trial {member.trial}" + (f", {name}" if len(member.configs) > 1 else "")
        found = diagnose(situations, best_per_s=best, breakage=next(iter(stressed), None), source=source)
        steady = next((p for p in phases if p.load == "steady"), phases[0])
        return with_predictions(found, server, steady, self._most_predicted)

    def _tried(self, member: FrontMember, instance: str, change: Change) -> Tried | None:
        """The trial whose arguments are these with the change, if one was measured."""
        for other in self.front.trials:
            if other.trial == member.trial or other.values is None or member.values is None:
                continue
            if _is_changed_by(member, other, instance, change):
                names = [o.metric for o in self.front.meta.objectives]
                both = zip(names, member.values, other.values, strict=True)
                return Tried(change, other.trial, {name: (a, b) for name, a, b in both})
        return None

    def _best_per_s(self) -> float | None:
        """Requests per second of the configuration that serves most and keeps every limit, else of any."""
        rates = [(m.is_feasible, m.metrics.get(REQUESTS)) for m in self.front.trials]
        known = [(ok, rate) for ok, rate in rates if rate]
        return max(known)[1] if known else None


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
    return "\n".join([*lines, *(f"  {tried.text}" for tried in found.tried)])


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


def _failure(outcome: Infeasible | Broken) -> Failure:
    if isinstance(outcome, Broken):
        advice = advise(outcome.kind, None, {}, LogFacts(), Circumstances(), None, "") if outcome.kind else ()
        return Failure(outcome.kind or "unknown", None, outcome.cause, False, outcome.evidence, advice)
    advice = advise(outcome.kind, outcome.phase, outcome.bounds, LogFacts(), Circumstances(), None, "")
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
