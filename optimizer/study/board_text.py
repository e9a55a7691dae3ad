"""What optuna-dashboard says about a study and a trial, as Markdown. Only our own front is shown as the front."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from objectives.hypervolume import Axes
from objectives.pareto import Floors, picks
from objectives.wording import limit_text
from optimizer.study.board_artifacts import Link
from optimizer.study.board_files import files_part
from optimizer.study.terms import Terms
from optimizer.study.trial_record import TrialRecord
from search_spaces.config import Config
from search_spaces.parameter import Value

MAX_ROWS = 20
MAX_NUMBERS = 8
LEAST_TRIALS = 20
"""Measured ones that the search proposed; below this the best quarter is a handful, and every argument explains
something."""
_MARKS = {
    "yes": "measured again, and what it gains was there",
    "in part": "kept every limit when measured again, but not every gain was seen again",
    "no": "did not hold when measured again",
    "-": "not measured again",
}


@dataclass(frozen=True)
class About:
    """What people should know of a study before they read its numbers."""

    title: str
    facts: Mapping[str, str]
    """Model, GPU, engine, workload, R, …: name -> value, shown in this order."""
    meanings: Mapping[str, str] = field(default_factory=dict)
    """Constraint name -> what it means and why it is there."""
    commands: tuple[str, ...] = ()
    """What to type next."""
    is_simulated: bool = False
    n_trials: int = 0
    """The study's total; 0 if unknown."""
    floors: Floors | None = None
    """Relative noise floor of each objective; smaller differences are ties."""
    axes: Axes | None = None
    """Frozen axes for the knee; no named picks without them."""
    picked: Mapping[int, str] | None = None
    """trial -> names of its picks, once the study has chosen them; None while it runs."""
    front: tuple[int, ...] | None = None
    """The members that the study has chosen, those that a refuted one kept off among them; None while it runs."""
    confirmed: Mapping[int, str] = field(default_factory=dict)
    """Member -> `yes`, `in part: ...`, `no` or `-`, as the answer says it."""
    diagnoses: Mapping[int, str] = field(default_factory=dict)
    """trial -> its diagnosis as Markdown, for its note; known at the end."""
    diagnosis: str = ""
    """What of them stands in the study's note."""


@dataclass(frozen=True)
class Standing:
    """A study's trials, its front and the names of its members, at one moment."""

    trials: tuple[TrialRecord, ...]
    front: tuple[TrialRecord, ...]
    names: Mapping[int, str]
    """trial -> the picks it is, e.g. `knee, lowest TTFT`."""
    confirmed: Mapping[int, str] = field(default_factory=dict)
    """Member -> how far it is confirmed; empty while nothing is."""
    reference: TrialRecord | None = None
    """What everything is compared with, once it was measured."""

    @property
    def finished(self) -> tuple[TrialRecord, ...]:
        return tuple(t for t in self.trials if t.is_finished)

    @property
    def proposed(self) -> tuple[TrialRecord, ...]:
        """Measured trials that the search chose; baselines are not its choice."""
        return tuple(t for t in self.trials if t.values is not None and "baseline" not in t.attributes)

    @property
    def feasible(self) -> tuple[TrialRecord, ...]:
        return tuple(t for t in self.trials if t.is_feasible)


def standing_of(
    trials: tuple[TrialRecord, ...], front: tuple[TrialRecord, ...], terms: Terms, about: About
) -> Standing:
    reference = next((t for t in trials if "baseline" in t.attributes and t.values is not None), None)
    if about.front is not None:
        front = tuple(t for t in trials if t.number in about.front)
    if about.picked is not None:
        return Standing(trials, front, about.picked, about.confirmed, reference)
    names: dict[int, list[str]] = {}
    values = [t.values for t in front if t.values is not None]
    if about.axes is not None and values:
        for pick in picks(values, terms.objectives, about.axes, about.floors):
            names.setdefault(front[pick.index].number, []).append(pick.name)
    named = {number: ", ".join(picked) for number, picked in names.items()}
    return Standing(trials, front, named, about.confirmed, reference)


def study_note(standing: Standing, terms: Terms, about: About, files: Sequence[Link] = ()) -> str:
    """The study's note: what it is, the true front and why, its files, what the constraints mean, what to do next."""
    parts = [
        f"# {escape(about.title)}",
        *(["**Simulated**: every figure here comes from a simulated GPU."] if about.is_simulated else []),
        _progress(standing, about),
        *([warning] if (warning := many_objectives(len(terms.objectives))) else []),
        *_front_part(standing, terms),
        *(["## Why", about.diagnosis] if about.diagnosis else []),
        *files_part(files, standing.names),
        *_failures_part(standing),
        *_constraints_part(standing, terms, about),
        "## The study",
        _table(("", ""), [(name, value) for name, value in about.facts.items()]),
        *(["## Next", "\n".join(f"    {command}" for command in about.commands)] if about.commands else []),
        "*The driver rewrites this note while the study runs; keep notes of your own with the trials.*",
    ]
    return "\n\n".join(parts) + "\n"


