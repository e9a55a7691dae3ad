"""What a question is answered with: a verdict, how sure it is, on what evidence, and what would change it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from optimizer.questions.figure import figure

Confidence = Literal["high", "medium", "low", "unknown"]
PREDICTED = {
    "ttft_p99_ms": ("P99 TTFT", " ms"),
    "itl_p99_ms": ("P99 ITL", " ms"),
    "preemptions_per_request": ("preemptions per request", ""),
    "requests_per_s_per_gpu": ("requests/s/GPU", ""),
}
"""Metric -> what people call it, and its unit."""
SHOWN = 0.005
"""Relative changes up to this are not printed."""
NO_GAIN = 0.02
"""Gains up to this are none."""


@dataclass(frozen=True)
class Change:
    """A change of arguments that is worth a trial."""

    name: str
    value: object
    why: str
    expected: str = ""
    """Direction only, in words; a size is put beside it where it was simulated (`predicted`)."""
    predicted: dict[str, tuple[float, float]] = field(default_factory=dict)
    """metric -> (as it is, with the change), both simulated: never measured."""
    refused: str = ""
    """Why the simulated server does not start with it; empty where it does, or nobody tried."""

    @property
    def text(self) -> str:
        size = "; ".join(_moved(k, a, b) for k, (a, b) in self.predicted.items() if abs(b - a) > SHOWN * abs(a))
        return f"{self.name} = {self.value}: {self.why}" + (f" (predicted by simulation: {size})" if size else "")

    @property
    def gain(self) -> float | None:
        """The largest gain of a predicted figure, relative; preemptions by how many fewer a request. None: not
        predicted."""
        return max((_gain(name, a, b) for name, (a, b) in self.predicted.items()), default=None)

    @property
    def is_in_vain(self) -> bool:
        """By simulation it does not start, or no figure gains."""
        return bool(self.refused) or (self.gain is not None and self.gain <= NO_GAIN)

    def to_json(self) -> dict[str, Any]:
        return {
            "parameter": self.name,
            "value": self.value,
            "why": self.why,
            "expected": self.expected,
            "predicted": {k: {"now": a, "then": b} for k, (a, b) in self.predicted.items()},
            "is_predicted_by": "simulator" if self.predicted else None,
            "refused": self.refused or None,
        }


@dataclass(frozen=True)
class Answer:
    """To one of the five questions. `verdict` is one of the words its module names; `unknown` says what is missing."""

    question: int
    title: str
    verdict: str
    text: str
    confidence: Confidence
    evidence: tuple[str, ...] = ()
    would_change: str = ""
    """What would have to be seen for another verdict."""
    changes: tuple[Change, ...] = ()
    advice: tuple[str, ...] = ()
    """What to do that is no argument of the server."""

    def to_json(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "title": self.title,
            "verdict": self.verdict,
            "text": self.text,
            "confidence": self.confidence,
            "evidence": list(self.evidence),
            "would_change": self.would_change,
            "changes": [c.to_json() for c in self.changes],
            "advice": list(self.advice),
        }


def _moved(metric: str, now: float, then: float) -> str:
    name, unit = PREDICTED.get(metric, (metric, ""))
    return f"{name} {figure(now)} -> {figure(then)}{unit}"


def _gain(name: str, now: float, then: float) -> float:
    if name.startswith("preemptions"):
        return now - then
    if now <= 0:
        return 0.0
    return (then - now if name.startswith("requests") else now - then) / now


def unknown(question: int, title: str, missing: str) -> Answer:
    return Answer(question, title, "unknown", f"cannot be said: {missing}", "unknown", (), f"needs {missing}")
