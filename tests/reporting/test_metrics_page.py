"""The Prometheus page: what a scrape says of a study, before, while and after it runs."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from optimizer.errors import UserError
from optimizer.reporting.metrics_page import MetricsPage, Readings, StudyLabels, metrics_page
from optimizer.study.events import RunFinished, StageStarted, StudyFinished, TrialFinished, TrialStarted

LABELS = StudyLabels("chat-1", "chat", "Llama-3.1-8B", "A100-80", "simulator", True)


@pytest.fixture
def page() -> Iterator[MetricsPage]:
    with metrics_page(0) as made:
        assert made is not None
        yield made


def scrape(page: MetricsPage) -> dict[tuple[str, str], float]:
    """(name without prefix, labels as text) -> value."""
    with urllib.request.urlopen(page.url, timeout=5) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = [s for family in families for s in family.samples]
    assert all(s.name.startswith("vllm_optimizer_") for s in samples)
    return {
        (s.name.removeprefix("vllm_optimizer_"), ",".join(f"{k}={v}" for k, v in sorted(s.labels.items()))): s.value
        for s in samples
    }


def finished(trial: int, state: str, n_feasible: int) -> TrialFinished:
    return TrialFinished(trial, "fast", state, state == "measured", (1.0,), "", trial + 1, 8, n_feasible, 1, 0.5)


def test_a_page_is_empty_until_the_study_begins(page: MetricsPage) -> None:
    assert scrape(page) == {}


def test_a_scrape_says_how_the_study_stands(page: MetricsPage) -> None:
    page.begin(LABELS, Readings(lambda: 12.5, 2, lambda: {"ray-0": "running", "ray-1": "given up"}))
    before = scrape(page)
    assert before["stage", "stage=starting"] == 1 and before["finished", ""] == 0
    assert not [name for name, _ in before if name in ("hypervolume", "feasible_share")], "nothing known yet"
    page.show(StageStarted("fast", "why"))
    page.show(RunFinished("calibration", 1, 3))
    for event in (TrialStarted(0, "fast"), TrialStarted(1, "fast"), finished(0, "measured", 1)):
        page.show(event)
    page.show(finished(1, "infeasible", 1))
    page.show(TrialStarted(2, "fast"))
    now = scrape(page)
    assert now["stage", "stage=fast"] == 1 and ("stage", "stage=starting") not in now
    assert now["trials_total", "state=measured"] == now["trials_total", "state=infeasible"] == 1
    assert now["runs_total", "purpose=calibration"] == 1
    assert (now["trials_running", ""], now["trials_done", ""], now["trials_planned", ""]) == (1, 2, 8)
    assert (now["feasible_share", ""], now["hypervolume", ""], now["front_size", ""]) == (0.5, 0.5, 1)
    assert now["gpu_seconds_total", "is_simulated=true"] == 25.0, "two cards a run"
    assert now["worker", "state=running,worker=ray-0"] == now["worker", "state=given up,worker=ray-1"] == 1
    page.show(StudyFinished(2, 1, 1, "done", 1.0, 12.5))
    assert scrape(page)["finished", ""] == 1


def test_a_port_that_is_taken_or_none_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match=r"--metrics-port \d+: .*in use; give a free port"):
            MetricsPage(taken.getsockname()[1])
    for port in (-1, 70_000):
        with pytest.raises(UserError, match="is no port number"):
            MetricsPage(port)


def test_closed_is_gone() -> None:
    with metrics_page(0) as page:
        assert page is not None
        url = page.url
    with pytest.raises(OSError):
        urllib.request.urlopen(url, timeout=2)
    with metrics_page(None) as none:
        assert none is None