def trial_note(
    trial: TrialRecord,
    terms: Terms,
    standing: Standing | None = None,
    *,
    is_simulated: bool = False,
    more: Sequence[str] = (),
) -> str:
    """The trial's note: what it is, why it is no candidate, what it measured, `more` Markdown, how it was started.

    `standing` is given at the end of a study only: while it runs, the front that a note speaks of would soon be old."""
    simulated = " (simulated)" if is_simulated else ""
    parts = [f"### Trial {trial.number}{simulated}: {_verdict(trial)}"]
    if standing is not None and any(t.number == trial.number for t in standing.front):
        name = standing.names.get(trial.number)
        held = _held(standing.confirmed.get(trial.number, ""))
        parts.append((f"**On the front: {name}.**" if name else "**On the front.**") + held)
    if trial.stage:
        parts.append(f"Stage: {escape(' '.join([trial.stage, str(trial.attributes.get('baseline', ''))]))}")
    if trial.reason:
        parts.append(f"**{escape(trial.reason[:600])}**")
    if trial.values is not None:
        parts.append(_table(("objective", "value"), [*zip(terms.labels, map(figure, trial.values), strict=True)]))
    if trial.binding and trial.state != "infeasible":  # of which every limit counts as missed
        parts.append(_table(("limit missed", "by"), [(limit_text(name), amount(v)) for name, v in trial.binding]))
    parts += [*more, f"```\n{launch_text(trial.parameters)}\n```"]
    return "\n\n".join(parts) + "\n"


def _held(told: str) -> str:
    """How far the trial is confirmed, and which gain is doubted; empty while nothing is known."""
    mark, _, doubt = told.partition(": ")
    titles = {"yes": "Confirmed", "in part": "Confirmed in part"}
    return f" {titles.get(mark, 'Not confirmed')}: {doubt or _MARKS[mark]}." if mark in _MARKS else ""


def many_objectives(n: int) -> str | None:
    """A warning when the front says little: with more than three objectives most trials are on it."""
    if n <= 3:
        return None
    return f"**{n} objectives**: with more than three, most trials are on the front; turn some into limits."


def launch_text(parameters: Mapping[str, Value]) -> str:
    """The flags of every server, one server a paragraph, under vLLM's own names."""
    servers: dict[str, dict[str, Value]] = {}
    for name, value in parameters.items():
        owner, _, flag = name.rpartition(".")
        servers.setdefault(owner, {})[flag] = value
    parts = [[*([f"# {owner}"] if owner else []), *_flag_lines(Config(own))] for owner, own in servers.items()]
    return "\n\n".join("\n".join(lines) for lines in parts)


def _flag_lines(config: Config) -> list[str]:
    lines = []
    for name in config:
        lines.append(shlex.join(Config({name: config[name]}).arguments()))
    return lines


def _progress(standing: Standing, about: About) -> str:
    done, total = len(standing.finished), about.n_trials
    text = f"{done} of {total} trials done" if total else f"{done} trials done"
    n_refused = sum(t.state == "infeasible" for t in standing.trials)
    return (
        f"{text}: {len(standing.feasible)} keep every limit, {n_refused} did not start or died, "
        f"{len(standing.front)} are on the front."
    )


def _front_part(standing: Standing, terms: Terms) -> list[str]:
    if not standing.front:
        return _nothing_feasible(standing)
    shown = sorted(standing.front, key=lambda t: (t.number not in standing.names, -(t.values or (0.0,))[0]))[:MAX_ROWS]
    left = len(standing.front) - len(shown)
    return [
        "## The front",
        *_members_table(shown, standing, terms),
        *([f"… and {left} more."] if left else []),
        "optuna-dashboard marks *Best Trials* whatever limits they miss; this table and the plots of the front do not.",
        *_importance_part(standing),
        *_starts(shown, standing),
    ]


def _importance_part(standing: Standing) -> list[str]:
    """The dashboard draws its own importances whatever they rest on."""
    n = len(standing.proposed)
    if n >= LEAST_TRIALS:
        return []
    return [
        f"Its *Hyperparameter Importance* rests on {n} measured trials here: with fewer than {LEAST_TRIALS}, which"
        " argument decides cannot be told."
    ]


