"""A diagnosis as text for people."""

from __future__ import annotations

from optimizer.questions.answer import Answer
from optimizer.questions.diagnosis import Diagnosis


def diagnosis_lines(found: Diagnosis, name: str) -> list[str]:
    """`name`: what is diagnosed."""
    lines = [f"{name}: {found.health}", *(f"  {text}" for text in found.problems)]
    lines += [line for answer in found.answers for line in answer_lines(answer)]
    lines.append(f"  {found.checklist.text}")
    lines += [f"    {line.name}: {line.verdict} ({line.text})" for line in found.checklist.lines]
    lines.append(f"  long gaps between tokens: {found.spikes.text}")
    lines += [f"  note: {text}" for text in found.notes]
    return lines + [f"  worth a trial: {change.text}" for change in found.changes]


def answer_lines(answer: Answer) -> list[str]:
    lines = [f"  {answer.question}. {answer.title} {answer.text} [{answer.confidence}]"]
    lines += [f"       {text}" for text in answer.evidence]
    lines += [f"       advice: {text}" for text in answer.advice]
    return lines + ([f"       would change it: {answer.would_change}"] if answer.would_change else [])
