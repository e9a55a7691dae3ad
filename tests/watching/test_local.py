"""Finding the server behind a URL among this machine's processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from optimizer.errors import UserError
from optimizer.watching.card import find_card
from optimizer.watching.local import LocalServer, find_local, is_server_command
from tests.engines.vllm.recorded_nvml import Card, RecordedNvml

FRONT = """
import socket, subprocess, sys, time
core = "open('/proc/self/comm', 'w').write('VLLM::EngineCor'); import time; print(1, flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", core], stdout=subprocess.PIPE)
child.stdout.readline()
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
print(listener.getsockname()[1], flush=True)
time.sleep(60)
"""


@pytest.fixture
def front() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    process = subprocess.Popen([sys.executable, "-c", FRONT], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    try:
        yield process, port
    finally:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.skipif(sys.platform != "linux", reason="titles as Linux shows them")
def test_the_whole_tree_behind_a_port_is_found(front: tuple[subprocess.Popen[bytes], int]) -> None:
    process, port = front
    found = find_local(f"http://localhost:{port}")
    assert found.is_seen and found.root == process.pid and len(found.pids()) == 2
    assert found.n_cores and found.n_cores <= (os.cpu_count() or 1)
    card = find_card(found, None)
    assert card.facts is not None and card.facts.is_cpu, "none of its processes has loaded a GPU's driver"


def test_a_port_of_something_else_is_not_watched() -> None:
    with socket.socket() as mine:
        mine.bind(("127.0.0.1", 0))
        mine.listen()
        found = find_local(f"http://127.0.0.1:{mine.getsockname()[1]}")
    assert not found.is_seen and "which is no vLLM" in found.unseen


def test_another_machine_and_a_free_port_are_said() -> None:
    assert find_local("http://192.0.2.7:8000").unseen == "it runs on another machine"
    assert "listens on port 9" in find_local("http://127.0.0.1:9").unseen
    assert find_local("http://no-such-host.invalid:1").unseen == "it runs on another machine"


@pytest.mark.parametrize(
    ("words", "is_one"),
    [
        (["/venv/bin/python3.12", "/venv/bin/vllm", "serve", "m"], True),
        (["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"], True),
        (["python", "-u", "-m", "vllm.entrypoints.cli.main"], True),
        (["vllm", "serve", "m"], True),
        (["bash", "-c", "vllm serve m"], False),
        (["flock", "/tmp/vllm.lock", "vllm", "serve"], False),
        (["nginx"], False),
        (["python", "-m"], False),
        ([], False),
    ],
)
def test_only_the_program_itself_is_a_server(words: list[str], is_one: bool) -> None:
    assert is_server_command(words) is is_one


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if this process had loaded CUDA's driver."""
    monkeypatch.setattr("optimizer.watching.card._drivers", lambda local: frozenset({"libcuda.so"}))


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(
    ("cards", "names", "card"),
    [
        ([Card("GPU-a"), Card("GPU-b", pids=[os.getpid()])], ("GPU-b",), "H100-80"),
        ([Card("GPU-a", pids=None)], ("GPU-a",), "H100-80"),
        ([Card("GPU-a", name="Quadro K620", pids=[os.getpid()])], ("GPU-a",), None),
        ([Card("GPU-a"), Card("GPU-b")], ("host",), None),
    ],
)
def test_a_card_is_found_by_who_holds_its_memory(cards: list[Card], names: tuple[str, ...], card: str | None) -> None:
    found = find_card(LocalServer(os.getpid()), None, RecordedNvml(*cards))
    assert found.devices.names == names and (found.facts.name if found.facts else None) == card
    assert bool(found.notes) is (card is None)


@pytest.mark.usefixtures("loaded")
def test_the_user_names_the_card() -> None:
    assert find_card(LocalServer(os.getpid()), "A100-80", RecordedNvml(Card("GPU-a"))).facts.name == "A100-80"  # type: ignore[union-attr]
    with pytest.raises(UserError, match="--gpu: unknown GPU 'H1000'"):
        find_card(LocalServer(0, "elsewhere"), "H1000")
    assert find_card(LocalServer(0, "elsewhere"), "cpu").facts.is_cpu  # type: ignore[union-attr]
