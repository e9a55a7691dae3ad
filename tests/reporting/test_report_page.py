"""The page: whole, escaped, masked, closed to the network, and true to the study, whatever the study is."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs

from objectives.objective import Objective
from optimizer.cli import run_main
from optimizer.report import main
from optimizer.reporting.member import Front
from optimizer.reporting.report.answer import answer_of
from optimizer.reporting.report.page import extras_of, render
from optimizer.reporting.report.source import Source, read_source
from optimizer.study.folder import StudyFolder
from optimizer.study.outcomes import write_outcome
from optimizer.study.trial_record import TrialRecord
from optimizer.trial import Infeasible
from tests.reporting.conftest import NAME, TENANT, with_trials

VOID = {"meta", "br", "wbr", "link", "img", "hr", "input"}
PARTS = (
    "answer", "front", "knobs", "timelines", "time", "failures", "why", "workload", "commands", "glossary",
)  # fmt: skip


class Page(HTMLParser):
    """What a browser would see: tags in order, texts, references. Fails on a tag that is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.raw = text
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.charts: dict[str, str] = {}
        self.plots: list[str] = []
        self.texts: list[str] = []
        self._chart = ""
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in VOID:
            self.stack.append(tag)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag == "a":
            self.links.append(str(given["href"]))
        self.fetched += [str(v) for k, v in attrs if k in ("src", "srcset", "data", "poster", "background", "action")]
        self.fetched += [tag] if tag in ("link", "iframe", "object", "embed", "img", "base") else []
        if tag == "div" and "data-chart" in given:
            self.plots.append(str(given["data-chart"]))
        self._chart = str(given.get("id", "")) if given.get("type") == "application/json" else ""

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._chart:
            self.charts[self._chart] = data
            self._chart = ""
        elif self.stack and self.stack[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def page_of(source: Source) -> Page:
    page = Page(render(source))
    assert len(set(page.ids)) == len(page.ids)
    assert page.plots == [*page.charts]
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)
    assert page.fetched == []
    assert set(PARTS) <= set(page.ids)
    return page


def figures(page: Page) -> Iterator[go.Figure]:
    for text in page.charts.values():
        yield go.Figure(**json.loads(text))  # raises for anything plotly does not know


@pytest.fixture(scope="module")
def page(small_source: Source) -> Page:
    return page_of(small_source)


def test_the_answer_comes_first_with_what_it_gains_and_how_sure_that_is(page: Page) -> None:
    text = page.text
    assert text.index("The answer") < text.index("The front Each point")
    assert "SIMULATED. Every figure on this page comes from a simulated GPU" in text
    assert "Start with trial" in text or "Keep vLLM defaults" in text
    assert re.search(r"[+−]\d+\.\d % (better|worse|inside the noise) [+−]\d", text)
    assert "95 %:" in text


def test_every_chart_is_one_that_plotly_takes(page: Page) -> None:
    drawn = list(figures(page))
    assert len(drawn) > 10
    assert all(len(figure.data) for figure in drawn)


def test_the_charts_of_the_issue_are_there(page: Page) -> None:
    keys = set(page.charts)
    assert {"chart-front-3d", "chart-front-0-1", "chart-front-0-2", "chart-front-1-2", "chart-spending"} <= keys
    assert {"chart-lengths-prompt", "chart-lengths-output", "chart-arrivals", "chart-growth"} <= keys
    assert any(k.startswith("chart-time-") and k.endswith("-steady") for k in keys)
    assert any(k.startswith("chart-time-") and k.endswith("-stress") for k in keys)


def test_what_it_means_for_the_traffic_is_said_without_a_click(page: Page, small_source: Source) -> None:
    told = [e for e in extras_of(small_source) if e.is_key]
    assert told and all(e.text in page.text for e in told)
    assert page.text.index("For your traffic") < page.text.index(told[0].text) < page.text.index("What else the study")


def test_five_answers_and_their_checklist_stand_for_each_pick(page: Page, small_source: Source) -> None:
    n = len(small_source.shown)
    assert "The whole study (" in page.text, "whose answers come first"
    assert page.text.count("1. Compute or memory bandwidth?") == 1 + n
    assert page.text.count("5. Faster or steadier?") == 1 + n
    assert page.text.count("Preemption checklist") == n


