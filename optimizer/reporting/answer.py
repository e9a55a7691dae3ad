"""The answer: a study's trials, confirmations and rates put together as a Front, and said in plain lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from objectives.hypervolume import Axes
from objectives.pareto import front as front_of
from objectives.titles import title_of
from optimizer.reporting.front_table import Table, figure, plain
from optimizer.reporting.member import Front, FrontMember, FrontMeta, name_picks
from optimizer.reporting.tenants import tenant_lines
from optimizer.study.calibration import LOW_LOAD, Calibration
from optimizer.study.caps import CapAdvice
from optimizer.study.confirmation import Confirmation
from optimizer.study.isolation import Isolation
from optimizer.study.judge import UNSUSTAINED
from optimizer.study.rates import RateFigure, Survival
from optimizer.study.text_probe import FIGURES as TEXT_FIGURES
from optimizer.study.text_probe import TextFigure
from optimizer.study.trial_record import TrialRecord
from search_spaces.config import Config
from search_spaces.parameter import Value

REQUESTS = "saturation_requests_per_s_per_gpu"
SUSTAINED_SHARE = 0.8
"""Of its saturated rate a server is counted on for this much, as calibration does."""
THROUGHPUT = "saturation_output_tokens_per_s_per_gpu"
BASELINE_ATTRIBUTE = "baseline"


def configs_of(parameters: Mapping[str, Value], instances: Sequence[str]) -> dict[str, Config]:
    """The recorded arguments, back as one Config an instance."""
    if len(instances) == 1:
        return {instances[0]: Config(dict(parameters))}
    return {
        name: Config({k.split(".", 1)[1]: v for k, v in parameters.items() if k.split(".", 1)[0] == name})
        for name in instances
    }


def assemble(
    trials: Sequence[TrialRecord],
    meta: FrontMeta,
    instances: Sequence[str],
    axes: Axes,
    confirmations: Sequence[Confirmation] = (),
) -> Front:
    """Every finished trial as a member. The front holds what nothing feasible beats, and what nothing feasible beats
    but members that did not hold when measured again: those stay, labelled, and keep nobody else off. Picks are chosen
    among confirmed members where any is confirmed."""
    finished = [t for t in trials if t.is_finished]
    feasible = [t for t in finished if t.is_feasible and t.values is not None]
    floors = [meta.noise.get(o.metric, 0.0) for o in meta.objectives]
    lost = {c.trial for c in confirmations if not c.is_confirmed}
    on_front: set[int] = set()
    for able in (feasible, [t for t in feasible if t.number not in lost]):
        kept = front_of([t.values or () for t in able], meta.objectives, floors)
        on_front |= {able[i].number for i in kept}
    by_trial = {c.trial: c for c in confirmations}
    members = [_member(t, instances, t.number in on_front, by_trial.get(t.number)) for t in finished]
    return Front(meta, tuple(_with_picks(members, meta, axes)))


def _member(
    trial: TrialRecord, instances: Sequence[str], is_on_front: bool, confirmation: Confirmation | None
) -> FrontMember:
    return FrontMember(
        trial=trial.number,
        configs=configs_of(trial.parameters, instances),
        values=trial.values,
        metrics=trial.metrics,
        violations=trial.violations,
        is_on_front=is_on_front,
        is_confirmed=confirmation is not None and confirmation.is_confirmed,
        note=confirmation.note if confirmation is not None else "",
        again=confirmation.again if confirmation is not None else {},
        label=str(trial.attributes.get(BASELINE_ATTRIBUTE, "")),
        cause=trial.reason,
    )


def _with_picks(members: Sequence[FrontMember], meta: FrontMeta, axes: Axes) -> list[FrontMember]:
    is_any = any(m.is_confirmed for m in members if m.is_on_front)
    able = [replace(m, is_on_front=m.is_on_front and (m.is_confirmed or not is_any)) for m in members]
    chosen = {m.trial: m.picks for m in name_picks(able, meta, axes)}
    return [replace(m, picks=chosen[m.trial]) for m in members]


@dataclass(frozen=True)
class Extras:
    """What is said below the table."""

    calibration: Calibration
    rates: Sequence[RateFigure] = ()
    survivals: Sequence[Survival] = ()
    traffic_per_s: float | None = None
    peak_per_s: float | None = None
    """Rate of the recorded traffic's busiest minute."""
    gpu_price_per_hour: float | None = None
    n_gpus: int = 1
    caps: Sequence[CapAdvice] = ()
    isolations: Sequence[Isolation] = ()
    texts: Sequence[TextFigure] = ()


