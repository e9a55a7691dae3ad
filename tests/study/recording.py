"""What the tests of the study share: terms, outcomes, scorecards."""

from __future__ import annotations

from pathlib import Path

from objectives.measurement import Measurement
from objectives.objective import MISSING_VIOLATION, Objective, Scorecard
from optimizer.study.distributions import standing_distributions
from optimizer.study.record import StudyRecord
from optimizer.study.terms import Terms
from optimizer.trial import Broken, Infeasible, Measured, Stopped

OBJECTIVES = (
    Objective("saturation_output_tokens_per_s_per_gpu", "maximize"),
    Objective("steady_ttft_p99_ms", "minimize"),
    Objective("steady_itl_p99_ms", "minimize"),
)
LABELS = ("output tokens/s per GPU (saturation)", "P99 TTFT, ms (steady)", "P99 ITL, ms (steady)")
CONSTRAINTS = ("stress_preemptions_per_request <= 0.1", "unsustained", "boot")
PARAMETERS = {"max_num_batched_tokens": 2048, "max_num_seqs": 128, "watermark": 0.01, "enable_prefix_caching": True}

EMPTY = Measurement({}, is_simulated=True, engine="simulator")
MEASURED = Measured(measurement=EMPTY)
INFEASIBLE = Infeasible(kind="weights_do_not_fit", phase="load", cause="out of memory", violation=0.4)
BROKEN = Broken(cause="port 8000 is taken")
STOPPED = Stopped(measurement=EMPTY, bound="unsustained", violation=0.7, reason="serves 30 % of R")


def card(values: tuple[float, ...] | None = (1000.0, 200.0, 20.0), **missed: float) -> Scorecard:
    """Every constraint met except `missed` (boot, unsustained, preemptions)."""
    violations = dict.fromkeys(CONSTRAINTS, -0.5 if values is not None else MISSING_VIOLATION)
    violations |= {CONSTRAINTS[0] if name == "preemptions" else name: v for name, v in missed.items()}
    return Scorecard(values, violations, {"steady_ttft_p99_ms": values[1] if values else None})


def add(record: StudyRecord, values: tuple[float, ...] | None = (1000.0, 200.0, 20.0), **missed: float) -> int:
    """A measured trial, opened and closed; its number."""
    number = record.open_trial(PARAMETERS)
    record.close(number, MEASURED, card(values, **missed))
    return number


def terms(**changes: object) -> Terms:
    narrow = {**PARAMETERS, "max_num_batched_tokens": 256, "max_num_seqs": 8, "watermark": 0.0}
    wide = {**PARAMETERS, "max_num_batched_tokens": 32768, "max_num_seqs": 512, "watermark": 0.1}
    plain = {
        "objectives": OBJECTIVES,
        "labels": LABELS,
        "constraint_names": CONSTRAINTS,
        "distributions": standing_distributions([narrow, wide, PARAMETERS]),
    }
    return Terms(**{**plain, **changes})  # type: ignore[arg-type]


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'study.db'}"
