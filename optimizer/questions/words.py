"""A diagnosis as text for people."""

from __future__ import annotations

from optimizer.questions.answer import Answer
from optimizer.questions.diagnosis import Diagnosis
from optimizer.questions.preemption import Checklist


def diagnosis_lines(found: Diagnosis, name: str) -> list[str]:
    """`name`: what is diagnosed."""
    lines = [f"{name}: {found.health}", *(f"  {text}" for text in found.problems)]
    lines += [line for answer in found.answers for line in answer_lines(answer)]
    lines += _checklist_lines(found.checklist)
    lines.append(f"  long gaps between tokens: {found.spikes.text}")
    lines += [f"  note: {text}" for text in found.notes]
    lines += [f"  worth a trial: {change.text}" for change in found.changes]
    idle = [f"{c.name} = {c.value}" + (f" ({c.refused})" if c.refused else "") for c in found.in_vain]
    return lines + ([f"  no trial needed, by simulation nothing gains: {'; '.join(idle)}"] if idle else [])


def _checklist_lines(checklist: Checklist) -> list[str]:
    """Five lines are for somebody who has preemptions to explain."""
    if checklist.is_preempting is False:
        return [f"  {checklist.text}, so there is nothing to look for"]
    return [f"  {checklist.text}"] + [f"    {x.name}: {x.verdict} ({x.text})" for x in checklist.lines]


def answer_lines(answer: Answer) -> list[str]:
    lines = [f"  {answer.question}. {answer.title} {answer.text} [{answer.confidence}]"]
    lines += [f"       {text}" for text in answer.evidence]
    lines += [f"       advice: {text}" for text in answer.advice]
    return lines + ([f"       would change it: {answer.would_change}"] if answer.would_change else [])
