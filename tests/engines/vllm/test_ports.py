"""Leased ports: disjoint between processes, held against strangers, given back however the holder ends."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from optimizer.engines.vllm.ports import FIRST_API_PORT, HOST, INTERNAL_PORTS, N_SLOTS, PortLease, lease_ports
from optimizer.errors import Unavailable
from optimizer.identity import ROOT


@pytest.fixture(autouse=True)
def own_host_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks that other servers on this machine do not see; the ports themselves are shared with them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@contextlib.contextmanager
def leased(n: int) -> Iterator[list[PortLease]]:
    leases = [lease_ports() for _ in range(n)]
    try:
        yield leases
    finally:
        for lease in leases:
            lease.release()


def listen(port: int, *options: int) -> socket.socket:
    server = socket.socket()
    try:
        for option in options:
            server.setsockopt(socket.SOL_SOCKET, option, 1)
        server.bind((HOST, port))
        server.listen()
    except OSError:
        server.close()
        raise
    return server


def test_every_port_is_given_once() -> None:
    with leased(8) as leases:
        ranges = [range(lease.internal, lease.internal + INTERNAL_PORTS) for lease in leases]
        ports = [lease.api for lease in leases] + [port for one in ranges for port in one]
        assert len(set(ports)) == len(ports) and min(ports) >= 8000 and max(ports) <= 9999


def test_a_held_port_is_the_servers_alone() -> None:
    """vLLM asks with SO_REUSEADDR, and with SO_REUSEPORT for several API servers; its search for free ports with
    neither."""
    with leased(1) as (lease,):
        with pytest.raises(OSError, match="in use"):
            listen(lease.api)
        for options in ((socket.SO_REUSEADDR,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT)):
            with listen(lease.api, *options) as server, socket.create_connection((HOST, lease.api), timeout=5):
                server.accept()[0].close()
        lease.let_go_of_api_port()
        listen(lease.api, socket.SO_REUSEADDR).close()


def test_a_strangers_port_is_not_leased() -> None:
    with leased(1) as (lease,):
        port = lease.api
    with listen(port, socket.SO_REUSEADDR), leased(N_SLOTS // 2) as leases:
        assert port not in {lease.api for lease in leases}


def test_when_none_is_left_it_says_so() -> None:
    with contextlib.ExitStack() as held, pytest.raises(Unavailable, match=f"every port of {FIRST_API_PORT}"):
        for _ in range(N_SLOTS + 1):
            held.callback(lease_ports().release)


TAKER = """
    import socket, sys, tempfile
    sys.path.insert(0, {root!r})
    tempfile.tempdir = sys.argv[1]
    from optimizer.engines.vllm.ports import HOST, lease_ports
    for _ in range(int(sys.argv[2])):
        lease = lease_ports()
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((HOST, lease.api))
        inner = socket.socket()
        inner.bind(("", lease.internal))
        server.listen()
        inner.listen()
        lease.let_go_of_api_port()
        with socket.create_connection((HOST, lease.api), timeout=5):
            server.accept()[0].close()
        server.close()
        inner.close()
        lease.release()
    print("done")
    sys.stdout.flush()
    lease = lease_ports()
    print(lease.api, flush=True)
    sys.stdin.read()
"""


def take(folder: Path, n_rounds: int) -> subprocess.Popen[str]:
    code = textwrap.dedent(TAKER.format(root=str(ROOT)))
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder), str(n_rounds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_four_at_once_fifty_times_lose_none(tmp_path: Path) -> None:  # case MULTI-06
    takers = [take(tmp_path, 50) for _ in range(4)]
    try:
        for taker in takers:
            assert taker.stdout is not None and taker.stdout.readline() == "done\n"
        last = {taker.stdout.readline() for taker in takers if taker.stdout}
        assert len(last) == 4
    finally:
        for taker in takers:
            taker.kill()
            taker.communicate()


def test_a_killed_holder_gives_its_ports_back(tmp_path: Path) -> None:
    taker = take(tmp_path, 0)
    assert taker.stdout is not None and taker.stdout.readline() == "done\n"
    port = int(taker.stdout.readline())
    with leased(N_SLOTS // 2) as leases:
        assert port not in {lease.api for lease in leases}
    taker.send_signal(signal.SIGKILL)
    taker.communicate()
    with contextlib.ExitStack() as held:
        ports = set()
        for _ in range(N_SLOTS):
            with contextlib.suppress(Unavailable):
                lease = lease_ports()
                held.callback(lease.release)
                ports.add(lease.api)
        assert port in ports
