"""The rule `unsustained`: a configuration that does not keep up with the study's rate is told so, graded."""

from __future__ import annotations

from objectives.measurement import PhaseMeasurement
from objectives.objective import MISSING_VIOLATION
from objectives.sustained import sustainment


def unsustained(phase: PhaseMeasurement) -> float:
    """Violation of "keeps up with the steady rate"; > 0 is bad, always finite.

    About the share of the offered rate that is not served (1 when nothing is). A phase that cannot be judged has
    `MISSING_VIOLATION`: unknown is not met."""
    judged = sustainment(phase)
    return MISSING_VIOLATION if judged is None else judged.value
