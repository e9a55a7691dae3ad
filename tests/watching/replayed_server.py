"""A server that answers as a real one did: `/metrics` of vLLM 0.32 (CPU build, a tiny model) over 11 s of a load, second
by second, recorded; with edits, failures and a slow front where a test wants them."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PAGES: list[str] = json.loads(gzip.decompress((Path(__file__).parent / "metrics_of_a_load.json.gz").read_bytes()))
Edit = Callable[[str, int], str]


def unchanged(page: str, number: int) -> str:
    return page


def with_value(page: str, name: str, value: float, **labels: str) -> str:
    """Every sample of that name that carries these labels."""
    wanted = [f'{k}="{v}"' for k, v in labels.items()]

    def put(match: re.Match[str]) -> str:
        return f"{match[1]} {value}" if all(w in match[1] for w in wanted) else match[0]

    edited, n = re.subn(rf"^({re.escape(name)}{{[^}}]*}}) \S+$", put, page, flags=re.M)
    assert n, f"no {name}"
    return edited


class ReplayedServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    edit: Edit = staticmethod(unchanged)
    pages: list[str] = PAGES
    dies_after: int | None = None
    """Readings after which it closes every connection unanswered."""
    fails_at: frozenset[int] = frozenset()
    """Readings that are answered with 500."""
    endless = False
    """`/metrics` never ends, a few bytes at a time."""
    version = "0.32.0"
    key = ""
    n_read = 0
    n_other = 0
    """Requests for anything but metrics, version and model names."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(http.server.BaseHTTPRequestHandler):
    server: ReplayedServer

    def do_GET(self) -> None:
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            return self._answer(401, "")
        if self.path == "/metrics":
            return self._metrics()
        if self.path == "/version":
            return self._answer(200, json.dumps({"version": self.server.version}))
        if self.path == "/v1/models":
            return self._answer(200, '{"data": [{"id": "tiny", "root": "/nowhere/tiny"}]}')
        self.server.n_other += not self.path.startswith("/server_info")
        return self._answer(404, "")

    def _metrics(self) -> None:
        number = self.server.n_read
        self.server.n_read += 1
        if self.server.dies_after is not None and number >= self.server.dies_after:
            self.close_connection = True
            return None
        if number in self.server.fails_at:
            return self._answer(500, "")
        if self.server.endless and number > 2:
            return self._trickle()
        place = min(number, len(self.server.pages) - 1)
        return self._answer(200, self.server.edit(self.server.pages[place], place))

    def _trickle(self) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"# more\n")
                self.wfile.flush()
                time.sleep(0.02)

    def do_POST(self) -> None:
        self.server.n_other += 1
        self._answer(404, "")

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def replayed() -> Iterator[ReplayedServer]:
    served = ReplayedServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=served.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield served
    finally:
        served.shutdown()
        thread.join()
        served.server_close()