def answer_lines(front: Front, extras: Extras) -> list[str]:
    """Rates, replicas, cost, caps and the lines a careful reader needs; no table."""
    lines = [_rate_line(front, extras.calibration), *_volume_lines(front, extras.calibration)]
    lines += [f"trial {m.trial} is not confirmed: {m.note}" for m in front.members if m.note and not m.is_confirmed]
    lines += _single_server_lines(front, extras.calibration)
    lines += _rate_figures(front, extras.rates)
    lines += tenant_lines(front, extras.calibration.targets)
    lines += _isolation_lines(front, extras.isolations)
    lines += _text_lines(extras.texts)
    lines += _variant_lines(front)
    lines += _survival_lines(front, extras)
    lines += _cost_lines(front, extras)
    lines += [_cap_line(c) for c in extras.caps]
    return [*lines, *_overload(front, extras), *_high_traffic(extras), *_low_load(front, extras.calibration)]


def _text_lines(texts: Sequence[TextFigure]) -> list[str]:
    """What text and the server's own sampling change against token ids of exact lengths."""
    lines = (
        ["the picks as text, through the chat endpoint with its own sampling, at the same arrivals:"] if texts else []
    )
    for text in texts:
        if text.reason:
            lines.append(f"  trial {text.trial}: could not be measured: {text.reason}")
            continue
        pairs = [(name, text.as_tokens.get(name), text.as_text.get(name)) for name in TEXT_FIGURES]
        shown = [f"{title_of(n)} {_or_none(b)} (tokens {_or_none(a)})" for n, a, b in pairs]
        lines.append(f"  trial {text.trial}: {'; '.join(shown)}")
    return lines


def _or_none(value: float | None) -> str:
    return "unread" if value is None else f"{value:.4g}"


def _high_traffic(extras: Extras) -> list[str]:
    """The recorded traffic is more than one server like the reference carries."""
    recorded, capacity = extras.traffic_per_s, extras.calibration.capacity_per_s
    if not recorded or not capacity or recorded <= SUSTAINED_SHARE * capacity:
        return []
    n = math.ceil(recorded / (SUSTAINED_SHARE * capacity))
    return [
        f"the recorded traffic, {recorded:.3g} requests/s, is more than one server like the reference sustains"
        f" ({SUSTAINED_SHARE * capacity:.3g}): count on {n}"
    ]


def _cap_line(cap: CapAdvice) -> str:
    peak = f", {cap.peak_share:.0%} at the peak" if cap.peak_share else ""
    share = f"{cap.turned_away_share:.2%} of the requests{peak}"
    return f"safe with {cap.text}: it turns away {share} (tried on trial {cap.trial})"


def _overload(front: Front, extras: Extras) -> list[str]:
    """Nothing keeps up with R: what the best one finishes, and how many like it R needs."""
    measured = [m for m in front.trials if m.values is not None]
    if not measured or any(m.violations.get(UNSUSTAINED, 0.0) <= 0 for m in measured):
        return []
    best = max(measured, key=lambda m: m.metrics.get(REQUESTS) or 0.0)
    rate, capacity = extras.calibration.rate_per_s, (best.metrics.get(REQUESTS) or 0.0) * extras.n_gpus
    if not 0 < capacity < math.inf:
        return []
    n = math.ceil(rate / (SUSTAINED_SHARE * capacity))
    return [
        f"nothing keeps up with R: trial {best.trial} finishes {capacity:.3g} requests/s when saturated, so"
        f" {rate:.3g}/s need about {n} servers like it; leave --rate out to tune one server at what it can carry"
    ]


def _rate_line(front: Front, calibration: Calibration) -> str:
    sustained = "" if calibration.is_sustained else "; the reference does NOT sustain it"
    return f"R = {calibration.rate_per_s:.3g} requests/s ({calibration.how}){sustained}"


def _volume_lines(front: Front, calibration: Calibration) -> list[str]:
    """The front's hypervolume on axes frozen from the reference, and how much of it is confirmed."""
    axes = Axes(front.meta.objectives, calibration.values)
    feasible = [m.values for m in front.trials if m.is_feasible and m.values is not None]
    if not feasible:
        return []
    whole = axes.volume(feasible)
    confirmed = axes.volume([m.values for m in front.members if m.is_confirmed and m.values is not None])
    alone = axes.volume([calibration.values])
    lines = [f"hypervolume {whole:.3f} (the reference alone {alone:.3f}), {confirmed:.3f} of it by confirmed members"]
    if not any(m.is_confirmed for m in front.members):
        lines.append("NO member of the front is confirmed: measure it again before you deploy one")
    return lines


def _single_server_lines(front: Front, calibration: Calibration) -> list[str]:
    if calibration.single_server is None:
        return []
    figures = [f"{title_of(o.metric)} {figure(calibration.single_server.get(o.metric))}" for o in front.meta.objectives]
    text = "one server with every tenant on the whole card (weights once, one batch, and no tenant kept from another)"
    return [f"for comparison, {text}: " + ", ".join(figures)]


