"""The study's own progress as a Prometheus page, for people who live in Grafana: `--metrics-port`.

It shows what the events said last; what costs nothing to ask (engine seconds, workers) is read at each scrape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from optimizer.errors import UserError
from optimizer.study.events import Event, RunFinished, StageStarted, StudyFinished, TrialFinished, TrialStarted

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX = "vllm_optimizer"
HOST = "127.0.0.1"


@dataclass(frozen=True)
class StudyLabels:
    """What tells this study from others on one Prometheus."""

    study: str
    profile: str
    model: str
    gpu: str
    engine: str
    is_simulated: bool

    @property
    def texts(self) -> dict[str, str]:
        return {name: str(value).lower() if isinstance(value, bool) else value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class Readings:
    """What is read at each scrape, from the scraping thread."""

    engine_s: Callable[[], float]
    """Engine seconds so far, boots included; virtual for the simulator."""
    n_gpus: int
    """Of one run."""
    workers: Callable[[], Mapping[str, str]]
    """Worker -> state."""


class MetricsPage:
    """Keeps the page, empty until `begin`. Listens on 127.0.0.1 only; port 0 takes a free one.

    Raises UserError when the port cannot be had."""

    def __init__(self, port: int) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        self._study: tuple[StudyLabels, Readings] | None = None
        self._last: TrialFinished | None = None
        self._states: Counter[str] = Counter()
        self._runs: Counter[str] = Counter()
        self._running: set[int] = set()
        self._stage = "starting"
        self._is_finished = False
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, HOST, registry)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) and 0 <= port < 2**16 else "is no port number"
            raise UserError(f"--metrics-port {port}: {reason}; give a free port, or 0 to have one chosen") from None

    def begin(self, labels: StudyLabels, readings: Readings) -> None:
        self._study = labels, readings

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._server.server_port}/metrics"

    def show(self, event: Event) -> None:
        match event:
            case StageStarted(stage=stage):
                self._stage = stage
            case TrialStarted(trial=trial):
                self._running.add(trial)
            case TrialFinished():
                self._running.discard(event.trial)
                self._states[event.state] += 1
                self._last = event
            case RunFinished(purpose=purpose):
                self._runs[purpose] += 1
            case StudyFinished():
                self._is_finished = True

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def collect(self) -> Iterator[Metric]:
        """What prometheus_client asks of a collector, from its own thread."""
        if self._study is None:
            return
        labels, readings = self._study
        yield _one("study_info", "What is tuned.", labels.texts, 1.0)
        yield _one("stage", "The stage the study is in.", {"stage": self._stage}, 1.0)
        yield _gauge("finished", "1 once nothing is left to do.", float(self._is_finished))
        yield _counts("trials", "Trials that came back in this process.", "state", self._states)
        yield _counts("runs", "Runs that are no trial, in this process.", "purpose", self._runs)
        yield _gauge("trials_running", "Trials that run now.", float(len(self._running)))
        yield from (_gauge(*standing) for standing in self._standing())
        yield _gpu_seconds(labels, readings)
        yield _workers(readings.workers())

    def _standing(self) -> Iterator[tuple[str, str, float]]:
        """How the study stood after its last trial, whichever process ran it; nothing before the first."""
        last = self._last
        if last is None:
            return
        yield "trials_done", "Trials that came back, those of earlier processes included.", float(last.n_done)
        yield "trials_planned", "The study's total of trials.", float(last.n_total)
        yield "trials_feasible", "Trials that keep every limit.", float(last.n_feasible)
        yield "feasible_share", "Feasible over done.", last.n_feasible / last.n_done if last.n_done else 0.0
        yield "front_size", "Members of the current front.", float(last.n_front)
        yield "hypervolume", "Of the feasible front, on the study's frozen axes (0 to 1).", last.hypervolume
        if last.seconds_left is not None:
            yield "search_seconds_left", "Until the search ends; confirmations come after it.", last.seconds_left


def _gauge(name: str, text: str, value: float) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(f"{PREFIX}_{name}", text, value=value)


def _one(name: str, text: str, labels: Mapping[str, str], value: float) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    metric = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=list(labels))
    metric.add_metric(list(labels.values()), value)
    return metric


def _counts(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    metric = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=[label])
    for key, n in counts.items():
        metric.add_metric([key], n)
    return metric


def _gpu_seconds(labels: StudyLabels, readings: Readings) -> Metric:
    from prometheus_client.core import CounterMetricFamily

    text = "GPU-seconds spent by engines in this process, boots included; of virtual time if is_simulated."
    metric = CounterMetricFamily(f"{PREFIX}_gpu_seconds", text, labels=["is_simulated"])
    metric.add_metric([labels.texts["is_simulated"]], readings.engine_s() * max(readings.n_gpus, 1))
    return metric


def _workers(states: Mapping[str, str]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    metric = GaugeMetricFamily(f"{PREFIX}_worker", "1 for the state each worker is in.", labels=["worker", "state"])
    for worker, state in states.items():
        metric.add_metric([worker, state], 1.0)
    return metric


@contextmanager
def metrics_page(port: int | None) -> Iterator[MetricsPage | None]:
    """The page while the block lasts; none without a port."""
    if port is None:
        yield None
        return
    page = MetricsPage(port)
    try:
        yield page
    finally:
        page.close()
