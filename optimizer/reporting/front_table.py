"""The front as a table: on a terminal with rich, plain when piped; and what to say when there is no front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from objectives.comparison import Comparison, Delta
from objectives.objective import MAX_VIOLATION
from objectives.titles import title_of
from objectives.wording import limit_text, name_of, reading
from optimizer.reporting.member import (
    FREE_MEMORY,
    STEADY_PREEMPTIONS,
    STRESS_PREEMPTIONS,
    Front,
    FrontMember,
    pick_name,
)

NO_FRONT = "no feasible configuration yet"
_PICK_TITLES = {"throughput": "most throughput", "ttft": "lowest TTFT", "itl": "lowest ITL", "knee": "knee"}
UNPAID = "better without a price"
_VERDICTS = {"improvement": "an improvement", "trade": "a trade", "worse": "worse", "tie": "a tie"}
_GIB = 1024**3


@dataclass(frozen=True)
class Table:
    """Text, header and cells; rendered later."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def figure(value: float | None) -> str:
    """Three significant digits, more only for whole numbers; `-` where it could not be read."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def front_table(front: Front) -> Table:
    """The reference first, then every member: objectives with their change, safety, picks and the verdict."""
    safety = ("preemptions per request: steady, stress", "least free GiB (stress)")
    against = "against -" if front.meta.reference is None else f"against trial {front.meta.reference}"
    objectives = (title_of(o.metric) for o in front.meta.objectives)
    header = ("trial", *objectives, *safety, "confirmed", "picked as", against)
    reference = front.reference
    baselines = [m for m in front.trials if m.label and m.values is not None and not m.is_on_front]
    shown = [*sorted(baselines, key=lambda m: m != reference), *front.members]
    return Table(header, tuple(_row(front, member) for member in shown))


def reference_name(front: Front) -> str:
    """What members are compared with, e.g. `your current configuration (trial 0)`."""
    reference = next((m for m in front.trials if m.trial == front.meta.reference), None)
    if reference is None:
        return "no reference"
    names = {"current": "your current configuration", "": "the reference"}
    return f"{names.get(reference.label, reference.label)} (trial {reference.trial})"


def _row(front: Front, member: FrontMember) -> tuple[str, ...]:
    comparison = front.comparison(member)
    is_reference = member.trial == front.meta.reference
    changes = [change_text(d) for d in comparison.deltas] if comparison else ["-"] * len(front.meta.objectives)
    cells = [
        _bound(member, objective.metric) + (figure(value) if is_reference else f"{figure(value)} ({change})")
        for objective, value, change in zip(front.meta.objectives, member.values or (), changes, strict=True)
    ]
    preemptions = (figure(member.metrics.get(name)) for name in (STEADY_PREEMPTIONS, STRESS_PREEMPTIONS))
    free = member.metrics.get(FREE_MEMORY)
    return (
        str(member.trial),
        *cells,
        ", ".join(preemptions),
        figure(None if free is None else free / _GIB),
        confirmation_mark(member, front),
        pick_titles(member, front),
        _standing(member) if is_reference else _verdict(member, comparison),
    )


def change_text(delta: Delta) -> str:
    """`+2.1 %`; `≈ +0.8 %` inside the noise. The sign is the figure's, not the merit's."""
    change = "-" if delta.change is None else f"{delta.change:+.1%}".replace("%", " %")
    return f"≈ {change}" if delta.verdict == "tie" else change


def verdict_text(comparison: Comparison | None) -> str:
    """What gains here and loses there is a trade, never an improvement."""
    return _VERDICTS[comparison.verdict] if comparison else "no reference"


def pick_titles(member: FrontMember, front: Front, *, is_doubted: bool = True) -> str:
    """`lowest TTFT, knee`: the member's picks in words; `≈` where another confirmed member has the better figure, but
    inside the noise (then fewest preemptions and nearness to the others' best decide). With the doubt about a gain that
    was not seen again, unless another column tells it."""
    marks = ("≈ " if is_tied(p, member, front) else "" for p in member.picks)
    titles = [
        mark + _PICK_TITLES[p] + (_doubt(p, member, front) if is_doubted else "")
        for mark, p in zip(marks, member.picks, strict=True)
    ]
    return ", ".join([*titles, *([UNPAID] if member == front.unpaid else [])])


def _doubt(pick: str, member: FrontMember, front: Front) -> str:
    return " (gain not seen again)" if pick in map(pick_name, front.unseen_gains(member)) else ""


def unseen_text(member: FrontMember, front: Front) -> str:
    """`the gain in P99 TTFT (steady) was not seen again`; empty where every gain was."""
    names = [name_of(metric) for metric in front.unseen_gains(member)]
    return f"the gain in {' and '.join(names)} was not seen again" if names else ""


def is_tied(pick: str, member: FrontMember, front: Front) -> bool:
    for i, objective in enumerate(front.meta.objectives):
        if pick_name(objective.metric) == pick and member.values is not None:
            best = max if objective.direction == "maximize" else min
            rivals = [m for m in front.members if m.values and m.is_confirmed == member.is_confirmed]
            return best((m.values or ())[i] for m in rivals) != member.values[i]
    return False


def _bound(member: FrontMember, metric: str) -> str:
    """`>= ` before a saturation figure whose queue emptied before any limit was reached: it is a lower bound."""
    is_low = metric.startswith("saturation_") and member.metrics.get("saturation_running_set_full") == 0
    return ">= " if is_low else ""


def _verdict(member: FrontMember, comparison: Comparison | None) -> str:
    """A baseline by its name; one that misses a limit is no candidate, however it compares."""
    name = f"{member.label}: " if member.label else ""
    return f"{name}{verdict_text(comparison) if member.is_feasible else 'misses a limit'}"


def _standing(member: FrontMember) -> str:
    if member.is_on_front:
        return "itself, on the front"
    return "itself, beaten" if member.is_feasible else "itself, misses a limit"


def settings_table(front: Front, members: Sequence[FrontMember]) -> Table:
    """What the members set, one row a parameter; only parameters that differ among them or from the reference."""
    shown = [*([front.reference] if front.reference and front.reference not in members else []), *members]
    settings = [m.parameters() for m in shown]
    names = dict.fromkeys(name for s in settings for name in s)
    differing = [n for n in names if len({repr(s.get(n)) for s in settings}) > 1]
    header = ("setting", *(_heading(front, m) for m in shown))
    return Table(header, tuple((n, *(_setting(s, n) for s in settings)) for n in differing))


def _heading(front: Front, member: FrontMember) -> str:
    meta = front.meta
    names = [*([member.label or "reference"] if member.trial == meta.reference else []), *member.picks]
    names += [UNPAID] if member == front.unpaid else []
    return f"trial {member.trial}" + (f" ({', '.join(names)})" if names else "")


def _setting(settings: Mapping[str, object], name: str) -> str:
    value = settings.get(name, "-")
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value} ({value / _GIB:.2f} GiB)"
    return str(value)


def misses_table(front: Front, n: int = 5) -> Table:
    """The trials that miss their limits by least: which limit blocks, by how much, and the value measured; the cause
    where nothing was measured."""
    rows = []
    for member in front.nearest_misses(n):
        if member.values is None:
            rows.append((str(member.trial), "-", "-", "-", member.cause))
            continue
        for limit, violation in member.missed:
            metric = limit.split(" ")[0]
            value = member.metrics.get(metric)
            measured = "-" if value is None else reading(metric, value)
            rows.append((str(member.trial), limit_text(limit), _miss_text(violation), measured, ""))
    return Table(("trial", "limit missed", "by", "measured", "cause"), tuple(rows))


def _miss_text(violation: float) -> str:
    """As a share of the bound; clipped far out."""
    return f"{MAX_VIOLATION:.0f} x or more" if violation >= MAX_VIOLATION else f"{violation:.1%}".replace("%", " %")


def front_text(front: Front) -> str:
    """Everything there is to say about the front, without colour."""
    return "\n".join([*heading(front), "", *_body(front)]) + "\n"


def _body(front: Front) -> list[str]:
    if not front.members:
        return [f"{NO_FRONT}; the trials that miss their limits by least:", plain(misses_table(front)), *notes(front)]
    picked = [m for m in front.members if m in front.named]
    return [plain(front_table(front)), "", plain(settings_table(front, picked)), "", *notes(front)]


def heading(front: Front) -> list[str]:
    """Study, hardware, workload and whether a GPU or the simulator gave the figures."""
    meta = front.meta
    n_on_front, n_trials = len(front.members), len(front.trials)
    rate = f", R {meta.rate_per_s:.4g} requests/s" if meta.rate_per_s is not None else ""
    return [
        f"study {meta.study}: {meta.model} on {meta.gpu}; {n_on_front} of {n_trials} trials on the front",
        f"workload {meta.workload or '-'} ({meta.workload_hash}){rate}",
        f"{'SIMULATED, not measured on a GPU: ' if meta.is_simulated else 'measured with '}{meta.engine}",
        *_summary(front),
    ]


def _summary(front: Front) -> list[str]:
    """The knee in one line: what it gains and whether it held."""
    knee = next((m for m in front.members if "knee" in m.picks), None)
    comparison = front.comparison(knee) if knee else None
    if knee is None or comparison is None:
        return []
    if knee.trial == front.meta.reference:
        return [f"the knee is {reference_name(front)} itself: tune it only for what the other picks win"]
    changes = ", ".join(f"{title_of(d.metric)} {change_text(d)}" for d in comparison.deltas)
    unseen = unseen_text(knee, front)
    held = ("confirmed" + (f", but {unseen}" if unseen else "")) if knee.is_confirmed else "NOT confirmed"
    return [f"the knee, trial {knee.trial}, against {reference_name(front)}: {changes}; {held}"]


def notes(front: Front) -> list[str]:
    """How to read the table."""
    if not front.members:
        return []
    lines = [f"compared with {reference_name(front)}"]
    if front.reference is None:
        lines = [f"{reference_name(front)}: no figures to compare with"]
    bands = [f"{title_of(m)} {v:.1%}".replace("%", " %") for m, v in front.meta.noise.items()]
    if bands:
        lines.append(f"≈ is inside the noise of repeating the same window: {', '.join(bands)}")
    return [*lines, *_confirmation_notes(front)]


def _confirmation_notes(front: Front) -> list[str]:
    """What each mark in the column says, of those that are there."""
    baselines = [m for m in front.trials if m.label and m.values is not None]
    marks = [confirmation_mark(m, front) for m in (*front.members, *baselines)]
    meanings = {
        "in part": "kept every limit when measured again, but not every gain was seen again",
        "no": "did not hold when measured again",
        "-": "not measured again (the reference runs beside every member that is)",
    }
    found = [f"confirmed {mark}: {meaning}" for mark, meaning in meanings.items() if mark in marks]
    doubts = [(m, unseen_text(m, front)) for m in front.members if m.is_confirmed]
    return [*found, *(f"trial {m.trial}: {doubt}" for m, doubt in doubts if doubt)]


def confirmation_mark(member: FrontMember, front: Front) -> str:
    """`yes`, `in part` where a gain was not seen again, `no`, or `-` where it was not measured again."""
    if member.is_confirmed:
        return "in part" if front.unseen_gains(member) else "yes"
    return "no" if member.note else "-"


def plain(table: Table) -> str:
    """Columns padded with blanks; wide headings are broken over lines."""
    widths = [max((len(row[i]) for row in table.rows), default=0) for i in range(len(table.header))]
    headings = [_broken(text, max(width, 11)) for text, width in zip(table.header, widths, strict=True)]
    n_lines = max(len(lines) for lines in headings)
    padded = [[""] * (n_lines - len(lines)) + lines for lines in headings]
    widths = [max(w, *map(len, lines)) for w, lines in zip(widths, headings, strict=True)]
    rows = [*zip(*padded, strict=True), tuple("-" * w for w in widths), *table.rows]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _broken(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def print_front(front: Front, file: IO[str]) -> None:
    """Coloured boxes on a terminal, plain columns in a pipe or a file."""
    if not file.isatty():
        file.write(front_text(front))
        return
    from rich.console import Console

    console = Console(file=file, highlight=False)
    for line in heading(front):
        console.print(line, style="bold yellow" if line.startswith("SIMULATED") else "", markup=False)
    if not front.members:
        console.print(f"{NO_FRONT}; the trials that miss their limits by least:", style="bold red", markup=False)
        console.print(_rich(misses_table(front)))
    else:
        console.print(_rich(front_table(front)))
        console.print(_rich(settings_table(front, [m for m in front.members if m in front.named])))
    for line in notes(front):
        console.print(line, style="dim", markup=False)


def _rich(table: Table) -> object:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for text in table.header:
        drawn.add_column(Text("\n".join(_broken(text, 12))), overflow="fold", vertical="middle")
    for row in table.rows:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn
