"""Errors a user can meet, each one clear line.

OptimizerError
├── UserError            bad input: names the file, row or flag, the value, and what to do (exit 2)
│   └── StudyMismatch    a resume with other objectives, workload, model or GPU
├── EngineFailed         the engine did not boot, or died: kind, phase, cause
└── Unavailable          something this machine lacks: a GPU, vLLM, a Ray cluster (exit 3)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class OptimizerError(Exception):
    """Base of all errors raised on purpose. `str(error)` is one line fit to print."""

    exit_code = 1


class UserError(OptimizerError):
    """Input that cannot be used. The message names where it stands, the offending value and what to do next."""

    exit_code = 2


class StudyMismatch(UserError):
    """The stored study and the command disagree; the message lists the differences."""


class Unavailable(OptimizerError):
    """Something the command needs is not on this machine."""

    exit_code = 3


class EngineFailed(OptimizerError):
    """The engine refused to boot, or died while serving. Judged by `diagnosis.failure`.

    `is_config_fault` says whose fault it is: the configuration's (told to the sampler as infeasible) or ours or
    the machine's (retried)."""

    def __init__(
        self,
        kind: str,
        phase: str | None,
        cause: str,
        *,
        is_config_fault: bool,
        violation: float = 1.0,
        evidence: Sequence[str] = (),
        bounds: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(f"{kind} ({phase or 'unknown phase'}): {cause}")
        self.kind = kind
        self.phase = phase
        self.cause = cause
        self.is_config_fault = is_config_fault
        self.violation = violation
        self.evidence = tuple(evidence)
        """The lines of the log that say so, in order."""
        self.bounds = dict(bounds or {})
        """What the engine itself said would fit, e.g. {"max_model_len_at_most": 74688}; see `diagnosis.failure`."""
