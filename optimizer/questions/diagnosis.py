"""The five questions asked of one server, with the preemption checklist and the ITL spikes beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optimizer.questions.answer import Answer, Change
from optimizer.questions.bound import Point, batch_response, compute_or_bandwidth
from optimizer.questions.demand import Elsewhere, parameters_or_workload
from optimizer.questions.headroom import faster_or_steadier
from optimizer.questions.health import Health, health_of, problems, remarks
from optimizer.questions.host import gpu_or_cpu
from optimizer.questions.interference import Spikes, prefill_interference
from optimizer.questions.peak import Breakage, steady_or_peak
from optimizer.questions.preemption import Checklist, preemption_checklist
from optimizer.questions.situation import Situation

WORST: tuple[Health, ...] = ("broken", "degraded", "healthy", "unknown")


@dataclass(frozen=True)
class Diagnosis:
    """Of one server, over all loads that were seen of it."""

    source: str
    health: Health
    problems: tuple[str, ...]
    answers: tuple[Answer, ...]
    """Five, in the questions' order."""
    checklist: Checklist
    spikes: Spikes
    notes: tuple[str, ...] = ()
    """What a reader of its figures must be told."""

    @property
    def changes(self) -> tuple[Change, ...]:
        """What is worth a trial, each value of an argument once: by predicted gain, then in the answers' order."""
        return tuple(sorted((c for c in self.considered if not c.is_in_vain), key=lambda c: -(c.gain or 0.0)))

    @property
    def considered(self) -> tuple[Change, ...]:
        """Also those that by simulation gain nothing."""
        found = [c for answer in self.answers for c in answer.changes]
        found += [*self.checklist.changes, *self.spikes.changes]
        return tuple({(c.name, str(c.value)): c for c in reversed(found)}.values())[::-1]

    @property
    def in_vain(self) -> tuple[Change, ...]:
        return tuple(c for c in self.considered if c.is_in_vain)

    def to_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "health": self.health,
            "problems": list(self.problems),
            "questions": [a.to_json() for a in self.answers],
            "preemption": self.checklist.to_json(),
            "prefill_interference": self.spikes.to_json(),
            "changes": [c.to_json() for c in self.changes],
            "notes": list(self.notes),
        }


def diagnose(
    loads: Sequence[Situation], *, best_per_s: float | None = None, elsewhere: Elsewhere | None = None,
    breakage: Breakage | None = None, spikes: Spikes | None = None, source: str = "",
) -> Diagnosis:  # fmt: skip
    """`loads`: what was seen of one configuration of one server, at least one. The steady load is asked, of several
    the busiest, else the first; `best_per_s`: requests per second of the best configuration seen anywhere;
    `elsewhere`: configurations that keep every limit under these very loads; `spikes`: where they were read elsewhere
    than in the loads' own gaps."""
    asked = max((s for s in loads if s.load in ("steady", None)), key=_n_running, default=loads[0])
    points = _points(loads)
    full = next((s for s in loads if s.load == "saturation"), asked)
    pressed = next((s for s in sorted(loads, key=_is_saturated) if s.n_preemptions), asked)
    spikes = spikes or _spikes(loads)
    host = gpu_or_cpu(full if full.cpu or not asked.cpu else asked)
    answers = (
        compute_or_bandwidth(full, points),
        host,
        steady_or_peak(loads, breakage),
        parameters_or_workload(asked, best_per_s, batch_response(points), elsewhere),
        faster_or_steadier(asked, host, spikes),
    )
    judged = [s for s in loads if s.load != "saturation"] or list(loads)
    health: Health = min((health_of(s) for s in judged), key=WORST.index)
    told = tuple(f"{s.source}: {text}" if len(loads) > 1 else text for s in judged for text in problems(s))
    notes = tuple(dict.fromkeys([*(s.itl_note for s in loads if s.itl_note), *(x for s in judged for x in remarks(s))]))
    return Diagnosis(source or asked.source, health, told, answers, preemption_checklist(pressed), spikes, notes)


def _spikes(loads: Sequence[Situation]) -> Spikes:
    spiky = [s for s in loads if s.load != "saturation"] or loads
    return next((x for x in map(prefill_interference, spiky) if x.is_prefill), prefill_interference(spiky[0]))


def _n_running(s: Situation) -> float:
    return s.running.mean if s.running is not None else 0.0


def _is_saturated(s: Situation) -> bool:
    return s.load == "saturation"


def _points(loads: Sequence[Situation]) -> list[Point]:
    return [
        Point(s.running.mean, s.output_tokens_per_s)
        for s in loads
        if s.running is not None and s.output_tokens_per_s and s.load != "stress"
    ]
