from __future__ import annotations

import contextlib
import http.server
import threading
import time
from collections.abc import Iterator

import pytest

from objectives.preemption import preemptions_per_request
from objectives.samples import LoadSamples
from optimizer.engines.vllm.metrics import MetricsUnread, Scrape, counters_between, fetch_metrics, parse_metrics, scrape
from tests.engines.vllm.metrics_pages import PAGE, page, without
from tests.measured import phase, record

BUSY = {
    "vllm:num_requests_running": 3,
    "vllm:num_requests_waiting": 2,
    "vllm:kv_cache_usage_perc": 0.25,
    "vllm:num_preemptions_total": 12,
    "vllm:generation_tokens_total": 1000,
    "vllm:prompt_tokens_total": 4000,
    "vllm:prompt_tokens_cached_total": 640,
    "vllm:prefix_cache_queries_total": 4000,
    "vllm:prefix_cache_hits_total": 640,
    "vllm:request_success_total|length": 7,
    "vllm:request_success_total|stop": 2,
    "vllm:request_success_total|abort": 5,
    "vllm:request_success_total|error": 1,
    "vllm:iteration_tokens_total_count": 321,
    "vllm:request_num_preemptions_sum": 11,
    "vllm:time_to_first_token_seconds_sum": 4.5,
    "vllm:time_to_first_token_seconds_count": 9,
}


def test_the_real_page_is_read_whole() -> None:
    seen = parse_metrics(page(BUSY), 5.0)
    assert (seen.time_s, seen.n_running, seen.n_waiting, seen.kv_usage) == (5.0, 3.0, 2.0, 0.25)
    assert (seen.n_preemptions_total, seen.n_request_preemptions_total) == (12.0, 11.0)
    assert (seen.generation_tokens_total, seen.prompt_tokens_total, seen.cached_prompt_tokens_total) == (
        1000,
        4000,
        640,
    )
    assert (seen.prefix_queries_total, seen.prefix_hits_total, seen.n_iterations_total) == (4000, 640, 321)
    assert (seen.ttft_sum_s, seen.ttft_count, seen.queue_sum_s, seen.prefill_count) == (4.5, 9, 0, 0)


def test_aborted_and_failed_requests_are_not_finished() -> None:
    assert parse_metrics(page(BUSY), 0.0).n_finished_total == 9


def test_engines_are_summed_and_the_fullest_cache_counts() -> None:
    both = page(BUSY) + page({**BUSY, "vllm:kv_cache_usage_perc": 0.9, "vllm:num_preemptions_total": 30}, engine="1")
    seen = parse_metrics(both, 0.0)
    assert (seen.n_running, seen.n_waiting, seen.kv_usage, seen.n_preemptions_total) == (6.0, 4.0, 0.9, 42.0)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ('vllm:num_preemptions{engine="0"} 4', "n_preemptions_total", 4),
        ('vllm:num_preemptions_total{engine="0"} 4', "n_preemptions_total", 4),
        ('vllm:gpu_cache_usage_perc{model_name="m"} 0.5', "kv_usage", 0.5),
        ('vllm:kv_cache_usage_perc{engine="0"} 0.5', "kv_usage", 0.5),
        ('vllm:gpu_prefix_cache_queries_total{model_name="m"} 9', "prefix_queries_total", 9),
        ('vllm:gpu_prefix_cache_hits{model_name="m"} 9', "prefix_hits_total", 9),
        ('vllm:request_success_total{finished_reason="length",model_name="a b {c}"} 3', "n_finished_total", 3),
        ("vllm:generation_tokens_total 1.5e+06", "generation_tokens_total", 1.5e6),
    ],
)
def test_each_spelling_is_known(line: str, field: str, value: float) -> None:
    seen = parse_metrics(line, 0.0)
    assert getattr(seen, field) == value
    assert seen.n_running is None


def test_a_metric_in_both_spellings_is_counted_once() -> None:
    both = 'vllm:num_preemptions_total{engine="0"} 4\nvllm:num_preemptions{engine="0"} 4\n'
    assert parse_metrics(both, 0.0).n_preemptions_total == 4


def test_what_is_missing_is_missing_and_never_zero() -> None:  # case PRE-01
    seen = parse_metrics(without(page(BUSY), "vllm:num_preemptions_total", "vllm:kv_cache_usage_perc"), 0.0)
    assert seen.n_preemptions_total is None
    assert seen.kv_usage is None
    assert seen.n_running == 3


def test_a_server_without_statistics_has_no_figures() -> None:
    seen = parse_metrics(without(PAGE, "vllm:"), 0.0)
    assert seen == Scrape(0.0)


def test_a_counter_that_one_engine_lacks_has_no_sum() -> None:
    both = page(BUSY) + without(page(BUSY, engine="1"), "vllm:num_preemptions_total")
    assert parse_metrics(both, 0.0).n_preemptions_total is None


def test_no_number_is_no_reading() -> None:
    assert parse_metrics("vllm:kv_cache_usage_perc NaN\n", 0.0).kv_usage is None


@pytest.mark.parametrize(
    "text",
    [
        "<html>bad gateway</html>",
        '{"error": "no"}',
        'vllm:num_preemptions_total{engine="0" 12',
        "vllm:kv_cache_usage_perc x",
    ],
)
def test_a_broken_page_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(ValueError, match="line 2 of /metrics is not in Prometheus' format"):
        parse_metrics(f"# HELP x y\n{text}\n", 0.0)


