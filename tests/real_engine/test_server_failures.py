"""Every failure of a start that a CPU can provoke, provoked and classified."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from optimizer.engines.vllm.argument_check import check_arguments, check_many
from optimizer.engines.vllm.interpreter import VllmInstall
from optimizer.engines.vllm.launch import server_words
from optimizer.engines.vllm.ports import HOST, PortLease, lease_ports
from optimizer.engines.vllm.server import Server, ServerSpec
from optimizer.engines.vllm.turns import start_lock
from optimizer.errors import EngineFailed, UserError
from search_spaces.config import Config
from search_spaces.parameter import Value
from tests.real_engine.conftest import SMALL

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]


def fail(
    install: VllmInstall, model: Path | str, folder: Path, config: Config, ports: PortLease | None = None
) -> EngineFailed:
    with start_lock(()):
        server = Server(ServerSpec("bad", str(model), config, install, folder), ports)
        begin_s = time.monotonic()
        try:
            with pytest.raises(EngineFailed) as raised:
                server.wait_until_ready()
        finally:
            server.stop()
    print(f"{raised.value} after {time.monotonic() - begin_s:.1f} s, bounds {raised.value.bounds}")
    assert server.pids == () and not server.is_alive
    return raised.value


@pytest.mark.parametrize(
    ("changes", "kind", "phase", "words"),
    [
        ({"kv_cache_memory_bytes": 2**20}, "kv_capacity", "kv_alloc", "max seq len"),
        ({"max_model_len": 8192}, "arguments", "config", "8192"),
        ({"max_num_batched_tokens": 64, "max_num_seqs": 128, "max_model_len": 256}, "arguments", "config", "128"),
    ],
)
def test_what_the_configuration_is_to_blame_for(
    install: VllmInstall,
    tiny_model: Path,
    tmp_path: Path,
    changes: dict[str, Value],
    kind: str,
    phase: str,
    words: str,
) -> None:
    error = fail(install, tiny_model, tmp_path, SMALL.with_(**changes))
    assert (error.kind, error.phase, error.is_config_fault) == (kind, phase, True)
    assert any(words in line for line in error.evidence) and error.violation > 0
    if kind == "kv_capacity":
        assert 0 < error.bounds["max_model_len_at_most"] < 2048


def test_memory_that_the_host_does_not_have(install: VllmInstall, tiny_model: Path, tmp_path: Path) -> None:
    config = Config({**{k: v for k, v in SMALL.items() if k != "kv_cache_memory_bytes"}, "gpu_memory_utilization": 1.0})
    error = fail(install, tiny_model, tmp_path, config)
    assert error.kind in ("neighbour", "host_ram")
    assert any(re.search("[Mm]emory", line) for line in error.evidence)


def test_a_model_that_is_not_there(install: VllmInstall, tiny_model: Path, tmp_path: Path) -> None:
    error = fail(install, tmp_path / "no-such-model", tmp_path / "a", SMALL)
    assert (error.kind, error.is_config_fault) == ("model_missing", False)
    weightless = fail(install, tiny_model, tmp_path / "b", SMALL.with_(load_format="auto"))
    assert (weightless.kind, weightless.phase) == ("model_missing", "load")


@contextmanager
def stranger(port: int) -> Iterator[None]:
    """A program that takes the port although we hold it: it asks for it as vLLM does."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind((HOST, port))
        taken.listen()
        yield


def test_a_port_taken_by_a_stranger(install: VllmInstall, tiny_model: Path, tmp_path: Path) -> None:  # case MULTI-06
    """Ours to repeat, on another port; and never told to the sampler as a bad configuration."""
    ports = lease_ports()
    with stranger(ports.api):
        error = fail(install, tiny_model, tmp_path, SMALL, ports)
    assert (error.kind, error.is_config_fault) == ("port", False)


def test_refused_arguments_cost_no_boot(install: VllmInstall, tiny_model: Path) -> None:  # cases PRE-05, VER-03
    removed: dict[str, Value] = {
        "swap_space": 4,
        "preemption_mode": "swap",
        "num_scheduler_steps": 8,
        "max_num_partial_prefills": 2,
    }
    lists = [server_words(SMALL.with_(**{name: value}), str(tiny_model)) for name, value in removed.items()]
    good = server_words(SMALL.with_(watermark=0.05), str(tiny_model))
    unknown = server_words(SMALL.with_(no_such_flag=1), str(tiny_model))
    *refused, accepted, other = check_many(install, [*lists, good, unknown])
    assert accepted is None
    for name, error in zip(removed, refused, strict=True):
        assert error is not None and error.kind == "version" and error.is_config_fault
        assert f"{name.replace('_', '-')} was removed in vLLM V1" in error.cause
    assert other is not None and "no-such-flag" in other.cause and other.kind == "arguments"
    begin_s = time.monotonic()
    check_arguments(install, [server_words(SMALL.with_(watermark=0.11), str(tiny_model))])
    with pytest.raises(EngineFailed, match="swap-space"):
        check_arguments(install, lists)
    assert time.monotonic() - begin_s < 0.5, "a shape seen before starts no parser"


def test_a_cpu_needs_its_kv_size(install: VllmInstall, tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="kv_cache_memory_bytes"):
        Server(ServerSpec("x", str(tiny_model), Config({"max_num_seqs": 4}), install, tmp_path))
    with pytest.raises(UserError, match="port"):
        Server(ServerSpec("x", str(tiny_model), SMALL.with_(port=1), install, tmp_path))
