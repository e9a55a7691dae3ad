"""The two things a watcher looks at: one server's metrics, and the machine's processes and devices.

Each is written by one thread; others read whole lists and the newest reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from objectives.measurement import DeviceSample, EngineSample, ProcessSample
from optimizer.clock import REAL_CLOCK
from optimizer.engines.vllm.devices import Devices
from optimizer.engines.vllm.endpoint import Endpoint
from optimizer.engines.vllm.metrics import MetricsUnread, Scrape, fetch_metrics, parse_metrics
from optimizer.engines.vllm.process_watch import ProcessWatch

SCRAPE_WITHIN_S = 2.0
FORGIVEN_SHARE = 0.1
"""Fewer readings missed than this leave an instance's gauges whole; with more they stand as unread."""
LIST_EVERY_S = 5.0
COMPUTING = ("worker", "engine_core")
"""Roles whose CPU use says that an engine computes; workers where there are any."""


class ServerWatch:
    """One server's metrics so far."""

    def __init__(self, endpoint: Endpoint, begin_s: float, within_s: float = SCRAPE_WITHIN_S) -> None:
        self._endpoint, self._begin_s, self._within_s = endpoint, begin_s, within_s
        self.name = endpoint.name
        self.scrapes: list[Scrape] = []
        self.latest: Scrape | None = None
        self.missed_s: list[float] = []
        self.failure = ""
        self.pages: list[tuple[float, str]] = []
        """(time, text) of the first and the newest page that could be read."""

    def look(self) -> None:
        try:
            text = fetch_metrics(self._endpoint.url, self._within_s, self._endpoint.api_key_variable)
            self.latest = parse_metrics(text, REAL_CLOCK.now_s() - self._begin_s)
            self.scrapes.append(self.latest)
            self.pages = [*self.pages[:1], (self.latest.time_s, text)]
        except (MetricsUnread, ValueError) as error:
            self.latest, self.failure = None, str(error)
            self.missed_s.append(REAL_CLOCK.now_s() - self._begin_s)

    def samples(self) -> list[EngineSample]:
        read = [
            EngineSample(s.time_s, self.name, s.n_running, s.n_waiting, s.kv_usage, s.n_preemptions_total)
            for s in self.scrapes
        ]
        is_forgiven = len(self.missed_s) <= FORGIVEN_SHARE * (len(read) + len(self.missed_s))
        return read if is_forgiven else read + [EngineSample(t, self.name, None, None, None) for t in self.missed_s]


class MachineWatch:
    """Processes and devices so far."""

    def __init__(
        self, endpoints: Sequence[Endpoint], devices: Devices, client_pids: Callable[[], Iterable[int]], begin_s: float
    ) -> None:
        self._watch = ProcessWatch({**{e.name: e.pids for e in endpoints}, "": client_pids}, LIST_EVERY_S)
        self._devices, self._begin_s = devices, begin_s
        self.processes: list[ProcessSample] = []
        self.devices: list[DeviceSample] = []
        self._newest: tuple[ProcessSample, ...] = ()

    def look(self) -> None:
        time_s = REAL_CLOCK.now_s() - self._begin_s
        self._newest = self._watch.sample(time_s)
        self.processes += self._newest
        self.devices += self._devices.sample(time_s, self._watch.pids)

    def computing_cores(self, instance: str) -> float | None:
        """CPU use of the least busy worker (of those that compute together one that is stopped holds up all), or of a
        compiler that it waits for. None where the processes are not to be seen."""
        own = [s for s in self._newest if s.instance == instance]
        by_role = [[s.cores for s in own if s.role == role] for role in COMPUTING]
        workers = next((min(cores) for cores in by_role if cores), None)
        return max([s.cores for s in own if s.role == "other"] + ([] if workers is None else [workers]), default=None)
