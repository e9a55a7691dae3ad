"""Questions to a running server: its health, its resolved configuration, its metrics; and emptying its prefix cache.

Every function names the environment variable that holds the server's key, if it has one; the key itself is read when
it is sent, and never kept or logged. What cannot be read is None.
"""

from __future__ import annotations

import json
import os
import re
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 5.0
INFO_TIMEOUT_S = 60.0
"""The first `/server_info` asks the machine for its compilers and packages."""
_GAUGE = r"^vllm:{name}(?:{{[^}}]*}})?\s+([-+.\deE]+)$"
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def health(url: str, api_key_variable: str = "", timeout_s: float = TIMEOUT_S) -> bool:
    """Whether it says that its engine lives. A hanging engine says so too: see the watchdog."""
    return _status(_ask(url, "GET", "/health", api_key_variable, timeout_s)) == 200


def version(url: str, api_key_variable: str = "") -> str | None:
    found = _json(_ask(url, "GET", "/version", api_key_variable, TIMEOUT_S))
    return str(found["version"]) if isinstance(found, dict) and "version" in found else None


def served_models(url: str, api_key_variable: str = "") -> tuple[str, ...]:
    """The names it serves, base model first; empty if it cannot be asked."""
    found = _json(_ask(url, "GET", "/v1/models", api_key_variable, TIMEOUT_S))
    rows = _rows(found)
    return tuple(str(row["id"]) for row in rows if isinstance(row, dict) and "id" in row)


def model_roots(url: str, api_key_variable: str = "") -> tuple[str, ...]:
    """What the served names stand for, each a directory or a Hugging Face id; empty if it cannot be asked."""
    found = _json(_ask(url, "GET", "/v1/models", api_key_variable, TIMEOUT_S))
    rows = _rows(found)
    return tuple(str(row["root"]) for row in rows if isinstance(row, dict) and row.get("root"))


def server_info(url: str, api_key_variable: str = "") -> dict[str, Any] | None:
    """The whole resolved configuration, as it is: mask it before it is kept. None without development endpoints."""
    found = _json(_ask(url, "GET", "/server_info?config_format=json", api_key_variable, INFO_TIMEOUT_S))
    return found if isinstance(found, dict) else None


def reset_prefix_cache(url: str, api_key_variable: str = "") -> bool | None:
    """True if it is empty now; False while a request holds a block; None where there is no such endpoint."""
    answer = _ask(url, "POST", "/reset_prefix_cache", api_key_variable, TIMEOUT_S)
    if _status(answer) != 200:
        return None
    found = _json(answer)
    return bool(found.get("success", True)) if isinstance(found, dict) else True


def metrics_text(url: str, api_key_variable: str = "") -> str | None:
    answer = _ask(url, "GET", "/metrics", api_key_variable, TIMEOUT_S)
    return answer[1].decode(errors="replace") if answer is not None and answer[0] == 200 else None


def n_running_and_waiting(url: str, api_key_variable: str = "") -> tuple[float, float] | None:
    """Requests in all its engines now."""
    text = metrics_text(url, api_key_variable)
    found = [_sum(text or "", name) for name in ("num_requests_running", "num_requests_waiting")]
    return None if found[0] is None or found[1] is None else (found[0], found[1])


def cache_config(url: str, api_key_variable: str = "") -> dict[str, str]:
    """The KV cache's configuration as the labels of `vllm:cache_config_info`, with `kv_tokens` under that name."""
    lines = (metrics_text(url, api_key_variable) or "").splitlines()
    line = next((line for line in lines if line.startswith("vllm:cache_config_info{")), "")
    labels = dict(_LABEL.findall(line))
    if labels.get("kv_cache_size_tokens", "None") != "None":
        labels["kv_tokens"] = labels["kv_cache_size_tokens"]
    return labels


def _sum(text: str, name: str) -> float | None:
    values = re.findall(_GAUGE.format(name=name), text, re.MULTILINE)
    return sum(map(float, values)) if values else None


Answer = tuple[int, bytes] | None


def _ask(url: str, method: str, path: str, api_key_variable: str, timeout_s: float) -> Answer:
    """Status and body; None if there was no answer."""
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    key = os.environ.get(api_key_variable) if api_key_variable else None
    root = parts.path.rstrip("/").removesuffix("/v1")
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request(method, root + path, headers={"Authorization": f"Bearer {key}"} if key else {})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, HTTPException, ValueError):  # ValueError: a host that is no name
        return None
    finally:
        connection.close()


def _rows(found: Any) -> list[Any]:
    data = found.get("data") if isinstance(found, dict) else None
    return data if isinstance(data, list) else []


def _status(answer: Answer) -> int | None:
    return None if answer is None else answer[0]


def _json(answer: Answer) -> Any:
    if answer is None or answer[0] != 200:
        return None
    try:
        return json.loads(answer[1])
    except (ValueError, RecursionError):
        return None
