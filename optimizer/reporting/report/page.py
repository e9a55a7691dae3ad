"""The page: every part worked out, one template filled, one file written whole. Nothing in it is fetched."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from optimizer import __version__
from optimizer.deployment.secrets import mask
from optimizer.reporting.report import failures, interactions, knobs, spending, timelines, workload
from optimizer.reporting.report.answer import Answer, answer_of
from optimizer.reporting.report.chart import Chart
from optimizer.reporting.report.commands import deployments_of, study_commands
from optimizer.reporting.report.fronts import front_charts, growth_chart
from optimizer.reporting.report.glossary import glossary_of
from optimizer.reporting.report.importance import importance_chart, importance_of, importance_sentences
from optimizer.reporting.report.picks import settings_of
from optimizer.reporting.report.questions import study_answers, trial_answers
from optimizer.reporting.report.source import Source
from optimizer.reporting.report.table import Table, table_of
from optimizer.reporting.report.words import capital, duration, with_names
from optimizer.study.files import write_atomic

TEMPLATES = Path(__file__).parent / "templates"
MOST_EXTRAS = 60
KEY = re.compile(
    r"^Trial \d+ keeps the promise|^Cost per|^The recorded traffic|^Nothing keeps up|^Safe with|^The load is now"
)
"""Beginnings of lines of `reporting.answer`."""


@dataclass(frozen=True)
class Knobs:
    """What the search learned of its parameters."""

    importance: Chart | None
    told: list[str]
    pair: tuple[str, str] | None
    pair_charts: list[Chart]
    pair_told: list[str]
    first: list[knobs.KnobRow]
    others: list[knobs.KnobRow]


def write_report(source: Source, path: Path) -> int:
    """Its size in bytes. Raises Unavailable when the file cannot be written; half of it never appears."""
    data = render(source).encode("utf-8", errors="replace")
    write_atomic(path, data)
    return len(data)


def render(source: Source) -> str:
    """The page's text. Everything that is not markup of the templates is escaped, and secrets are masked."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, finalize=_safe,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.globals["duration"] = duration
    environment.filters["capital"] = capital
    environment.filters["breakable"] = _breakable
    return environment.get_template("report.html").render(**_context(source))


def _safe(value: Any) -> Any:
    """Jinja2 escapes afterwards; markup is ours already."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else mask(value)


def _breakable(name: str) -> Markup:
    """A long name breaks behind its dots and underscores where a column is narrow, never amid a word."""
    return Markup(re.sub(r"([._])(?=.)", r"\1<wbr>", str(escape(mask(name)))))


def _context(source: Source) -> dict[str, Any]:
    answer = answer_of(source)
    titles = titles_of(answer)
    runs = spending.read_runs(source)
    parts: dict[str, Any] = {
        "source": source, "meta": source.front.meta, "answer": answer, "settings": settings_of(source),
        "version": __version__,
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "counts": _counts(source), "extras": extras_of(source),
        "front": front_charts(source), "growth": growth_chart(source), "knobs": _knobs(source),
        "timelines": timelines.timelines(source, titles),
        "spending": spending.spending_of(source, runs) if runs else None,
        "failures": failures.failed_kinds(source), "failed_runs": failures.failed_runs(runs),
         "missed": failures.missed_limits(source),
        "near": failures.near_misses(source) if not source.front.members else [],
        "whole": study_answers(source), "questions": trial_answers(source, titles),
        "workload": workload.workload_of(source),
        "commands": study_commands(source), "deployments": deployments_of(source, titles),
        "glossary": glossary_of(source),
    }  # fmt: skip
    return {**parts, "style": _file("report.css"), "script": _file("report.js"), "plotly": _plotly()}


def titles_of(answer: Answer) -> dict[int, str]:
    """trial -> what it is called, on every part of the page."""
    found = {p.trial: p.title for p in answer.picks}
    if answer.reference is not None and answer.reference.trial not in found:
        found[answer.reference.trial] = f"reference: {answer.reference.title}"
    return found


def _counts(source: Source) -> list[tuple[str, str]]:
    trials = source.trials
    total = source.manifest.n_trials
    done = sum(t.is_finished for t in trials)
    return [
        ("trials done", f"{done} of {total}" if done < total else str(done)),
        ("keep every limit", str(sum(t.is_feasible for t in trials))),
        ("miss a limit", str(sum(t.values is not None and not t.is_feasible for t in trials))),
        ("failed or stopped", str(sum(t.state in ("infeasible", "stopped", "broken") for t in trials))),
        ("on the front", str(len(source.front.members))),
    ]


def _knobs(source: Source) -> Knobs:
    table = table_of(source)
    found = importance_of(table)
    order = found.order if found is not None else tuple(k.name for k in table.knobs)
    linked = interactions.interactions_of(table)
    pair = _pair(table, order, linked)
    first, others = knobs.knob_rows(source, order)
    return Knobs(
        importance=importance_chart(found) if found is not None else None,
        told=importance_sentences(found, table),
        pair=pair,
        pair_charts=[interactions.pair_chart(table, pair, j) for j in range(len(table.objectives))] if pair else [],
        pair_told=interactions.interaction_sentences(linked, table),
        first=first,
        others=others,
    )


def _pair(
    table: Table, order: tuple[str, ...], linked: list[interactions.Interaction] | None
) -> tuple[str, str] | None:
    """The two knobs that depend on each other most, else the two most important ones."""
    if len(order) < 2 or len(table) < interactions.LEAST_IN_MAP:
        return None
    beyond = [i for i in linked or [] if i.is_beyond_chance]
    return beyond[0].knobs if beyond else (order[0], order[1])


@dataclass(frozen=True)
class Extra:
    """A line, or a table, of the study's own answer."""

    text: str
    is_table: bool = False

    @property
    def is_key(self) -> bool:
        """What it means for the user's traffic and money: shown without a click."""
        return not self.is_table and KEY.match(self.text) is not None


def extras_of(source: Source) -> list[Extra]:
    """What the study's own answer says below its tables: rates, isolation, replicas, cost."""
    path = source.folder.front_path / "answer.txt"
    if source.status == "running" or not path.is_file():
        return []
    text = path.read_text("utf-8", errors="replace")
    at = text.find("\nR = ")
    blocks = text[at + 1 :].split("\n\n") if at >= 0 else []
    return list(_blocks(blocks))[:MOST_EXTRAS]


def _blocks(blocks: Iterable[str]) -> Iterator[Extra]:
    for block in blocks:
        rows = block.strip("\n").split("\n")
        if any(set(row.strip()) <= {"-", " "} and "---" in row for row in rows):
            yield Extra("\n".join(rows), is_table=True)
        else:
            yield from (Extra(capital(with_names(row.strip()))) for row in rows if row.strip())


def _file(name: str) -> Markup:
    return Markup((TEMPLATES / name).read_text("utf-8"))


def _plotly() -> Markup:
    """plotly.js whole, as the installed plotly carries it."""
    from plotly.offline import get_plotlyjs

    return Markup(get_plotlyjs().replace("</script", "<\\/script"))