def test_a_name_that_is_markup_is_shown_as_text(small_source: Source, page: Page) -> None:
    assert small_source.folder.name == NAME
    assert NAME in page.text and TENANT in {t.name for t in small_source.profile.tenants}
    assert page.raw.count("<script>") == 2  # plotly and what draws


def test_markup_in_a_reason_is_text_in_charts_too_and_secrets_are_masked_wherever_they_stand(
    small_source: Source,
) -> None:
    secret, evil = "hf_abcdefghijklmnop", "</script><script>alert(2)</script><b>"
    manifest = replace(small_source.manifest, command=("--profile", "small.yaml", "--api-key", secret))
    trials = [replace(t, reason=f"{evil} token={secret}") for t in small_source.trials]
    text = render(replace(with_trials(small_source, trials), manifest=manifest, remarks=(f"see {secret}",)))
    assert secret not in text
    assert "alert(2)</script>" not in text
    hovers = [str(h) for f in figures(Page(text)) for d in f.data for h in (d.hovertext or ())]
    assert any("&lt;/script>" in h for h in hovers)
    assert not any("<script>" in h or "<b>" in h for h in hovers)


def test_nothing_outside_is_named_but_in_plotly_itself(page: Page) -> None:
    own = page.raw.replace(get_plotlyjs(), "")
    assert len(own) < 1_000_000
    assert not re.search(r"https?://|//cdn|@import|url\(|@font-face", own)
    assert "default-src 'none'" in own


def test_two_servers_have_answers_lines_and_start_commands_of_their_own(shared_source: Source) -> None:
    page = page_of(shared_source)
    assert all(list(figures(page)))
    assert "Server chat" in page.text and "Server batch" in page.text
    names = {d.name for f in figures(page) for d in f.data}
    assert {"chat", "batch"} <= names
    if shared_source.picked:
        assert "Start the servers in this order" in page.text


OBJECTIVES = (
    Objective("saturation_output_tokens_per_s_per_gpu", "maximize"),
    Objective("steady_ttft_p99_ms", "minimize"),
    Objective("steady_itl_p99_ms", "minimize"),
    Objective("steady_ttft_p50_ms", "minimize"),
)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_any_number_of_objectives(small_source: Source, n: int) -> None:
    own = OBJECTIVES[:n]
    trials = [
        t if t.values is None else replace(t, values=tuple(float(t.metrics[o.metric] or 1.0) for o in own))
        for t in small_source.trials
    ]
    page = page_of(with_trials(small_source, trials, own))
    assert all(len(f.data) for f in figures(page))
    assert ("chart-front-3d" in page.charts) == (n > 2)
    assert ("chart-front-1" in page.charts) == (n == 1)


def failed(trial: TrialRecord, kind: str = "kv_capacity") -> TrialRecord:
    attributes = {k: v for k, v in trial.attributes.items() if k != "metrics"} | {"failed_in": "kv_alloc"}
    return replace(
        trial, state="infeasible", values=None, metrics={}, failure=kind, reason="no room for one request",
        violations={"boot": 1.0}, attributes=attributes,
    )  # fmt: skip


def test_where_nothing_is_feasible_the_nearest_misses_come_first(small_source: Source) -> None:
    limit = "stress_preemptions_per_request <= 0.3"
    trials = [replace(t, violations={limit: 0.5 + t.number}) for t in small_source.trials]
    page = page_of(with_trials(small_source, trials))
    assert "No configuration keeps every limit" in page.text
    assert "Preemptions per request (stress) at most 0.3" in page.text
    assert "Start with" not in page.text and "Deploy a pick" not in page.text
    assert "1. Compute or memory bandwidth?" in page.text  # of the nearest one


def test_where_everything_failed_the_kinds_and_the_advice_stand(small_source: Source) -> None:
    page = page_of(with_trials(small_source, [failed(t) for t in small_source.trials]))
    n = len(small_source.trials)
    assert f"None of {n} configurations could be measured" in page.text
    assert f"{n} trials: no room for the KV cache" in page.text
    assert "What to do:" in page.text
    assert not any(k.startswith("chart-front") for k in page.charts)