def _members_table(shown: Sequence[TrialRecord], standing: Standing, terms: Terms) -> list[str]:
    """The last column once the study is over, and what its marks mean."""
    rows = [(f"**{t.number}**", standing.names.get(t.number, ""), *map(figure, t.values or ())) for t in shown]
    header = ("trial", "picked as", *terms.labels)
    if not standing.confirmed:
        return [_table(header, rows)]
    told = [standing.confirmed.get(t.number, "-") for t in shown]
    marks = {text.partition(": ")[0] for text in told}
    meanings = ". ".join(f"Confirmed *{mark}*: {meaning}" for mark, meaning in _MARKS.items() if mark in marks)
    full = [(*row, text) for row, text in zip(rows, told, strict=True)]
    return [_table((*header, "confirmed"), full), f"{meanings}."]


def _starts(members: Sequence[TrialRecord], standing: Standing) -> list[str]:
    """How the named picks are started."""
    picked = [t for t in members if t.number in standing.names]
    return [
        f"**{standing.names[t.number]}** (trial {t.number})\n\n```\n{launch_text(t.parameters)}\n```" for t in picked
    ]


def _nothing_feasible(standing: Standing) -> list[str]:
    """Never an empty list without saying what stands in the way."""
    tried = sorted((t for t in standing.trials if t.violations), key=lambda t: (t.total_violation, t.number))[:5]
    if not tried:
        return ["## The front", "No configuration has been measured yet."]
    rows = [(f"**{t.number}**", limit_text(name), amount(v)) for t in tried for name, v in t.binding[:3]]
    return [
        "## No feasible configuration yet",
        "The trials that come nearest, and what stands in the way:",
        _table(("trial", "limit missed", "by"), rows),
    ]


def _constraints_part(standing: Standing, terms: Terms, about: About) -> list[str]:
    if not terms.constraint_names:
        return []
    rows = []
    for i, name in enumerate(terms.constraint_names):
        n_missed = sum(t.values is not None and t.violations.get(name, 0.0) > 0 for t in standing.trials)
        rows.append((str(i), limit_text(name), about.meanings.get(name, ""), str(n_missed)))
    text = "A trial is feasible when all of its constraints are 0 or below. Grey points in the plots miss at least one."
    return ["## Limits", text, _table(("#", "limit", "why", "measured trials that miss it"), rows)]


def _failures_part(standing: Standing) -> list[str]:
    """What failed, by kind, the most frequent first, with one trial's words for it."""
    kinds: dict[str, list[TrialRecord]] = {}
    for trial in standing.trials:
        if trial.state in ("infeasible", "broken"):
            kinds.setdefault(trial.failure or "not the configuration's fault", []).append(trial)
    rows = [
        (f"`{kind}`" if trials[0].failure else kind, _numbers(trials), trials[0].reason[:200])
        for kind, trials in sorted(kinds.items(), key=lambda entry: -len(entry[1]))
    ]
    return ["## Failures", _table(("kind", "trials", "for example"), rows)] if rows else []


def _numbers(trials: Sequence[TrialRecord]) -> str:
    shown = ", ".join(str(t.number) for t in trials[:MAX_NUMBERS])
    return shown if len(trials) <= MAX_NUMBERS else f"{shown}, … ({len(trials)})"


def _verdict(trial: TrialRecord) -> str:
    match trial.state:
        case "running":
            return "running"
        case "infeasible":
            return f"infeasible ({escape(trial.failure or 'it did not serve')})"
        case "stopped":
            return "stopped early, cannot become good"
        case "broken":
            return "broken (not the configuration's fault)"
    return "feasible, keeps every limit" if trial.is_feasible else "measured, misses a limit"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The dashboard's tables have no padding: every cell ends in an em space."""
    body = ["| " + " | ".join(escape(cell) + "\N{EM SPACE}" for cell in line) + " |" for line in (header, *rows)]
    return "\n".join([body[0], "|" + " --- |" * len(header), *body[1:]])


def escape(text: str) -> str:
    """One line of Markdown that cannot break a table or become a tag."""
    flat = " ".join(str(text).split()).replace("|", "\\|")
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", flat)


def figure(value: float) -> str:
    """Three significant digits; more only for whole numbers."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def amount(violation: float) -> str:
    """A relative violation as a percentage of the bound; 100 % also stands for "could not be read"."""
    return f"{violation:.0%}" if violation >= 0.01 else f"{violation:.1%}"
