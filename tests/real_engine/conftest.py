"""Real vLLM on a CPU, for the tests of this folder: a tiny model, and one booted server a module.

A boot takes half a minute: tests of one set of flags share the server, and starts take turns across test processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from optimizer.engines.vllm.boot import ServerBoot
from optimizer.engines.vllm.interpreter import VllmInstall, find_vllm
from optimizer.engines.vllm.server import Server, ServerSpec
from optimizer.engines.vllm.turns import start_lock
from search_spaces.config import Config
from tests.real_engine.tiny_model import write_tiny_model

SMALL = Config(
    {
        "enforce_eager": True,
        "block_size": 32,
        "max_model_len": 2048,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
        "kv_cache_memory_bytes": 64 * 2**20,
    }
)
"""32,768 tokens of KV cache."""


@dataclass(frozen=True)
class Served:
    """A server that is ready."""

    server: Server
    boot: ServerBoot

    @property
    def url(self) -> str:
        return self.server.url


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def install(vllm_python: str) -> VllmInstall:
    return find_vllm(vllm_python)


@pytest.fixture(scope="session")
def served(install: VllmInstall, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server with the flags of SMALL, for `test_made_ill` and then for `test_server_boot`, which ends it."""
    spec = ServerSpec("shared", str(tiny_model), SMALL, install, tmp_path_factory.mktemp("server"))
    with start_lock(()):
        server = Server(spec)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(server.stop)
            boot = server.wait_until_ready()
            on_failure.pop_all()
    try:
        yield Served(server, boot)
    finally:
        server.stop()
