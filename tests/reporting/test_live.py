"""Views of a running study: plain lines in a pipe, JSON lines, a live table on a terminal."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from optimizer.reporting.live import (
    MAX_SHOWN,
    Header,
    JsonView,
    PlainView,
    TerminalView,
    choose_view,
    plain_line,
)
from optimizer.study.events import (
    Event,
    Notice,
    RunFinished,
    StageStarted,
    StudyFinished,
    TrialFinished,
    TrialStarted,
)

NAMES = ("tok/s/GPU", "P99 TTFT ms", "P99 ITL ms")
HEADER = Header("study demo: chat on A100-40 (SIMULATED)", NAMES, "optuna-dashboard sqlite:///studies/demo/study.db")


def finished(trial: int, **changes: object) -> TrialFinished:
    plain = {
        "trial": trial,
        "stage": "fast",
        "state": "measured",
        "is_feasible": True,
        "values": (1533.4, 843.4, 56.42),
        "reason": "",
        "n_done": trial + 1,
        "n_total": 64,
        "n_feasible": trial + 1,
        "n_front": 1,
        "hypervolume": 0.1214,
        "front": ((trial, (1533.4, 843.4, 56.42)),),
    }
    return TrialFinished(**{**plain, **changes})  # type: ignore[arg-type]


MISSED = finished(3, is_feasible=False, reason="misses steady_ttft_p99_ms <= 500 by 68.7%")
INFEASIBLE = finished(4, is_feasible=False, state="infeasible", values=None, reason="oom at load: too big")
STOPPED = finished(5, is_feasible=False, state="stopped", values=None, reason="not sustainable at 5 req/s")
BROKEN = finished(6, is_feasible=False, state="broken", values=None, reason="broken: the node was lost")
EVERY = (
    Notice("R = 4.8 requests/s"),
    Notice("the reference does not sustain R", is_warning=True),
    StageStarted("fast", "the sampler [in the region]"),
    RunFinished("calibration", 2, 5, "vLLM defaults at R again: sustained"),
    TrialStarted(0, "baseline"),
    finished(0, label="vLLM defaults", stage="baseline", seconds_left=12.4),
    MISSED, INFEASIBLE, STOPPED, BROKEN,
    StudyFinished(7, 4, 1, "all 7 trials are done", 61.4, 9000.0, ("studies/demo/front",)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (EVERY[0], "R = 4.8 requests/s"),
        (EVERY[1], "warning: the reference does not sustain R"),
        (EVERY[2], "== fast: the sampler [in the region]"),
        (EVERY[3], "calibration 2/5: vLLM defaults at R again: sustained"),
        (RunFinished("rates", 1, 9), "rates 1/9"),
        (EVERY[5], "[1/64] trial 0 (vLLM defaults) tok/s/GPU 1,533, P99 TTFT ms 843, P99 ITL ms 56.4 | ok"
                   " | feasible 1/1 | front 1 | hypervolume 0.121 | 12 s left"),
        (EVERY[10], "finished: 7 trials, 4 feasible, 1 on the front, 61 s (all 7 trials are done)"),
    ],
)  # fmt: skip
def test_an_event_is_one_plain_line(event: Event, line: str) -> None:
    assert plain_line(event, NAMES) == line


@pytest.mark.parametrize(
    ("event", "part"),
    [
        (MISSED, "trial 3 (fast) tok/s/GPU 1,533, P99 TTFT ms 843, P99 ITL ms 56.4 | misses steady_ttft_p99_ms <= 500"),
        (INFEASIBLE, "trial 4 (fast) infeasible: oom at load: too big |"),
        (STOPPED, "trial 5 (fast) stopped: not sustainable at 5 req/s |"),
        (BROKEN, "trial 6 (fast) broken: the node was lost |"),
    ],
)
def test_a_trial_that_is_no_candidate_says_why_once(event: TrialFinished, part: str) -> None:
    line = plain_line(event, NAMES)
    assert line is not None and part in line
    assert line.count("infeasible") <= 1 and " ok " not in line


def test_starting_a_trial_is_not_worth_a_line() -> None:
    assert plain_line(TrialStarted(0, "fast"), NAMES) is None


def test_in_a_pipe_the_header_comes_first_and_every_line_is_flushed() -> None:
    out = io.StringIO()
    view = choose_view(HEADER, is_json=False, stream=out)
    assert isinstance(view, PlainView)
    for event in EVERY:
        view.show(event)
    view.close()
    lines = out.getvalue().splitlines()
    assert lines[:2] == [HEADER.title, f"watch: {HEADER.dashboard_command}"]
    assert len(lines) == 2 + len(EVERY) - 1


def test_every_event_is_one_json_object_and_the_header_is_the_first() -> None:
    out = io.StringIO()
    view = choose_view(HEADER, is_json=True, stream=out)
    assert isinstance(view, JsonView)
    for event in (*EVERY, finished(7, hypervolume=math.nan, values=(math.inf, 1.0, 2.0))):
        view.show(event)
    view.close()
    bodies = [json.loads(line, parse_constant=pytest.fail) for line in out.getvalue().splitlines()]
    assert bodies[0]["event"] == "StudyOpened" and bodies[0]["title"] == HEADER.title
    assert [b["event"] for b in bodies[1:-1]] == [type(e).__name__ for e in EVERY]
    assert bodies[6]["front"] == [[0, [1533.4, 843.4, 56.42]]]
    assert bodies[-1]["values"] == [None, 1.0, 2.0] and bodies[-1]["hypervolume"] is None
    assert all(b["time"] > 1.7e9 for b in bodies)


@contextmanager
def terminal() -> Iterator[tuple[io.TextIOWrapper, list[bytes]]]:
    """A real terminal's end to write to, and what arrived at the other."""
    reader, writer = pty.openpty()
    seen: list[bytes] = []

    def read() -> None:
        while True:
            try:
                chunk = os.read(reader, 65536)
            except OSError:  # the writer has gone
                return
            if not chunk:
                return
            seen.append(chunk)

    thread = threading.Thread(target=read)
    thread.start()
    file = os.fdopen(writer, "w", encoding="utf-8")
    try:
        yield file, seen
    finally:
        file.close()
        thread.join(5)
        os.close(reader)


