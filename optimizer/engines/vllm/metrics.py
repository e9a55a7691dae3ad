"""What a vLLM server counted: its `/metrics` fetched, and the increases of its counters between two readings."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit

from objectives.measurement import EngineCounters
from optimizer.clock import REAL_CLOCK
from optimizer.engines.vllm.exposition import Scrape, parse_metrics

__all__ = ["MetricsUnread", "Scrape", "counters_between", "fetch_metrics", "parse_metrics", "scrape"]


def counters_between(scrapes: Sequence[Scrape]) -> EngineCounters:
    """Increases from the first to the last scrape, in order of time, over all engines.

    A total that falls was reset by a restart and counts on from 0; what it gained unseen before the restart is lost,
    so every scrape between belongs here. None where the first or the last scrape lacks it, or there are fewer than 2.
    Preemptions are complete only if the last scrape was taken after draining."""

    def gained(name: str) -> float | None:
        return _increase(name, scrapes)

    return EngineCounters(
        n_preemptions=gained("n_preemptions_total"),
        prompt_tokens=gained("prompt_tokens_total"),
        cached_prompt_tokens=gained("cached_prompt_tokens_total"),
        n_steps=gained("n_iterations_total"),
        generation_tokens=gained("generation_tokens_total"),
        n_finished=gained("n_finished_total"),
        prefix_queries_tokens=gained("prefix_queries_total"),
        prefix_hits_tokens=gained("prefix_hits_total"),
        ttft_mean_s=_mean(gained("ttft_sum_s"), gained("ttft_count")),
        queue_mean_s=_mean(gained("queue_sum_s"), gained("queue_count")),
        prefill_mean_s=_mean(gained("prefill_sum_s"), gained("prefill_count")),
    )


def _increase(name: str, scrapes: Sequence[Scrape]) -> float | None:
    if len(scrapes) < 2 or getattr(scrapes[0], name) is None or getattr(scrapes[-1], name) is None:
        return None
    labels = dict.fromkeys(engine for s in scrapes for engine in _by_engine(s))
    gains = [_engine_increase([_by_engine(s).get(label) for s in scrapes], name) for label in labels]
    return None if None in gains else math.fsum(g for g in gains if g is not None)


def _by_engine(scrape: Scrape) -> Mapping[str, Scrape]:
    return scrape.engines or {"": scrape}


def _engine_increase(engine: Sequence[Scrape | None], name: str) -> float | None:
    """None for an engine that is gone at the end. One that came later counts from 0."""
    if engine[-1] is None:
        return None
    seen = [None if s is None else getattr(s, name) for s in engine]
    values: list[float] = [v for v in (0.0 if engine[0] is None else None, *seen) if v is not None]
    return math.fsum(b - a if b >= a else b for a, b in itertools.pairwise(values))


def _mean(total: float | None, count: float | None) -> float | None:
    return total / count if total is not None and count else None


MOST_BYTES, READ_BYTES = 64 * 2**20, 2**16
"""A page of vLLM 0.32 has 60 kB an engine."""
WHOLE = 2.5
"""A server that is short of CPU sends its page in pieces."""


class MetricsUnread(Exception):
    """A server's metrics could not be read; says why in one line."""


def scrape(url: str, timeout_s: float = 2.0, api_key_variable: str = "") -> Scrape | None:
    """None where the server cannot be reached, answers with anything but its metrics, or takes longer."""
    try:
        return parse_metrics(fetch_metrics(url, timeout_s, api_key_variable), REAL_CLOCK.now_s())
    except (MetricsUnread, ValueError):
        return None


def fetch_metrics(url: str, timeout_s: float = 2.0, api_key_variable: str = "") -> str:
    """The text at URL/metrics (a trailing `/v1` is left out). No proxy is asked and no redirect followed, so that the
    key, which only the named environment variable holds, goes to this server alone. Raises MetricsUnread, also for an
    answer that has not ended after WHOLE times `timeout_s` (the longest silence in it) or is longer than MOST_BYTES."""
    until_s = REAL_CLOCK.now_s() + WHOLE * timeout_s
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", _path(parts.path), headers=_headers(api_key_variable))
        answer = connection.getresponse()
        body = _body(answer, connection, until_s, timeout_s)
    except (OSError, HTTPException) as error:
        raise MetricsUnread(f"{url}: {type(error).__name__}: {error}") from None
    except UnicodeError:
        raise MetricsUnread(f"{url!r}: is no address that a server can have") from None
    finally:
        connection.close()
    if answer.status != 200:
        raise MetricsUnread(f"{url}: HTTP {answer.status} {answer.reason}")
    return body.decode("utf-8", "replace")


def _body(answer: HTTPResponse, connection: HTTPConnection, until_s: float, silence_s: float) -> bytes:
    """Raises TimeoutError, HTTPException. A time-out of the socket alone would wait anew for every few bytes."""
    found = bytearray()
    while (left_s := until_s - REAL_CLOCK.now_s()) > 0:
        if connection.sock is not None:
            connection.sock.settimeout(min(left_s, silence_s))
        part = answer.read1(READ_BYTES)
        found += part
        if not part:
            return bytes(found)
        if len(found) > MOST_BYTES:
            raise HTTPException(f"more than {MOST_BYTES >> 20} MiB are no metrics of a server")
    raise TimeoutError("the answer did not end in time")


def _path(path: str) -> str:
    path = path.rstrip("/")
    return path if path.endswith("/metrics") else path.removesuffix("/v1") + "/metrics"


def _headers(api_key_variable: str) -> dict[str, str]:
    key = os.environ.get(api_key_variable) if api_key_variable else None
    return {"Authorization": f"Bearer {key}"} if key else {}
