"""What failed and why, by kind, with the advice; and which limits were missed, how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from objectives.objective import MAX_VIOLATION
from optimizer.diagnosis.advice import advise
from optimizer.diagnosis.circumstances import Circumstances
from optimizer.diagnosis.vllm_log import LogFacts
from optimizer.errors import UserError
from optimizer.reporting.member import FrontMember
from optimizer.reporting.report.source import Source
from optimizer.reporting.report.spending import STAGES, Run
from optimizer.reporting.report.words import base, capital, limit_text, percent, reading
from optimizer.study.trial_record import TrialRecord
from optimizer.trial import Broken, Infeasible

MOST_NUMBERS = 12
MOST_ADVICE, MOST_EVIDENCE = 6, 4
RULES = {
    "unsustained": "of a server that falls behind, waiting times only say how long one watched",
    "boot": "nothing was measured",
}
TITLES = {
    "weights": "the model's weights do not fit",
    "kv_capacity": "no room for the KV cache",
    "runtime_peak": "GPU memory ran out at a peak",
    "arguments": "vLLM refuses the arguments",
    "version": "not for this vLLM version or driver",
    "neighbour": "a foreign process held the card's memory",
    "orphan": "memory of an earlier server was not back",
    "profiling_race": "memory changed while vLLM measured it",
    "port": "a port was taken",
    "host_ram": "the host ran out of memory",
    "killed": "the server was killed",
    "hang": "the server hung",
    "model_missing": "model or weights not found",
    "client": "the load generator did not keep up",
    "stopped": "stopped early: could not become good any more",
    "unknown": "of unknown kind",
}


@dataclass(frozen=True)
class FailedKind:
    """Trials that failed alike."""

    title: str
    fault: str
    phase: str
    n: int
    trials: str
    example: str
    evidence: tuple[str, ...]
    """What the server itself printed, of the first of them."""
    advice: tuple[str, ...]


@dataclass(frozen=True)
class MissedLimit:
    limit: str
    n: int
    why: str


@dataclass(frozen=True)
class NearMiss:
    """A trial that misses by little: which limits, by how much of their bound, and what was measured."""

    trial: int
    rows: tuple[tuple[str, str, str], ...]
    cause: str


def failed_runs(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """(stage, what, cause) of runs that belong to no trial: the reference in calibration, above all."""
    lost = [r for r in runs if not r.is_of_trial and r.outcome in ("infeasible", "broken")]
    rows = [(STAGES.get(r.stage, r.stage), TITLES.get(r.kind, r.kind or "unknown"), r.cause) for r in lost]
    return list(dict.fromkeys(rows))


def failed_kinds(source: Source) -> list[FailedKind]:
    """The commonest first."""
    groups: dict[tuple[str, str | None], list[TrialRecord]] = {}
    for trial in source.trials:
        if trial.state in ("infeasible", "broken", "stopped"):
            groups.setdefault((_kind(trial), trial.failed_in), []).append(trial)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    return [_failed(source, kind, phase, own) for (kind, phase), own in ordered]


def _kind(trial: TrialRecord) -> str:
    return "stopped" if trial.state == "stopped" else trial.failure or "unknown"


def _evidence(source: Source, trial: int) -> tuple[str, ...]:
    try:
        outcome = source.folder.load_outcome(trial)
    except UserError:
        return ()
    return outcome.evidence[:MOST_EVIDENCE] if isinstance(outcome, Infeasible | Broken) else ()


def _failed(source: Source, kind: str, phase: str | None, own: Sequence[TrialRecord]) -> FailedKind:
    first = own[0]
    is_config = first.state in ("infeasible", "stopped")
    advice = advise(kind, phase, first.bounds, LogFacts(), Circumstances(), None, "")
    return FailedKind(
        TITLES.get(kind, kind.replace("_", " ")),
        "the configuration's" if is_config else "not the configuration's: the machine's or ours",
        (phase or "").replace("_", " "),
        len(own),
        _numbers([t.number for t in own]),
        Counter(t.reason for t in own).most_common(1)[0][0] or "no cause was recorded",
        _evidence(source, first.number),
        tuple(advice[:MOST_ADVICE]),
    )


def _numbers(numbers: Sequence[int]) -> str:
    more = len(numbers) - MOST_NUMBERS
    return ", ".join(map(str, numbers[:MOST_NUMBERS])) + (f" and {more} more" if more > 0 else "")


def missed_limits(source: Source) -> list[MissedLimit]:
    """Limits that measured trials missed, the commonest first."""
    measured = [t for t in source.trials if t.values is not None]
    counts = Counter(name for t in measured for name, v in t.violations.items() if v > 0)
    whys = {limit.text: limit.why for limit in source.calibration.limits} if source.calibration else {}
    return [MissedLimit(capital(limit_text(name)), n, (whys | RULES).get(name, "")) for name, n in counts.most_common()]


def near_misses(source: Source, n: int = 5) -> list[NearMiss]:
    return [_near(m) for m in source.front.nearest_misses(n)]


def _near(member: FrontMember) -> NearMiss:
    rows = []
    for limit, violation in member.missed if member.values is not None else ():
        metric = limit.split(" ")[0]
        value = member.metrics.get(metric)
        by = f"{MAX_VIOLATION:.0f} x or more" if violation >= MAX_VIOLATION else percent(violation, is_signed=False)
        rows.append((capital(limit_text(limit)), by, "" if value is None else reading(base(metric), value)))
    return NearMiss(member.trial, tuple(rows), member.cause)