def shown(seen: list[bytes]) -> str:
    text = b"".join(seen).decode("utf-8")
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", text)


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("LINES", "50")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_on_a_terminal_the_panel_holds_progress_front_and_the_dashboard() -> None:
    with terminal() as (out, seen):
        view = choose_view(HEADER, is_json=False, stream=out)
        assert isinstance(view, TerminalView)
        for event in EVERY:
            view.show(event)
        view.close()
        view.close()
    text = shown(seen)
    assert HEADER.title in text and f"watch: {HEADER.dashboard_command}" in text
    assert "fast: the sampler [in the region]" in text, "no markup is read from what others wrote"
    assert "the reference does not sustain R" in text
    assert "[bold]" not in text and "[/" not in text
    for part in ("trials 1/64", "feasible 1/1", "hypervolume 0.121", "about 12 s of search left", "current front (1)"):
        assert part in text, part
    assert "last: trial 6 broken: the node was lost" in text
    assert "finished: 7 trials" in text
    assert b"\x1b[?25h" in b"".join(seen), "the cursor is shown again"


def test_the_panel_before_the_first_trial_says_what_runs() -> None:
    with terminal() as (out, seen):
        view = TerminalView(HEADER, out)
        view.show(StageStarted("calibration", "what the reference carries"))
        view.show(RunFinished("calibration", 1, 5, "vLLM defaults at R again: sustained"))
        view.close()
    text = shown(seen)
    assert "no trial yet" in text and "last: calibration 1/5: vLLM defaults at R again: sustained" in text


def test_a_long_front_and_a_hostile_title_do_not_break_the_panel() -> None:
    front = tuple((k, (1000.0 - k, 100.0, 10.0)) for k in range(MAX_SHOWN + 8))
    title = "study [red]x[/] [bold: chat on A100-40"
    with terminal() as (out, seen):
        view = TerminalView(Header(title, NAMES, "optuna-dashboard 'sqlite:///a[b]/study.db'"), out)
        view.show(TrialStarted(21, "fast"))
        view.show(finished(20, front=front, n_front=len(front)))
        view.close()
    text = shown(seen)
    assert title in text and "sqlite:///a[b]/study.db" in text
    assert f"current front ({MAX_SHOWN + 8})" in text and "…" in text
    assert "running 21" in text
    assert "989" in text and " 988" not in text
