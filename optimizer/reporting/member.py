"""FrontMember, FrontMeta and Front: what a study found, as tables, exports and reports need it.

Loaded and saved by `optimizer.reporting.front`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from objectives.comparison import Comparison, Verdict, compare
from objectives.hypervolume import Axes
from objectives.objective import Objective
from objectives.pareto import TieBreak, picks
from optimizer.deployment.deployment import Deployment
from optimizer.errors import UserError
from search_spaces.config import Config

PICKS = ("throughput", "ttft", "itl", "knee")
STEADY_PREEMPTIONS = "steady_preemptions_per_request"
STRESS_PREEMPTIONS = "stress_preemptions_per_request"
FREE_MEMORY = "stress_min_free_memory_bytes"


@dataclass(frozen=True, kw_only=True)
class FrontMember:
    """One trial as it was told."""

    trial: int
    configs: Mapping[str, Config]
    """Instance -> the arguments its server ran with, in starting order."""
    values: tuple[float, ...] | None
    """One per objective of the meta, in own units; None if an objective could not be read."""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    violations: Mapping[str, float] = field(default_factory=dict)
    """Limit text or rule -> how far it is missed, relative to its bound; > 0 is bad."""
    is_on_front: bool = False
    picks: tuple[str, ...] = ()
    """Names of PICKS this member carries."""
    is_confirmed: bool = False
    """Measured once more (another seed, a held-out window) and still as good."""
    note: str = ""
    """About the confirmation, e.g. what the second measurement gave."""
    again: Mapping[str, Verdict] = field(default_factory=dict)
    """Objective -> how it compared with the reference in the second measurement; empty where there was none."""
    label: str = ""
    """`current` or `vLLM defaults` for the baselines; empty else."""
    cause: str = ""
    """Why nothing was measured, where nothing was."""

    @property
    def is_feasible(self) -> bool:
        return self.values is not None and all(v <= 0 for v in self.violations.values())

    @property
    def total_violation(self) -> float:
        return math.fsum(v for _, v in self.missed)

    @property
    def missed(self) -> tuple[tuple[str, float], ...]:
        """Limits that are missed and by how much of their bound, worst first."""
        return tuple(sorted(((k, v) for k, v in self.violations.items() if v > 0), key=lambda item: -item[1]))

    def parameters(self) -> dict[str, Any]:
        """`max_num_seqs` for one server, `chat.max_num_seqs` for several, as the study records them."""
        if len(self.configs) == 1:
            return dict(next(iter(self.configs.values())))
        return {f"{name}.{k}": v for name, config in self.configs.items() for k, v in config.items()}


@dataclass(frozen=True, kw_only=True)
class FrontMeta:
    """What every member has in common."""

    study: str
    model: str
    """What `vllm serve` is given: a Hugging Face id or a directory."""
    gpu: str
    engine: str
    """Engine name and version."""
    is_simulated: bool
    objectives: tuple[Objective, ...]
    workload_hash: str
    profile: str = ""
    workload: str = ""
    """The trace's name or path."""
    rate_per_s: float | None = None
    """R: requests per second of the steady load."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Program -> version, e.g. {"optimizer": "0.1.0", "vllm": "0.32.0"}."""
    noise: Mapping[str, float] = field(default_factory=dict)
    """Metric -> relative half-width of what repeating one window gives (0.03: 3 %); differences inside are ties."""
    reference: int | None = None
    """Trial that members are compared with: the user's current configuration, else vLLM's defaults."""
    sharing: str = "exclusive"
    """How the instances share one card's compute."""
    kept: Deployment | None = None
    """The user's current deployment: its untuned flags are written into every export."""