def _rate_figures(front: Front, rates: Sequence[RateFigure]) -> list[str]:
    """A table of the reference and the picks below, at and above R. Each rate replays its own stretch of the trace."""
    if not rates:
        return []
    steady = [o.metric for o in front.meta.objectives if o.metric.startswith("steady_")]
    header = ("pick", "rate", "served tokens/s/GPU", *(title_of(m) for m in steady), "sustained")
    rows = [
        (
            f"trial {member.trial} ({', '.join(member.picks) or 'reference'})" if k == 0 else "",
            f"{rate.share_of_r:g} R",
            figure(_served(rate)),
            *(figure(rate.metrics.get(m)) for m in steady),
            "yes" if rate.is_sustained else "no",
        )
        for member in _shown(front)
        for k, rate in enumerate(r for r in rates if r.trial == member.trial)
    ]
    return ["", *plain(Table(header, tuple(rows))).split("\n"), ""]


def _shown(front: Front) -> list[FrontMember]:
    """The reference first, then the members."""
    first = [front.reference] if front.reference is not None else []
    return [*first, *(m for m in front.members if m not in first)]


def _served(rate: RateFigure) -> float | None:
    """Output tokens per second and GPU: what was asked for, times the share that kept up."""
    offered = rate.metrics.get("steady_offered_output_tokens_per_s_per_gpu")
    share = rate.metrics.get("steady_completions_per_arrivals")
    return None if offered is None or share is None else offered * share


def _isolation_lines(front: Front, isolations: Sequence[Isolation]) -> list[str]:
    """A tenant's tail beside a saturated neighbour over the same beside an idle one."""
    lines = []
    for member in front.members:
        own = [i for i in isolations if i.trial == member.trial]
        if own:
            figures = [
                f"{i.tenant} {i.ttft_tail} TTFT x{figure(i.ttft_ratio)}, P99 ITL x{figure(i.itl_ratio)}" for i in own
            ]
            names = "/".join(member.picks)
            lines.append(
                f"isolation of trial {member.trial} ({names}), neighbour saturated over idle: {'; '.join(figures)}"
            )
    return lines


def _variant_lines(front: Front) -> list[str]:
    """The best of each checkpoint apart: what another checkpoint gains is no merit of the budgets."""
    groups: dict[str, list[FrontMember]] = {}
    for member in front.members:
        names = dict.fromkeys(str(c.get("model", front.meta.model)) for c in member.configs.values())
        groups.setdefault(", ".join(names), []).append(member)
    if len(groups) < 2 and list(groups) in ([], [front.meta.model]):
        return []
    return [f"checkpoint {name}: {_bests(front, members)}" for name, members in groups.items()]


def _bests(front: Front, members: Sequence[FrontMember]) -> str:
    values = [m.values for m in members if m.values is not None]
    best = [
        (max if o.direction == "maximize" else min)(v[i] for v in values) for i, o in enumerate(front.meta.objectives)
    ]
    named = zip(front.meta.objectives, best, strict=True)
    return f"{len(members)} on the front; best " + ", ".join(f"{title_of(o.metric)} {figure(b)}" for o, b in named)


def _survival_lines(front: Front, extras: Extras) -> list[str]:
    lines = []
    for survival in extras.survivals:
        held = "at least " if survival.is_at_least else ""
        text = f"trial {survival.trial} keeps the promise up to {held}{survival.rate_per_s:.3g} requests/s"
        if extras.traffic_per_s:
            n = survival.replicas(extras.traffic_per_s)
            text += f"; the recorded {extras.traffic_per_s:.3g}/s need {n} replica{'s' if n != 1 else ''}"
        if extras.peak_per_s:
            text += f", the busiest minute's {extras.peak_per_s:.3g}/s {survival.replicas(extras.peak_per_s)}"
        lines.append(text)
    return lines


def _cost_lines(front: Front, extras: Extras) -> list[str]:
    if extras.gpu_price_per_hour is None:
        return []
    costs = [
        f"trial {m.trial}{' (reference)' if m == front.reference else ''} "
        f"{cost_per_million_tokens(extras.gpu_price_per_hour, tokens):.3g}"
        for m in _shown(front)
        if (tokens := m.metrics.get(THROUGHPUT))
    ]
    at = f"at {extras.gpu_price_per_hour:g} per GPU hour, busy without a pause"
    return [f"cost per million output tokens {at}: " + ", ".join(costs)] if costs else []


def cost_per_million_tokens(price_per_hour: float, tokens_per_s_per_gpu: float) -> float:
    """Price of one GPU hour over the tokens it makes, per million."""
    return price_per_hour / (tokens_per_s_per_gpu * 3600) * 1e6


def _low_load(front: Front, calibration: Calibration) -> list[str]:
    reference = calibration.metrics.get(THROUGHPUT)
    best = max((m.metrics.get(THROUGHPUT) or 0.0 for m in front.members), default=0.0)
    if calibration.capacity_per_s is None or not reference or best <= LOW_LOAD * reference:
        return []
    share = best / reference
    return [
        f"the load is now low for this hardware: the best member saturates at {share:.2f} x the reference's capacity"
    ]
