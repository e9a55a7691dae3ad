"""What optuna-dashboard serves of a study, asked in this process."""

from __future__ import annotations

import io
import json
import warnings
from typing import Any

from optimizer.study.record import StudyRecord


def get(record: StudyRecord, path: str, artifact_store: Any = None) -> Any:
    """One request to its API."""
    return json.loads(get_file(record, path, artifact_store))


def get_file(record: StudyRecord, path: str, artifact_store: Any = None) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from optuna_dashboard import wsgi

        app = wsgi(record.study._storage, artifact_store=artifact_store)
    started: list[str] = []
    environ = {
        "REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": "", "SERVER_NAME": "x", "SERVER_PORT": "0",
        "wsgi.input": io.BytesIO(), "wsgi.errors": io.StringIO(), "wsgi.url_scheme": "http",
    }  # fmt: skip
    parts = app(environ, lambda status, headers, exc=None: started.append(status))  # type: ignore[arg-type]
    try:
        body = b"".join(parts)
    finally:
        getattr(parts, "close", lambda: None)()
    assert started[0].startswith("200"), (started, body[:200])
    return body
