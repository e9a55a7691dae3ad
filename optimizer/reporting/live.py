"""Views of a running study: a live table on a terminal, plain lines in a pipe, JSON lines for programs."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from typing import Any, Protocol, TextIO

from optimizer.study.events import (
    Event,
    Notice,
    RunFinished,
    StageStarted,
    StudyFinished,
    TrialFinished,
    TrialStarted,
)


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
        return JsonView(out)
    return TerminalView(header) if out.isatty() else PlainView(header, out)


class JsonView:
    """One JSON object a line: {"event": ..., "time": ..., fields}."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def show(self, event: Event) -> None:
        body = {"event": type(event).__name__, "time": round(time.time(), 3), **dataclasses.asdict(event)}
        print(json.dumps(body), file=self._out, flush=True)

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
    what = format_values(event.values, objectives) if event.values else event.state
    state = "ok" if event.is_feasible else f"infeasible: {event.reason}"
    left = "" if event.seconds_left is None else f" | {event.seconds_left:.0f} s left"
    return (
        f"[{event.n_done}/{event.n_total}] trial {event.trial} ({event.stage}) {what} | {state}"
        f" | feasible {event.n_feasible}/{event.n_done} | front {event.n_front}"
        f" | hypervolume {event.hypervolume:.3f}{left}"
    )


def format_values(values: tuple[float, ...], objectives: tuple[str, ...]) -> str:
    """`812 tok/s/GPU, TTFT P99 312 ms, ...`: the values with their short names."""
    return ", ".join(f"{name} {value:.4g}" for name, value in zip(objectives, values, strict=True))


class TerminalView:
    """A live panel: progress, feasible share, current front, hypervolume, time left, the dashboard command."""

    def __init__(self, header: Header) -> None:
        from rich.console import Console
        from rich.live import Live

        self._header = header
        self._console = Console()
        self._last: TrialFinished | None = None
        self._stage = ""
        self._run = ""
        self._running: set[int] = set()
        self._started = time.monotonic()
        self._live = Live(self._render(), console=self._console, refresh_per_second=4, transient=True)
        self._console.print(f"[bold]{header.title}[/bold]")
        self._live.start()

    def show(self, event: Event) -> None:
        match event:
            case Notice() | StudyFinished():
                self._console.print(plain_line(event, self._header.objectives), highlight=False, markup=False)
            case StageStarted(stage=stage, why=why):
                self._stage, self._run = stage, ""
                self._console.print(f"[bold cyan]{stage}[/bold cyan]: {why}", highlight=False)
            case RunFinished():
                self._run = plain_line(event, ()) or ""
            case TrialStarted(trial=trial):
                self._running.add(trial)
            case TrialFinished():
                self._running.discard(event.trial)
                self._last = event
        self._live.update(self._render())

    def _render(self) -> Any:
        from rich.console import Group
        from rich.panel import Panel

        rows: list[Any] = [self._progress_line()]
        if self._last is not None and self._last.front:
            rows.append(self._front_table())
        rows.append(f"[dim]watch: {self._header.dashboard_command}[/dim]")
        return Panel(Group(*rows), title=self._stage or "starting", title_align="left")

    def _progress_line(self) -> Any:
        from rich.table import Table

        last = self._last
        grid = Table.grid(padding=(0, 3))
        if last is None:
            grid.add_row(self._run or "calibrating", f"{time.monotonic() - self._started:.0f} s")
            return grid
        left = "" if last.seconds_left is None else f"about {last.seconds_left:.0f} s left"
        running = f"running {', '.join(map(str, sorted(self._running)))}" if self._running else self._run
        grid.add_row(
            f"trials [bold]{last.n_done}/{last.n_total}[/bold]",
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
        for trial, values in self._last.front[:12]:
            table.add_row(str(trial), *[f"{v:.4g}" for v in values])
        return table

    def close(self) -> None:
        self._live.stop()
