"""Views of a running study: a live table on a terminal, plain lines in a pipe, JSON lines for programs."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any, Protocol, TextIO

from optimizer.reporting.front_table import figure
from optimizer.study.events import (
    Event,
    Notice,
    RunFinished,
    StageStarted,
    StudyFinished,
    TrialFinished,
    TrialStarted,
)
from optimizer.study.files import json_safe

MAX_SHOWN = 12
"""Members of the front in the live table: more would scroll away."""


class View(Protocol):
    """Shows events. `close` leaves the terminal as it was found."""

    def show(self, event: Event) -> None: ...

    def close(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class Header:
    """What stands above the progress for the whole run."""

    title: str
    objectives: tuple[str, ...]
    """Names with units, in the objectives' order."""
    dashboard_command: str


def choose_view(header: Header, *, is_json: bool, stream: TextIO | None = None) -> View:
    """JSON lines when asked for, a live table on a terminal, else plain lines."""
    out = stream or sys.stdout
    if is_json:
        return JsonView(header, out)
    return TerminalView(header, out) if out.isatty() else PlainView(header, out)


class JsonView:
    """One JSON object a line: {"event": ..., "time": ..., fields}; the header first, as event `StudyOpened`."""

    def __init__(self, header: Header, out: TextIO) -> None:
        self._out = out
        self._write("StudyOpened", header)

    def show(self, event: Event) -> None:
        self._write(type(event).__name__, event)

    def _write(self, name: str, fields: Header | Event) -> None:
        body = {"event": name, "time": round(time.time(), 3), **json_safe(dataclasses.asdict(fields))}
        print(json.dumps(body, allow_nan=False), file=self._out, flush=True)

    def close(self) -> None:
        return


class PlainView:
    """A line an event, for pipes and logs."""

    def __init__(self, header: Header, out: TextIO) -> None:
        self._header = header
        self._out = out
        print(header.title, file=out)
        print(f"watch: {header.dashboard_command}", file=out, flush=True)

    def show(self, event: Event) -> None:
        if (line := plain_line(event, self._header.objectives)) is not None:
            print(line, file=self._out, flush=True)

    def close(self) -> None:
        return


def plain_line(event: Event, objectives: tuple[str, ...]) -> str | None:
    """The event as one line; None for events that are not worth one."""
    match event:
        case Notice(text=text, is_warning=is_warning):
            return f"{'warning: ' if is_warning else ''}{text}"
        case StageStarted(stage=stage, why=why):
            return f"== {stage}: {why}"
        case RunFinished(purpose=purpose, n_done=done, n_total=total, detail=detail):
            return f"{purpose} {done}/{total}" + (f": {detail}" if detail else "")
        case TrialFinished():
            return _trial_line(event, objectives)
        case StudyFinished():
            return (
                f"finished: {event.n_trials} trials, {event.n_feasible} feasible, {event.n_front} on the front,"
                f" {event.wall_s:.0f} s ({event.reason})"
            )
    return None


def _trial_line(event: TrialFinished, objectives: tuple[str, ...]) -> str:
    left = f" | {event.seconds_left:.0f} s left" if event.seconds_left else ""
    return (
        f"[{event.n_done}/{event.n_total}] trial {event.trial} ({event.label or event.stage}) "
        f"{trial_text(event, objectives)} | feasible {event.n_feasible}/{event.n_done} | front {event.n_front}"
        f" | hypervolume {event.hypervolume:.3f}{left}"
    )


def trial_text(event: TrialFinished, objectives: tuple[str, ...]) -> str:
    """What came of the trial: its figures, and why it is no candidate."""
    if event.values is None:
        return event.reason if event.state == "broken" else f"{event.state}: {event.reason}"
    return f"{format_values(event.values, objectives)} | {'ok' if event.is_feasible else event.reason}"


def format_values(values: tuple[float, ...], objectives: tuple[str, ...]) -> str:
    """`tok/s/GPU 812, P99 TTFT ms 312, ...`: the values with their short names."""
    return ", ".join(f"{name} {figure(value)}" for name, value in zip(objectives, values, strict=True))


class TerminalView:
    """A live panel: progress, feasible share, current front, hypervolume, time left, the dashboard command."""

    def __init__(self, header: Header, out: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._header = header
        self._console = Console(file=out, highlight=False)
        self._last: TrialFinished | None = None
        self._stage = ""
        self._run = ""
        self._running: set[int] = set()
        self._started = time.monotonic()
        self._live = Live(self._render(), console=self._console, refresh_per_second=4, transient=True)
        self._console.print(header.title, style="bold", markup=False)
        self._live.start()

    def show(self, event: Event) -> None:
        from rich.text import Text

        match event:
            case Notice() | StudyFinished():
                style = "yellow" if isinstance(event, Notice) and event.is_warning else None
                self._console.print(plain_line(event, self._header.objectives), style=style, markup=False)
            case StageStarted(stage=stage, why=why):
                self._stage, self._run = stage, ""
                self._console.print(Text.assemble((stage, "bold cyan"), f": {why}"))
            case RunFinished():
                self._run = plain_line(event, ()) or ""
            case TrialStarted(trial=trial):
                self._running.add(trial)
            case TrialFinished():
                self._running.discard(event.trial)
                self._last = event
                self._run = f"trial {event.trial} {trial_text(event, self._header.objectives)}"
        self._live.update(self._render(), refresh=True)

    def _render(self) -> Any:
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        rows: list[Any] = [self._progress_line()]
        if self._last is not None and self._last.front:
            rows.append(self._front_table())
        if self._run:
            rows.append(Text(f"last: {self._run}", no_wrap=True, overflow="ellipsis"))
        rows.append(Text(f"watch: {self._header.dashboard_command}", style="dim"))
        return Panel(Group(*rows), title=self._stage or "starting", title_align="left")

    def _progress_line(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        last = self._last
        grid = Table.grid(padding=(0, 3))
        if last is None:
            grid.add_row("no trial yet", f"{time.monotonic() - self._started:.0f} s")
            return grid
        left = f"about {last.seconds_left:.0f} s of search left" if last.seconds_left else ""
        running = f"running {', '.join(map(str, sorted(self._running)))}" if self._running else ""
        grid.add_row(
            Text.assemble("trials ", (f"{last.n_done}/{last.n_total}", "bold")),
            f"feasible {last.n_feasible}/{last.n_done}",
            f"hypervolume {last.hypervolume:.3f}",
            left,
            running,
        )
        return grid

    def _front_table(self) -> Any:
        from rich.table import Table

        assert self._last is not None
        table = Table(title=f"current front ({self._last.n_front})", title_justify="left", expand=False)
        table.add_column("trial", justify="right")
        for name in self._header.objectives:
            table.add_column(name, justify="right")
        for trial, values in self._last.front[:MAX_SHOWN]:
            table.add_row(str(trial), *[figure(v) for v in values])
        if self._last.n_front > MAX_SHOWN:
            table.add_row("…")
        return table

    def close(self) -> None:
        self._live.stop()
