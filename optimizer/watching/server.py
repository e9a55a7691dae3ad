"""What is known of a running server before it is watched: version, arguments, KV cache, model, card, processes.

Asked of the server itself, then read off its own command line where its processes can be seen, then filled in with
vLLM's defaults; each is said. Nothing that it is asked makes it do anything.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from optimizer.deployment.secrets import mask
from optimizer.deployment.vllm_command import read_command
from optimizer.engines.vllm.devices import Devices
from optimizer.engines.vllm.http import model_roots
from optimizer.engines.vllm.http import version as version_of
from optimizer.engines.vllm.metrics import MetricsUnread, fetch_metrics
from optimizer.engines.vllm.readings import Reading, read_all
from optimizer.engines.vllm.told import told_arguments
from optimizer.errors import Unavailable, UserError
from optimizer.watching.card import Card, find_card
from optimizer.watching.local import LocalServer, find_local
from optimizer.watching.words import plain
from search_spaces.constraint import resolve_defaults
from search_spaces.hardware import GpuFacts
from search_spaces.known_models import find_model
from search_spaces.model import ModelFacts

SIZES = ("tensor_parallel_size", "pipeline_parallel_size")
FILLED_IN = ("max_num_batched_tokens", "max_num_seqs", "max_model_len")


@dataclass(frozen=True, kw_only=True)
class RunningServer:
    """Of one URL."""

    url: str
    version: str
    model_name: str
    """As it serves it."""
    config: Mapping[str, object]
    """Arguments of one engine."""
    kv_tokens: Mapping[str, int]
    """Engine label -> tokens that its KV cache holds."""
    model: ModelFacts | None
    gpu: GpuFacts | None
    n_gpus: int
    """Of one engine."""
    n_cores: int | None
    """That it may run on; None where its processes cannot be seen."""
    local: LocalServer
    devices: Devices
    notes: tuple[str, ...] = ()
    """What is assumed or cannot be seen, for people."""
    api_key_variable: str = ""

    @property
    def has_gpu(self) -> bool:
        return self.gpu is None or not self.gpu.is_cpu


@dataclass
class _Known:
    """What has been found so far."""

    config: dict[str, object] = field(default_factory=dict)
    model: str = ""
    notes: list[str] = field(default_factory=list)


def server_url(text: str) -> str:
    """Without a trailing slash, `/v1` or `/metrics`. Raises UserError for what is no address of a server."""
    shown = mask(text)
    try:
        parts = urlsplit(text.strip())
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), 0
    is_readable = text.strip().isascii() and not any(c.isspace() for c in text.strip())
    is_http = parts.scheme in ("http", "https") and parts.hostname and port != 0
    if not is_readable or not is_http or parts.query or parts.fragment:
        raise UserError(f"--url {shown}: give the server's address as http://HOST:PORT")
    if "@" in parts.netloc:
        raise UserError("--url: the address holds a password; give it without, and the key with --api-key-variable")
    path = parts.path.rstrip("/").removesuffix("/metrics").rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def look_at(url: str, *, model: str | None = None, gpu: str | None = None, api_key_variable: str = "") -> RunningServer:
    """`model` and `gpu`: what the user says they are, instead of what is found.

    Raises Unavailable where no vLLM server answers or it shows no metrics; UserError for an unknown model or card."""
    reading = _first_reading(url, api_key_variable)
    version = plain(version_of(url, api_key_variable) or "unknown")
    local = find_local(url)
    known = _Known()
    _read_command_line(local, known)
    known.config |= told_arguments(url, api_key_variable)
    if not local.is_seen:
        known.notes.append(f"its processes cannot be seen: {local.unseen}; CPU and GPU stay unknown")
    n_gpus = math.prod(_whole(known.config.get(name)) or 1 for name in SIZES)
    card = find_card(local, gpu)
    known.notes += card.notes
    served = _served(reading)
    facts = _model(model, [known.model, *model_roots(url, api_key_variable), served], known)
    _fill_in(known, facts, card)
    return RunningServer(
        url=url,
        version=version,
        model_name=plain(served),
        config=known.config,
        kv_tokens=_kv_tokens(reading),
        model=facts,
        gpu=card.facts,
        n_gpus=n_gpus,
        n_cores=local.n_cores,
        local=local,
        devices=card.devices,
        notes=tuple(map(plain, known.notes)),
        api_key_variable=api_key_variable,
    )


def _first_reading(url: str, api_key_variable: str) -> Reading:
    try:
        text = fetch_metrics(url, 5.0, api_key_variable)
        reading = read_all(text)
    except MetricsUnread as error:
        raise Unavailable(f"--url {_unread(str(error))}") from None
    except ValueError as error:
        raise Unavailable(f"--url {url}: what answers there is no vLLM server: {error}") from None
    if not reading.labels("vllm:num_requests_running"):
        raise Unavailable(f"--url {url}: {_without_metrics(text)}")
    return reading


def _unread(why: str) -> str:
    if "HTTP 401" in why or "HTTP 403" in why:
        return f"{why}; name the environment variable that holds its key with --api-key-variable"
    if "HTTP 404" in why:
        return f"{why}: there is no /metrics; give the address of the vLLM server itself"
    return f"{why}; no vLLM server answers there: start it, or check the address"


def _without_metrics(text: str) -> str:
    for prefix, name in (("sglang:", "SGLang"), ("tgi_", "Text Generation Inference"), ("TRT", "TensorRT-LLM")):
        if any(line.startswith(prefix) for line in text.splitlines()):
            return f"is a server of {name}, not of vLLM"
    return "has no vLLM metrics; start the server without --disable-log-stats, or check the address"


def _read_command_line(local: LocalServer, known: _Known) -> None:
    """What it was started with, as far as this user may read it. Secrets are left out by the reader."""
    if not local.command:
        return
    try:
        current = read_command(shlex.join(local.command), "its command line", Path(local.folder or "."))
    except UserError as error:
        known.notes.append(f"{mask(str(error))}; its arguments are known only as far as it tells them")
        return
    known.config |= dict(current.config)
    known.model = current.model or ""


def _model(named: str | None, guesses: list[str], known: _Known) -> ModelFacts | None:
    if named is not None:
        try:
            return find_model(named)
        except (ValueError, OSError) as error:
            raise UserError(f"--model {named}: {error}") from None
    for guess in dict.fromkeys(g for g in guesses if g):
        try:
            return find_model(guess)
        except (ValueError, OSError):
            continue
    known.notes.append("the model's sizes are not known (--model NAME or its directory gives them): no roofline")
    return None


def _fill_in(known: _Known, model: ModelFacts | None, card: Card) -> None:
    """vLLM's defaults for budgets that nobody gave; only where the whole command line was read."""
    missing = [name for name in FILLED_IN if name not in known.config]
    if not missing or not known.model:
        return
    filled = resolve_defaults(known.config, model, None, card.facts)
    added = {name: filled[name] for name in missing if name in filled}
    if added:
        told = ", ".join(f"{name} {value}" for name, value in added.items())
        known.notes.append(f"taken as vLLM 0.32's defaults: {told}")
    known.config |= added


def _served(reading: Reading) -> str:
    return next((row.get("model_name", "") for row in reading.labels("vllm:num_requests_running")), "")


def _kv_tokens(reading: Reading) -> dict[str, int]:
    """By engine. Older servers tell blocks and their size."""
    found = {}
    for row in reading.labels("vllm:cache_config_info"):
        size = _whole(row.get("kv_cache_size_tokens"))
        blocks, each = _whole(row.get("num_gpu_blocks")), _whole(row.get("block_size"))
        tokens = size if size is not None else blocks * each if blocks and each else None
        if tokens:
            found[row.get("engine", "")] = tokens
    return found


def _whole(value: object) -> int | None:
    try:
        return int(str(value))
    except ValueError:
        return None
