"""A trial that failed, for the dashboard: kind, cause and advice in its note, its log's end as a file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from optimizer.deployment.secrets import mask
from optimizer.diagnosis.advice import advise
from optimizer.diagnosis.circumstances import Circumstances
from optimizer.diagnosis.failure import judge_servers
from optimizer.diagnosis.log_line import read_lines
from optimizer.diagnosis.servers import scan_servers
from optimizer.diagnosis.vllm_log import LogFacts
from optimizer.study.board_artifacts import Attachment
from optimizer.study.folder import StudyFolder
from optimizer.trial import Broken, Infeasible

LOG_TAIL_BYTES = 64 * 1024
"""Of each server's log; the whole of it lies in the trial's folder."""
MAX_EVIDENCE = 6
"""Lines of evidence in a note; the file has them all."""

Failed = Infeasible | Broken


def failed_outcome(folder: StudyFolder, trial: int) -> Failed | None:
    """The stored outcome of the trial's first run, where that is a failure."""
    outcome = folder.load_outcome(trial)
    return outcome if isinstance(outcome, Infeasible | Broken) else None


def failure_parts(outcome: Failed, advice: Sequence[str]) -> list[str]:
    """Markdown for the trial's note."""
    phase = f" at {outcome.phase}" if isinstance(outcome, Infeasible) and outcome.phase else ""
    whose = "the configuration's fault" if isinstance(outcome, Infeasible) else "not the configuration's fault"
    parts = [f"Failed as **{outcome.kind or 'unknown'}**{phase}, {whose}."]
    if outcome.evidence:
        shown = "\n".join(mask(line).replace("```", "'''") for line in outcome.evidence[:MAX_EVIDENCE])
        parts.append(f"What the log says:\n\n```\n{shown}\n```")
    if advice:
        parts.append("What to do:\n\n" + "\n".join(f"{n}. {text}" for n, text in enumerate(advice, 1)))
    return parts


def advice_of(folder: StudyFolder, trial: int, outcome: Failed) -> tuple[str, ...]:
    """From the stored logs where they show this failure, for they tell what was given; else from what is recorded."""
    if not outcome.kind:
        return ()
    given = Circumstances(arguments=folder.parameters_of(trial))
    for path in sorted(folder.run_path(trial, 0).glob("*.log")):
        with path.open(encoding="utf-8", errors="replace") as lines:
            verdict = judge_servers(scan_servers(read_lines(lines)), given)
        if verdict is not None and verdict.kind == outcome.kind:
            return verdict.advice
    phase, bounds = (outcome.phase, outcome.bounds) if isinstance(outcome, Infeasible) else (None, {})
    return advise(outcome.kind, phase, bounds, LogFacts(), given, None, "")


def log_excerpt(folder: StudyFolder, trial: int, outcome: Failed, advice: Sequence[str]) -> Attachment:
    """What the log says failed, and the end of each server's log. Secrets are masked: in logs since they are stored."""
    text = "\n".join([*map(mask, _head(trial, outcome, advice)), *_tails(folder.run_path(trial, 0))]) + "\n"
    return Attachment(f"trial-{trial:04d}-failure.txt", text.encode(), (trial,), is_of_study=False)


def _head(trial: int, outcome: Failed, advice: Sequence[str]) -> Iterator[str]:
    phase = (outcome.phase if isinstance(outcome, Infeasible) else None) or "phase unknown"
    yield f"trial {trial}: {outcome.kind or 'unknown'} ({phase}): {outcome.cause}"
    yield from (f"evidence: {line}" for line in outcome.evidence)
    yield from (f"bound: {name} = {value:g}" for name, value in getattr(outcome, "bounds", {}).items())
    yield from (f"advice {n}: {text}" for n, text in enumerate(advice, 1))


def _tails(run: Path) -> Iterator[str]:
    for path in sorted(run.glob("*.log")):
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(size - LOG_TAIL_BYTES, 0), os.SEEK_SET)
            text = file.read().decode("utf-8", errors="replace")
        cut = size > LOG_TAIL_BYTES
        yield f"\n---- {path.name}{f', its last {LOG_TAIL_BYTES:,} of {size:,} bytes' if cut else ''}"
        yield text.partition("\n")[2] if cut else text
