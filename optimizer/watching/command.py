"""`diagnose --url`: look, watch, diagnose, print."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from optimizer.watching.diagnosis import diagnose_watch, exit_code_of, text_of
from optimizer.watching.progress import WatchProgress
from optimizer.watching.server import look_at, server_url
from optimizer.watching.watch import watch

ENDING = (signal.SIGTERM, signal.SIGHUP) if hasattr(signal, "SIGHUP") else (signal.SIGTERM,)


@contextmanager
def ending_early() -> Iterator[None]:
    """SIGTERM and SIGHUP (`timeout`, a closed session) end the watch as Ctrl-C does: what was seen is told."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.default_int_handler) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def watch_server(
    url: str, span_s: float, model: str | None, gpu: str | None, api_key_variable: str, *, is_json: bool
) -> int:
    """The exit code. Raises UserError for a bad address, model or card, Unavailable where no vLLM server answers."""
    server = look_at(server_url(url), model=model, gpu=gpu, api_key_variable=api_key_variable)
    progress = WatchProgress(sys.stderr, span_s)
    with ending_early():
        seen = watch(server, span_s, progress)
    progress.close()
    found = diagnose_watch(seen)
    print(json.dumps(found.to_json(), indent=1, allow_nan=False) if is_json else text_of(found))
    return exit_code_of(found)
