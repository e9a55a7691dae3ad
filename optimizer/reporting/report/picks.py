"""What a pick gains against the current configuration: a sentence, and figures with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from objectives.comparison import Comparison, Delta
from objectives.objective import Objective
from optimizer.profiles.profile import Profile
from optimizer.reporting.front_table import UNPAID, Table, is_tied, reference_name, settings_table, unseen_text
from optimizer.reporting.member import (
    FREE_MEMORY,
    STEADY_PREEMPTIONS,
    STRESS_PREEMPTIONS,
    Front,
    FrontMember,
)
from optimizer.reporting.report.source import Source
from optimizer.reporting.report.words import (
    base,
    capital,
    interval_of,
    limit_text,
    name_of,
    number,
    percent,
    reading,
    span,
    with_names,
)
from optimizer.reporting.tenants import tenant_texts
from optimizer.study.calibration import Calibration
from search_spaces.hardware import GIB

TITLES = {"throughput": "most throughput", "ttft": "fastest first token", "itl": "smoothest stream", "knee": "balanced"}
_LABELS = {"current": "your current configuration", "safe": "safe start"}
"""Baselines whose names say too little."""
_AMONG = {
    "throughput": "is among those that serve the most output tokens per second, alike within the noise",
    "ttft": "is among those with the shortest wait for the first token, alike within the noise",
    "itl": "is among those with the steadiest pace between tokens, alike within the noise",
}
"""Where another member has the better figure, but inside the noise."""
MEANINGS = {
    "throughput": "serves the most output tokens per second",
    "ttft": "has the shortest wait for the first token",
    "itl": "has the steadiest pace between tokens",
    "knee": "is the best balance of all objectives (the knee of the front)",
}


@dataclass(frozen=True)
class Figure:
    """One objective of one trial."""

    name: str
    value: str
    sampled: str
    """The 95 % interval of the percentile itself; empty where there is none."""
    change: str
    """Against the reference; empty for the reference."""
    interval: str
    verdict: str
    """`better`, `worse`, `tie`, or empty."""
    is_unseen: bool = False
    """It was better, and was not when measured again."""


@dataclass(frozen=True)
class Pick:
    trial: int
    title: str
    meaning: str
    sentence: str
    figures: tuple[Figure, ...]
    safety: tuple[tuple[str, str], ...]
    is_confirmed: bool
    is_reference: bool
    confirmation: str
    unseen: str = ""
    """Gains that the second measurement did not show, as half a sentence; empty where it showed all."""
    tenants: tuple[tuple[str, str], ...] = ()
    """(tenant, its own tails beside its targets), where there are several."""
    missed: str = ""
    """Limits it misses; empty for a pick."""


def pick_of(member: FrontMember, source: Source) -> Pick:
    front = source.front
    is_reference = member.trial == front.meta.reference
    comparison = None if is_reference else front.comparison(member)
    return Pick(
        trial=member.trial,
        title=_title(member, front),
        meaning=_meaning(member, front),
        sentence=_sentence(comparison, reference_name(front)),
        figures=tuple(_figure(member, i, o, comparison, source) for i, o in enumerate(front.meta.objectives)),
        unseen=unseen_text(member, front) if member.is_confirmed else "",
        tenants=_tenants(member, source),
        safety=_safety(member),
        is_confirmed=member.is_confirmed,
        is_reference=is_reference,
        confirmation=with_names(member.note),
        missed="; ".join(limit_text(limit) for limit, _ in member.missed),
    )


def _tenants(member: FrontMember, source: Source) -> tuple[tuple[str, str], ...]:
    targets = source.calibration.targets if source.calibration is not None else {}
    return tuple(tenant_texts(member, source.front.meta.objectives, targets))


def _names(member: FrontMember, n_objectives: int) -> list[str]:
    """The knee first; of one objective there is none."""
    return sorted((p for p in member.picks if n_objectives > 1 or p != "knee"), key="knee".__ne__)


def _title(member: FrontMember, front: Front) -> str:
    """`Balanced, ≈ most throughput`; a baseline by its own name first."""
    names = _names(member, len(front.meta.objectives))
    titles = [("≈ " if is_tied(p, member, front) else "") + TITLES[p] for p in names]
    picked = ", ".join([*titles, *([UNPAID] if member == front.unpaid else [])])
    own = _LABELS.get(member.label, member.label) or ("reference" if member.trial == front.meta.reference else "")
    return capital(": ".join(text for text in (own, picked) if text)) or f"Trial {member.trial}"


def _meaning(member: FrontMember, front: Front) -> str:
    """What it is picked for, as the end of a sentence."""
    if member == front.unpaid:
        return "gains the most among the configurations that are worse in nothing"
    names = _names(member, len(front.meta.objectives))
    return " and ".join(_AMONG[p] if is_tied(p, member, front) else MEANINGS[p] for p in names)


def _sentence(comparison: Comparison | None, reference: str) -> str:
    if comparison is None:
        return ""
    gains, costs = ([_moved(d) for d in comparison.deltas if d.verdict == v] for v in ("better", "worse"))
    same = [name_of(d.metric) for d in comparison.deltas if d.verdict == "tie"]
    if not gains and not costs:
        return f"It cannot be told apart from {reference}: every difference is inside the noise."
    parts = [f"Against {reference} it {_and(gains)}" if gains else f"Against {reference} it gains nothing"]
    parts += [f"at a price: it {_and(costs)}"] if costs else []
    parts += [f"{_and(same)} {'is' if len(same) == 1 else 'are'} the same within the noise"] if same else []
    return "; ".join(parts) + "."


def _moved(delta: Delta) -> str:
    """`lowers P99 ITL (steady) by 45.5 % (41.3 to 49.4 %)`."""
    interval = interval_of(delta)
    if delta.change is None or interval is None:
        return f"moves {name_of(delta.metric)} from {number(delta.baseline)} to {number(delta.value)}"
    verb = "raises" if delta.change > 0 else "lowers"
    low, high = sorted(abs(end) for end in interval)
    size = percent(abs(delta.change), is_signed=False)
    return f"{verb} {name_of(delta.metric)} by {size} ({span(low, high).replace('+', '')})"


def _and(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _figure(member: FrontMember, i: int, objective: Objective, comparison: Comparison | None, source: Source) -> Figure:
    metric, value = objective.metric, None if member.values is None else member.values[i]
    is_bound = metric.startswith("saturation_") and member.metrics.get("saturation_running_set_full") == 0
    shown = ("at least " if is_bound else "") + reading(metric, value)
    sampled = _sampled(member, metric, source.calibration, source.profile)
    name = capital(name_of(metric))
    if comparison is None:
        return Figure(name, shown, sampled, "", "", "")
    delta = comparison.deltas[i]
    interval = interval_of(delta)
    change = "" if delta.change is None else percent(delta.change)
    spread = "" if interval is None else span(*interval)
    is_unseen = member.is_confirmed and metric in source.front.unseen_gains(member)
    return Figure(name, shown, sampled, change, spread, delta.verdict, is_unseen)


def _sampled(member: FrontMember, metric: str, calibration: Calibration | None, profile: Profile) -> str:
    """The distribution-free interval of a steady tail, recorded beside it; of the worst tenant's ratio, by tenants."""
    found = _ends(member.metrics, metric) or _worst_ends(member.metrics, metric, calibration, profile)
    return "" if found is None else f"{number(found[0])} to {number(found[1])}"


