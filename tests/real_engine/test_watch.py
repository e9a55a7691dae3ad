"""Watching a real vLLM server on a CPU: its counters, its processes, and an engine that somebody stopped."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from optimizer.engines.vllm.devices import open_devices
from optimizer.engines.vllm.endpoint import Endpoint
from optimizer.engines.vllm.http import health
from optimizer.engines.vllm.interpreter import find_vllm
from optimizer.engines.vllm.metrics import scrape
from optimizer.engines.vllm.process_watch import ProcessWatch
from optimizer.engines.vllm.server import Server, ServerSpec
from optimizer.engines.vllm.watch import Watch, WatchLog
from optimizer.watching.diagnosis import diagnose_watch
from optimizer.watching.server import look_at
from optimizer.watching.watch import watch
from search_spaces.config import Config
from tests.real_engine.tiny_model import write_tiny_model

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

N_REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 16, 64, 256
CONFIG = Config(
    {
        "load_format": "dummy",
        "enforce_eager": True,
        "block_size": 32,
        "max_model_len": 512,
        "max_num_seqs": N_REQUESTS,
        "max_num_batched_tokens": 512,
        "kv_cache_memory_bytes": 64 * 1024**2,
        "num_gpu_blocks_override": 40,
    }
)
"""39 blocks of 32 tokens for 16 requests of up to 320: they preempt each other."""
HANG_AFTER_S = 4.0


@pytest.fixture(scope="module")
def server(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = write_tiny_model(tmp_path_factory.mktemp("model"))
    folder = tmp_path_factory.mktemp("server")
    started = Server(ServerSpec("chat", str(model), CONFIG, find_vllm(vllm_python), folder))
    try:
        started.wait_until_ready()
        yield started
    finally:
        started.stop()


@pytest.fixture
def roles(server: Server) -> dict[str, int]:
    watch = ProcessWatch({"chat": lambda: server.pids})
    watch.sample(0.0)
    return {s.role: s.pid for s in watch.sample(1.0)}


def endpoint(server: Server) -> Endpoint:
    return Endpoint("chat", server.url, server.served_model, ("default",), pids=lambda: server.pids)


def complete(server: Server, n: int, n_output: int) -> int:
    """Tokens of one answer; its prompt is like no other request's."""
    address = urlsplit(server.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=300)
    body = {
        "model": server.served_model,
        "prompt": [4 + (n * 7919 + i * i) % 500 for i in range(PROMPT_TOKENS)],
        "max_tokens": n_output,
        "ignore_eos": True,
        "temperature": 0,
    }
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        return int(json.loads(connection.getresponse().read())["usage"]["completion_tokens"])
    finally:
        connection.close()


class _Load:
    """Requests in threads of their own."""

    def __init__(self, server: Server, n: int, n_output: int, first: int = 0) -> None:
        self.n_done: list[int] = []
        self._threads = [
            threading.Thread(target=lambda i=i: self.n_done.append(complete(server, first + i, n_output)))
            for i in range(n)
        ]
        for thread in self._threads:
            thread.start()

    def wait(self) -> list[int]:
        for thread in self._threads:
            thread.join()
        return self.n_done


def watched(server: Server, load: Callable[[], _Load]) -> tuple[WatchLog, list[int], float]:
    """The log of a load watched from before until after, its answers, and our own CPU seconds a second meanwhile."""
    watch = Watch((endpoint(server),), open_devices(()), time.monotonic())
    watch.start()
    done = load().wait()
    seen_s, used_s = time.monotonic(), _watching_cpu_s(watch)
    time.sleep(4.0)
    used = (_watching_cpu_s(watch) - used_s) / (time.monotonic() - seen_s)
    return watch.stop(), done, used


def _watching_cpu_s(watch: Watch) -> float:
    stats = [Path(f"/proc/self/task/{t.native_id}/stat").read_text().rsplit(")", 1)[1].split() for t in watch._threads]
    return sum(int(s[11]) + int(s[12]) for s in stats) / os.sysconf("SC_CLK_TCK")