def test_what_a_server_printed_stands_with_the_failure(small_source: Source, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(small_source.folder.path, copy)
    for run, folder in (("trials/0003/run-0", "Free memory <0.1 GiB"), ("runs/calibration-900", "")):
        (copy / run).mkdir(parents=True, exist_ok=True)
        lost = Infeasible(kind="kv_capacity", phase="kv_alloc", cause="no room at all", evidence=(folder,))
        write_outcome(copy / run, lost, {"purpose": "search"})
    trials = [failed(t) if t.number == 3 else t for t in small_source.trials]
    page = page_of(replace(with_trials(small_source, trials), folder=StudyFolder(copy)))
    assert "Free memory <0.1 GiB" in page.text
    assert "1 trial: no room for the KV cache" in page.text
    assert "Runs outside trials that failed" in page.text and "no room at all" in page.text


def test_one_trial_is_enough_and_none_is_said(small_source: Source) -> None:
    one = page_of(with_trials(small_source, small_source.trials[:1]))
    assert "cannot be told with fewer than" in one.text
    none = replace(with_trials(small_source, ()), status="interrupted")
    assert answer_of(none).headline == "Nothing has been measured yet"


def test_an_interrupted_study_says_so_and_how_to_go_on(small_source: Source) -> None:
    cut = replace(with_trials(small_source, small_source.trials[:4]), status="interrupted")
    page = page_of(cut)
    assert "was interrupted: 4 of 6 trials are done" in page.text
    assert "--resume" in page.text
    assert "is still running" in " ".join(answer_of(replace(cut, status="running")).sentences)


def test_a_study_that_ended_in_calibration_is_reported(small_source: Source) -> None:
    empty = replace(
        small_source, calibration=None, trials=(), status="interrupted", front=Front(small_source.front.meta, ())
    )
    assert "while its reference was measured" in page_of(empty).text


def test_two_thousand_trials_stay_a_file_that_can_be_sent(small_source: Source) -> None:
    base = [t for t in small_source.trials if t.values is not None and "baseline" not in t.attributes]
    many = [*small_source.trials]
    for n in range(len(many), 2000):
        own, grid = base[n % len(base)], small_source.manifest.space
        point = {**(own.point or {}), **{k: v[n * 7 % len(v)] for k, v in grid.items()}}
        values = tuple(v * (1 + 0.4 * ((n * (j + 3)) % 101) / 101) for j, v in enumerate(own.values or ()))
        many.append(replace(own, number=n, point=point, values=values, reason="misses it" if n % 3 else ""))
    text = render(with_trials(small_source, many))
    assert len(text) - len(get_plotlyjs()) < 4_000_000
    assert all(len(f.data) for f in figures(Page(text)))


def test_the_front_that_is_stored_stands_unless_trials_ended_since(small_path: Path, small_source: Source) -> None:
    assert small_source.status == "finished"
    (small_path / "front" / "front.json").rename(small_path / "front" / "kept.json")
    try:
        anew = read_source(StudyFolder(small_path))
    finally:
        (small_path / "front" / "kept.json").rename(small_path / "front" / "front.json")
    assert {m.trial for m in anew.front.trials} == {m.trial for m in small_source.front.trials}
    assert anew.front.meta.noise == pytest.approx(dict(small_source.front.meta.noise))
    assert anew.front.meta.reference == small_source.front.meta.reference


def test_the_command_writes_one_file_and_leaves_the_study_alone(
    small_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "deep" / "page.html"
    before = {p.name for p in small_path.iterdir()}
    assert run_main(main, [NAME, "--studies", str(small_path.parent), "--output", str(elsewhere)]) == 0
    assert elsewhere.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert elsewhere.stat().st_size < 8_000_000
    assert capsys.readouterr().out.startswith(f"{elsewhere} (")
    assert {p.name for p in small_path.iterdir()} == before
    assert StudyFolder(small_path).report_path == small_path / "report.html"


def test_an_unknown_study_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(main, ["nothing", "--studies", str(tmp_path)]) == 2
    assert capsys.readouterr().err.strip().count("\n") == 0


def test_a_page_that_cannot_be_written_leaves_nothing(small_path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert run_main(main, [str(small_path), "--output", str(tmp_path / "file" / "page.html")]) == 3
    assert run_main(main, [str(small_path), "--output", str(tmp_path)]) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]