def _ends(metrics: Mapping[str, float | None], metric: str) -> tuple[float, float] | None:
    if not metric.endswith("_ms"):
        return None
    low, high = (metrics.get(f"{metric.removesuffix('_ms')}_{end}_ms") for end in ("low", "high"))
    return None if low is None or high is None else (low, high)


def _worst_ends(
    metrics: Mapping[str, float | None], metric: str, calibration: Calibration | None, profile: Profile
) -> tuple[float, float] | None:
    own = base(metric)
    kind = next((k for k in ("ttft", "itl") if own.startswith(f"steady_worst_{k}_")), None)
    if kind is None or calibration is None or "_max_" in own:
        return None
    percentile = "p95" if "_p95_" in own else "p99"
    ratios = []
    for tenant in profile.tenants:
        prefix = f"{tenant.name}:" if len(profile.tenants) > 1 else ""
        ends = _ends(metrics, f"{prefix}steady_{kind}_{percentile}_ms")
        target = getattr(calibration.targets.get(tenant.name), f"{kind}_ms", None)
        if ends is not None and target:
            ratios.append((ends[0] / target, ends[1] / target))
    return (max(a for a, _ in ratios), max(b for _, b in ratios)) if len(ratios) == len(profile.tenants) else None


def _safety(member: FrontMember) -> tuple[tuple[str, str], ...]:
    m = member.metrics
    steady, stress, free = m.get(STEADY_PREEMPTIONS), m.get(STRESS_PREEMPTIONS), m.get(FREE_MEMORY)
    rows = [
        ("Preemptions per request, steady", None if steady is None else number(steady)),
        ("Preemptions per request, peak", None if stress is None else number(stress)),
        ("Least free memory at the peak", None if free is None else f"{free / GIB:.2f} GiB"),
    ]
    return tuple((name, value) for name, value in rows if value is not None)


def settings_of(source: Source) -> Table | None:
    """What the picks and the reference set, a row an argument; only arguments that differ."""
    found = settings_table(source.front, source.picked)
    return found if found.rows and len(found.header) > 2 else None