def test_preemptions_and_tokens_are_counted_and_processes_seen(server: Server) -> None:  # case PRE-01
    log, done, used = watched(server, lambda: _Load(server, N_REQUESTS, OUTPUT_TOKENS))
    counters = log.counters()["chat"]
    assert done == [OUTPUT_TOKENS] * N_REQUESTS
    assert (counters.n_finished, counters.generation_tokens) == (N_REQUESTS, N_REQUESTS * OUTPUT_TOKENS)
    assert counters.prompt_tokens == N_REQUESTS * PROMPT_TOKENS
    assert counters.n_preemptions is not None
    assert counters.n_preemptions > 0
    first, last = log.scrapes["chat"][0], log.scrapes["chat"][-1]
    assert last.n_request_preemptions_total is not None
    assert first.n_request_preemptions_total is not None
    assert counters.n_preemptions == last.n_request_preemptions_total - first.n_request_preemptions_total
    assert counters.n_steps is not None
    assert counters.n_steps >= OUTPUT_TOKENS
    assert counters.ttft_mean_s is not None
    assert counters.queue_mean_s is not None
    assert max(s.n_running or 0 for s in log.samples) > 1
    assert max(s.kv_usage or 0 for s in log.samples) > 0.5
    assert {s.role for s in log.processes} >= {"api_server", "engine_core", "worker"}
    assert max(s.cores for s in log.processes if s.role == "worker") > 0.2
    assert all(s.rss_bytes > 100 * 1024**2 for s in log.processes if s.role != "other")
    assert log.min_free_bytes is not None
    assert log.n_missed == {"chat": 0}
    assert used < 0.02, f"watching takes {used:.1%} of a core"


def test_a_starved_cache_is_diagnosed_from_outside(server: Server) -> None:  # case PRE-01
    """KV exhaustion at run time is preemption and in no log: the checklist names the budget."""
    watched_server = look_at(server.url)
    load = _Load(server, 3 * N_REQUESTS, OUTPUT_TOKENS // 2, first=100)

    def tick(gone_s: float, newest: object) -> None:
        if len(load.n_done) == 3 * N_REQUESTS and gone_s > 4:
            raise KeyboardInterrupt

    found = diagnose_watch(watch(watched_server, 120.0, tick))
    load.wait()
    [(_, engine)] = found.engines.values()
    assert found.health == "degraded", found
    assert engine.checklist.is_preempting and engine.checklist.lines[0].name == "KV budget too small"
    assert engine.checklist.lines[0].verdict == "cause", engine.checklist.lines[0].text
    assert engine.checklist.lines[4].verdict == "not the cause"
    assert engine.answers[4].verdict == "steadier"


@pytest.mark.parametrize("role", ["engine_core", "worker"])
def test_a_stopped_engine_hangs_though_health_says_200(
    server: Server, roles: dict[str, int], role: str
) -> None:  # case DIAG-16
    verdict, is_healthy = _stopped(server, roles[role])
    assert verdict is not None
    assert "request(s)" in verdict and "no token for" in verdict, "stopped before or after it told of them"
    assert is_healthy


def test_a_stopped_api_server_is_known_by_what_the_client_waits_for(server: Server, roles: dict[str, int]) -> None:
    verdict, is_healthy = _stopped(server, roles["api_server"])
    assert verdict is not None
    assert "4 request(s) in flight (/metrics does not answer)" in verdict
    assert not is_healthy


def _stopped(server: Server, pid: int) -> tuple[str | None, bool]:
    """What the watch says of a server with this process stopped in the middle of a load, and what /health says then."""
    watch = Watch((endpoint(server),), open_devices(()), time.monotonic(), hang_after_s=HANG_AFTER_S)
    watch.start()
    load = _Load(server, 4, 250, first=100)
    try:
        _wait_until(lambda: bool((seen := scrape(server.url)) and seen.n_running))
        assert watch.hang(n_in_flight=4) is None
        os.kill(pid, signal.SIGSTOP)
        verdict, until_s = None, time.monotonic() + 60
        while verdict is None and time.monotonic() < until_s:
            time.sleep(0.2)
            verdict = watch.hang(n_in_flight=4)
        is_healthy = health(server.url)
    finally:
        os.kill(pid, signal.SIGCONT)
        watch.stop()
    assert load.wait() == [250] * 4  # it goes on as if nothing had been
    return verdict, is_healthy


def _wait_until(is_true: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def test_the_end_of_its_processes_is_waited_for(server: Server) -> None:
    """Last: it ends the server of this module."""
    devices, pids = open_devices(()), server.pids
    baseline = devices.used_bytes()
    assert devices.wait_until_released(baseline, 0.0, pids).own_pids == tuple(sorted(pids))
    stopper = threading.Thread(target=server.stop)
    stopper.start()
    release = devices.wait_until_released(baseline, 30.0, pids)
    stopper.join()
    assert release.is_released
    assert scrape(server.url) is None
