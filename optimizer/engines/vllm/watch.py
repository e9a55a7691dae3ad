"""The watcher: once a second, while a load runs, what the servers say of themselves and what the machine does.

It must not be felt: one short request and a few reads of /proc a second and server. Whatever cannot be read is counted
as missed and never stops a trial.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

from objectives.measurement import DeviceSample, EngineCounters, EngineSample, ProcessSample
from optimizer.clock import REAL_CLOCK
from optimizer.engines.vllm.devices import Devices
from optimizer.engines.vllm.endpoint import Endpoint, nobody
from optimizer.engines.vllm.metrics import Scrape, counters_between
from optimizer.engines.vllm.observers import SCRAPE_WITHIN_S, MachineWatch, ServerWatch
from optimizer.engines.vllm.spec import HANG_AFTER_S
from optimizer.engines.vllm.watchdog import BUSY_FACTOR, ProgressWatchdog, Sign

PERIOD_S = 1.0


@dataclass(frozen=True)
class WatchLog:
    """Times on the phase clock."""

    samples: tuple[EngineSample, ...]
    processes: tuple[ProcessSample, ...]
    devices: tuple[DeviceSample, ...]
    scrapes: Mapping[str, tuple[Scrape, ...]]
    """instance -> its readings in order, the first from before the load, the last from after it drained"""
    n_missed: Mapping[str, int]
    """instance -> readings that failed"""
    last_failure: Mapping[str, str]
    """instance -> why the last of them did"""
    min_free_bytes: int | None
    """Least free memory of any device; None if one was never read."""
    missed_s: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """instance -> when readings failed"""
    pages: Mapping[str, tuple[tuple[float, str], ...]] = field(default_factory=dict)
    """instance -> (time, text) of the first and the last page that could be read; one where there is only one"""

    def counters(self, since_s: float = 0.0) -> dict[str, EngineCounters]:
        """instance -> increases from the last reading not after `since_s` (0: the measured window, without warm-up)
        to the end. Warm-up requests that end later are in them."""
        return {name: counters_between(_since(own, since_s)) for name, own in self.scrapes.items()}


def _since(scrapes: Sequence[Scrape], since_s: float) -> Sequence[Scrape]:
    n_before = sum(s.time_s <= since_s for s in scrapes)
    return scrapes[max(n_before - 1, 0) :]


class Watch:
    """Of one load. `start` and `stop` each take a reading of their own: before the load and after it drained."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        devices: Devices,
        begin_s: float,
        *,
        client_pids: Callable[[], Iterable[int]] = nobody,
        period_s: float = PERIOD_S,
        hang_after_s: float = HANG_AFTER_S,
        scrape_within_s: float = SCRAPE_WITHIN_S,
    ) -> None:
        """`begin_s`: the phase's time 0 on the monotonic clock; one reading falls on it."""
        self._begin_s, self._period_s = begin_s, period_s
        self._servers = [ServerWatch(e, begin_s, scrape_within_s) for e in endpoints]
        self._machine = MachineWatch(endpoints, devices, client_pids, begin_s)
        self._watchdogs = {e.name: ProgressWatchdog(_limit_s(e, hang_after_s)) for e in endpoints}
        self._parts: tuple[ServerWatch | MachineWatch, ...] = (*self._servers, self._machine)
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for part in self._parts:
            part.look()
            thread = threading.Thread(target=self._loop, args=(part.look,), name="watch", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _loop(self, look: Callable[[], None]) -> None:
        while not self._over.wait(self._until_next_s()):
            look()

    def _until_next_s(self) -> float:
        """To the next whole period of the phase clock. A look that takes longer skips some, and is not made up for."""
        return self._period_s - (REAL_CLOCK.now_s() - self._begin_s) % self._period_s

    def stop(self) -> WatchLog:
        """The last reading, and all of them. A second call reads again."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        for part in self._parts:
            part.look()
        return WatchLog(
            samples=tuple(sorted((s for w in self._servers for s in w.samples()), key=lambda s: s.time_s)),
            processes=tuple(self._machine.processes),
            devices=tuple(self._machine.devices),
            scrapes={w.name: tuple(w.scrapes) for w in self._servers},
            n_missed={w.name: len(w.missed_s) for w in self._servers},
            last_failure={w.name: w.failure for w in self._servers if w.failure},
            min_free_bytes=_least_free(self._machine.devices),
            missed_s={w.name: tuple(w.missed_s) for w in self._servers},
            pages={w.name: tuple(w.pages) for w in self._servers},
        )

    def latest(self) -> dict[str, Scrape | None]:
        """instance -> its last reading; None if the last one failed."""
        return {w.name: w.latest for w in self._servers}

    def hang(self, n_in_flight: int | None = None, last_message_s: float | None = None) -> str | None:
        """Why a server hangs, in one line; None while none does. To be asked all the time.

        `n_in_flight`, `last_message_s` (monotonic clock): the client's, all servers together; with several servers one
        cannot speak for the other, so then they count only where a server does not answer."""
        for watch in self._servers:
            verdict = self._watchdogs[watch.name].look(self._sign(watch, n_in_flight, last_message_s))
            if verdict is not None:
                return f"{watch.name}: {verdict}"
        return None

    def _sign(self, watch: ServerWatch, n_in_flight: int | None, last_message_s: float | None) -> Sign:
        seen, is_only_one = watch.latest, len(self._servers) == 1
        return Sign(
            time_s=REAL_CLOCK.now_s(),
            tokens_total=None if seen is None else seen.generation_tokens_total,
            n_running=None if seen is None else seen.n_running,
            n_in_flight=n_in_flight if is_only_one or seen is None else None,
            last_client_message_s=last_message_s if is_only_one else None,
            state=None if seen is None else _state(seen),
            engine_cores=self._machine.computing_cores(watch.name),
        )


def _limit_s(endpoint: Endpoint, hang_after_s: float) -> float:
    """Where nobody sees the processes they may be computing, so all the time is given that computing would get."""
    return hang_after_s * (BUSY_FACTOR if endpoint.pids is nobody else 1.0)


def _state(scrape: Scrape) -> tuple[float | None, ...]:
    """Every figure that only a stepping engine changes."""
    return tuple(getattr(scrape, f.name) for f in fields(scrape) if f.name not in ("time_s", "engines"))


def _least_free(devices: Sequence[DeviceSample]) -> int | None:
    free: dict[str, list[int]] = {s.device: [] for s in devices}
    for sample in devices:
        free[sample.device] += [] if sample.free_bytes is None else [sample.free_bytes]
    least = [min(own, default=None) for own in free.values()]
    return None if not least or None in least else min(b for b in least if b is not None)