@dataclass(frozen=True)
class Front:
    """A loaded `front.json`."""

    meta: FrontMeta
    trials: tuple[FrontMember, ...]
    """Every trial told, by number."""

    @property
    def members(self) -> tuple[FrontMember, ...]:
        """On the front, the best first objective first."""
        sign = -1.0 if self.meta.objectives[0].direction == "maximize" else 1.0
        found = [m for m in self.trials if m.is_on_front and m.values is not None]
        return tuple(sorted(found, key=lambda m: sign * (m.values or (0.0,))[0]))

    @property
    def reference(self) -> FrontMember | None:
        """None as well when the reference was not measured."""
        found = (m for m in self.trials if m.trial == self.meta.reference and m.values is not None)
        return next(found, None)

    def comparison(self, member: FrontMember) -> Comparison | None:
        """The member against the reference; None where either has no figures."""
        if self.reference is None or member.values is None or self.reference.values is None:
            return None
        floors = [self.meta.noise.get(o.metric, 0.0) for o in self.meta.objectives]
        return compare(member.values, self.reference.values, self.meta.objectives, floors)

    def unseen_gains(self, member: FrontMember) -> tuple[str, ...]:
        """Objectives that were better than the reference and were not when measured again."""
        comparison = self.comparison(member)
        gained = [d.metric for d in comparison.deltas if d.verdict == "better"] if comparison else []
        return tuple(m for m in gained if member.again.get(m, "better") != "better")

    @property
    def unpaid(self) -> FrontMember | None:
        """What gains most against the reference among members that lose nothing to it, neither time; None where that
        is a pick already or there is none. Confirmed ones first, never one that did not hold."""
        found = [(m, gain) for m in self.members if (gain := self._gain_without_price(m))]
        best = max(found, key=lambda item: (item[0].is_confirmed, item[1]), default=None)
        return None if best is None or best[0].picks else best[0]

    def _gain_without_price(self, member: FrontMember) -> float:
        """Sum of the gains as logarithms of ratios; 0 where any objective is worse, or a second measurement failed."""
        comparison = self.comparison(member)
        has_failed = bool(member.note) and not member.is_confirmed
        if comparison is None or comparison.verdict != "improvement" or has_failed or "worse" in member.again.values():
            return 0.0
        better = [d for d in comparison.deltas if d.verdict == "better" and d.value > 0 and d.baseline > 0]
        return math.fsum(abs(math.log(d.value / d.baseline)) for d in better)

    @property
    def named(self) -> tuple[FrontMember, ...]:
        """Members with a name, the knee first, what is better without a price last."""
        picked = sorted((m for m in self.members if m.picks), key=lambda m: "knee" not in m.picks)
        return (*picked, *([self.unpaid] if self.unpaid is not None else []))

    def nearest_misses(self, n: int = 5) -> tuple[FrontMember, ...]:
        """The infeasible trials that miss their limits by least, the least first; those with figures come first."""
        missed = [m for m in self.trials if m.total_violation > 0]
        return tuple(sorted(missed, key=lambda m: (m.values is None, m.total_violation, m.trial))[:n])

    def trial(self, number: int) -> FrontMember:
        """Raises UserError when the study has no such trial."""
        for member in self.trials:
            if member.trial == number:
                return member
        known = f"0 to {self.trials[-1].trial}" if self.trials else "none yet"
        raise UserError(f"--trial {number}: study {self.meta.study!r} has no such trial (there is {known})")

    def pick(self, name: str) -> FrontMember:
        """Raises UserError when no member carries that name."""
        for member in self.members:
            if name in member.picks:
                return member
        known = ", ".join(dict.fromkeys(p for m in self.members for p in m.picks)) or "none"
        raise UserError(f"--pick {name}: no member of the front is picked as that (there is {known})")


def name_picks(members: Sequence[FrontMember], meta: FrontMeta, axes: Axes) -> list[FrontMember]:
    """The same members with `picks` set: the best in each objective among those on the front, and the knee.

    Ties inside the noise go to fewer preemptions under stress, then to more free memory. `axes` are the study's."""
    on_front = [m for m in members if m.is_on_front and m.values is not None]
    floors = [meta.noise.get(o.metric, 0.0) for o in meta.objectives]
    breaks = [TieBreak(m.metrics.get(STRESS_PREEMPTIONS), m.metrics.get(FREE_MEMORY)) for m in on_front]
    found = picks([m.values or () for m in on_front], meta.objectives, axes, floors, breaks) if on_front else ()
    names = [*(pick_name(o.metric) for o in meta.objectives), "knee"]
    chosen: dict[int, tuple[str, ...]] = {}
    for name, pick in zip(names, found, strict=False):
        trial = on_front[pick.index].trial
        chosen[trial] = (*chosen.get(trial, ()), *([name] if name else []))
    return [replace(m, picks=chosen.get(m.trial, ())) for m in members]


def pick_name(metric: str) -> str:
    """The pick that is best in `metric`; "" if none is named after it."""
    names = {"tokens_per_s": "throughput", "ttft": "ttft", "itl": "itl"}
    return next((name for part, name in names.items() if part in metric), "")
