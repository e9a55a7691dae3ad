"""`diagnose --url`: look, watch, diagnose, print."""

from __future__ import annotations

import json
import sys

from optimizer.watching.diagnosis import diagnose_watch, exit_code_of, text_of
from optimizer.watching.progress import WatchProgress
from optimizer.watching.server import look_at, server_url
from optimizer.watching.watch import watch


def watch_server(
    url: str, span_s: float, model: str | None, gpu: str | None, api_key_variable: str, *, is_json: bool
) -> int:
    """The exit code. Raises UserError for a bad address, model or card, Unavailable where no vLLM server answers."""
    server, first = look_at(server_url(url), model=model, gpu=gpu, api_key_variable=api_key_variable)
    progress = WatchProgress(sys.stderr, span_s)
    try:
        seen = watch(server, first, span_s, progress)
    finally:
        progress.close()
    found = diagnose_watch(seen)
    print(json.dumps(found.to_json(), indent=1, allow_nan=False) if is_json else text_of(found))
    return exit_code_of(found)
