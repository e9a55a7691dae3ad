from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from objectives.measurement import EngineSample
from optimizer.engines.vllm.devices import open_devices
from optimizer.engines.vllm.endpoint import Endpoint
from optimizer.engines.vllm.watch import Watch
from tests.engines.vllm.metrics_pages import page


class _Server(http.server.ThreadingHTTPServer):
    """Counts up with every reading; does not answer while `is_mute`."""

    daemon_threads = True
    values: dict[str, float]
    steps: dict[str, float]
    is_mute = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Page(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self.send_response(503 if self.server.is_mute else 200)
        self.end_headers()
        self.wfile.write(page(self.server.values).encode())
        self.server.values = {k: v + self.server.steps.get(k, 0) for k, v in self.server.values.items()}

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[_Server]:
    served = _Server(("127.0.0.1", 0), _Page)
    served.values = {"vllm:num_requests_running": 2, "vllm:generation_tokens_total": 100}
    served.steps = {"vllm:generation_tokens_total": 10}
    thread = threading.Thread(target=served.serve_forever, args=(0.01,))
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


def watch(server: _Server, begin_s: float | None = None, **options: float) -> Watch:
    endpoint = Endpoint("a", server.url, "m", ("default",))
    start_s = time.monotonic() if begin_s is None else begin_s
    return Watch((endpoint,), open_devices(()), start_s, **{"period_s": 0.1, **options})  # type: ignore[arg-type]


def test_readings_are_on_the_phase_clock_with_one_before_and_one_after(server: _Server) -> None:
    watcher = watch(server, time.monotonic() + 0.25)
    watcher.start()
    time.sleep(0.6)
    log = watcher.stop()
    times = [s.time_s for s in log.scrapes["a"]]
    assert times == sorted(times)
    assert times[0] == pytest.approx(-0.25, abs=0.08)
    assert any(abs(t) < 0.08 for t in times)  # one falls on the phase's beginning
    assert len(times) >= 5
    assert len(log.samples) == len(times)
    assert len(log.devices) >= 5
    assert log.min_free_bytes == min(d.free_bytes for d in log.devices if d.free_bytes is not None)


def test_counters_leave_the_warmup_out(server: _Server) -> None:
    watcher = watch(server, time.monotonic() + 0.35)
    watcher.start()
    time.sleep(0.7)
    log = watcher.stop()
    measured = [s for s in log.scrapes["a"] if s.time_s > 0]
    assert log.counters()["a"].generation_tokens == 10 * len(measured)
    assert log.counters(-10.0)["a"].generation_tokens == 10 * (len(log.scrapes["a"]) - 1)


def test_a_server_that_never_answers_is_unread_and_harms_nobody(server: _Server) -> None:
    server.is_mute = True
    watcher = watch(server)
    watcher.start()
    time.sleep(0.3)
    log = watcher.stop()
    assert log.n_missed["a"] >= 3
    assert "HTTP 503" in log.last_failure["a"]
    assert log.scrapes["a"] == ()
    assert {(s.n_running, s.kv_usage) for s in log.samples} == {(None, None)}
    assert log.counters()["a"].n_preemptions is None


def test_a_reading_missed_now_and_then_leaves_the_gauges_whole(server: _Server) -> None:
    watcher = watch(server, period_s=0.02)
    watcher.start()
    time.sleep(0.6)
    server.is_mute = True
    while watcher.latest()["a"] is not None:
        time.sleep(0.002)
    server.is_mute = False
    time.sleep(0.3)
    log = watcher.stop()
    assert log.n_missed["a"] >= 1
    assert all(isinstance(s, EngineSample) and s.n_running == 2 for s in log.samples)


def test_a_server_that_stands_still_hangs_and_one_that_moves_does_not(server: _Server) -> None:  # case DIAG-16
    watcher = watch(server, hang_after_s=0.3 / 4)  # no process to look at: four times as long is given
    watcher.start()
    verdicts = [watcher.hang(n_in_flight=2) for _ in range(10) if time.sleep(0.05) is None]
    assert verdicts == [None] * 10
    server.steps = {}
    until_s = time.monotonic() + 5.0
    while (verdict := watcher.hang(n_in_flight=2)) is None and time.monotonic() < until_s:
        time.sleep(0.05)
    watcher.stop()
    assert verdict is not None
    assert verdict.startswith("a: 2 request(s) running and no token for ")


def test_one_server_cannot_speak_for_another(server: _Server) -> None:
    server.steps = {}
    endpoints = tuple(Endpoint(name, server.url, "m", (name,)) for name in ("a", "b"))
    watcher = Watch(endpoints, open_devices(()), time.monotonic(), period_s=0.05, hang_after_s=0.05)
    watcher.start()
    until_s = time.monotonic() + 5.0
    while (verdict := watcher.hang(2, last_message_s=time.monotonic())) is None and time.monotonic() < until_s:
        time.sleep(0.02)
    watcher.stop()
    assert verdict is not None


def test_watching_is_not_felt(server: _Server) -> None:
    watcher = watch(server, period_s=1.0)
    watcher.start()
    begin_s = time.monotonic()
    clocks = [_cpu_s(t.native_id) for t in watcher._threads]
    time.sleep(3.0)
    used_s = sum(_cpu_s(t.native_id) for t in watcher._threads) - sum(clocks)
    watcher.stop()
    assert used_s / (time.monotonic() - begin_s) < 0.02  # the kernel counts in steps of 10 ms


def _cpu_s(thread: int | None) -> float:
    fields = Path(f"/proc/self/task/{thread}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100