# ---- between scrapes -------------------------------------------------------------------------------------------------


def scrapes(*pages: str) -> list[Scrape]:
    return [parse_metrics(text, float(i)) for i, text in enumerate(pages)]


def preempted(n: float, engine: str = "0") -> str:
    return f'vllm:num_preemptions_total{{engine="{engine}",model_name="m"}} {n}\n'


def test_preemptions_come_from_the_counter_and_not_from_the_log() -> None:  # case PRE-01
    counters = counters_between(scrapes(preempted(12.0), preempted(61.0)))
    assert counters.n_preemptions == 49
    records = [record(float(i), i + 0.1, [0.02]) for i in range(400)]
    samples = LoadSamples((phase(records, counters={"a": counters}),))
    assert preemptions_per_request(samples) == pytest.approx(0.1225)


def test_a_rate_may_exceed_one() -> None:  # case PRE-02
    counters = counters_between(scrapes(preempted(0), preempted(1065)))
    records = [record(float(i), i + 0.1) for i in range(450)]
    rate = preemptions_per_request(LoadSamples((phase(records, counters={"a": counters}),)))
    assert rate == pytest.approx(2.3667, abs=1e-3)


def test_increases_are_summed_over_engines() -> None:
    first = preempted(1) + preempted(5, "1")
    assert counters_between(scrapes(first, preempted(4) + preempted(9, "1"))).n_preemptions == 7


def test_a_restart_counts_on_from_nothing() -> None:
    assert counters_between(scrapes(*map(preempted, (10, 14, 3, 5)))).n_preemptions == 9


def test_a_restart_of_one_engine_is_seen_behind_the_growth_of_another() -> None:
    pages = [preempted(a) + preempted(b, "1") for a, b in ((10, 100), (2, 200), (4, 300))]
    assert counters_between(scrapes(*pages)).n_preemptions == 4 + 200


def test_an_engine_that_came_later_counts_from_its_start() -> None:
    assert counters_between(scrapes(preempted(1), preempted(1) + preempted(6, "1"))).n_preemptions == 6


@pytest.mark.parametrize(
    "pages",
    [
        (preempted(3),),
        (preempted(3), "vllm:generation_tokens_total 3\n"),
        ("vllm:generation_tokens_total 3\n", preempted(3)),
        (preempted(1) + preempted(2, "1"), preempted(3)),
        (),
    ],
)
def test_an_increase_without_both_ends_is_unknown(pages: tuple[str, ...]) -> None:  # case PRE-01
    assert counters_between(scrapes(*pages)).n_preemptions is None


def test_the_servers_own_means_are_of_the_window() -> None:
    before = page({"vllm:time_to_first_token_seconds_sum": 4.0, "vllm:time_to_first_token_seconds_count": 4})
    after = page({"vllm:time_to_first_token_seconds_sum": 7.0, "vllm:time_to_first_token_seconds_count": 10})
    counters = counters_between(scrapes(before, after))
    assert counters.ttft_mean_s == pytest.approx(0.5)
    assert counters.queue_mean_s is None


def test_hits_and_queries_are_of_the_window() -> None:
    counters = counters_between(scrapes(page({}), page(BUSY)))
    assert (counters.prefix_queries_tokens, counters.prefix_hits_tokens) == (4000, 640)
    assert (counters.prompt_tokens, counters.cached_prompt_tokens, counters.n_steps) == (4000, 640, 321)


# ---- fetching --------------------------------------------------------------------------------------------------------


class _Page(http.server.BaseHTTPRequestHandler):
    paths: list[str]
    keys: list[str | None]

    def do_GET(self) -> None:
        self.paths.append(self.path)
        self.keys.append(self.headers.get("Authorization"))
        if self.path.startswith("/slow"):
            time.sleep(1.0)
        status = 307 if self.path.startswith("/moved") else 200 if self.path.endswith("/metrics") else 404
        self.send_response(status)
        self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):
            self.wfile.write(b"<html>" if self.path.startswith("/html") else preempted(3).encode())

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def _server() -> Iterator[tuple[str, type[_Page]]]:
    page_class = type("Page", (_Page,), {"paths": [], "keys": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), page_class)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", page_class
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/metrics"])
def test_the_page_is_found_from_any_form_of_the_address(path: str) -> None:
    with _server() as (url, seen):
        found = scrape(url + path)
    assert found is not None
    assert found.n_preemptions_total == 3
    assert seen.paths == ["/metrics"]


def test_nothing_is_read_from_a_server_that_does_not_answer_with_its_metrics() -> None:
    with _server() as (url, _):
        assert scrape(url + "/html") is None
        assert scrape(url + "/slow", timeout_s=0.1) is None
        with pytest.raises(MetricsUnread, match="HTTP 307"):
            fetch_metrics(url + "/moved")
    assert scrape(url) is None


def test_the_key_goes_to_the_server_alone_and_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", "abc")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with _server() as (url, seen):
        scrape(url, api_key_variable="SERVER_KEY")
        scrape(url)
    assert seen.keys == ["Bearer abc", None]
