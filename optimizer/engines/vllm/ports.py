"""Ports leased from one allocator a host: an API port for each server, and a range of its own for vLLM's inner ports.

Leases are file locks that the server's guard shares, so that a port is free again when its last process is, and never
before. Until the server listens, a socket of ours is bound to its API port: `bind` fails for whoever asks for the port
without SO_REUSEADDR (vLLM's own search for free ports, for one), while the server gets it, because vLLM 0.32 sets
SO_REUSEADDR, and SO_REUSEPORT with several API servers (entrypoints/launchers/launcher.py:344).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from collections.abc import Iterator

from optimizer.engines.vllm.host_directory import subdirectory, try_lock
from optimizer.errors import Unavailable

HOST = "127.0.0.1"
N_SLOTS = 60
FIRST_API_PORT = 8100
FIRST_INTERNAL_PORT = 8500
INTERNAL_PORTS = 25
"""Inner ports a server: 8500..9999 for 60 of them. vLLM counts up from the first (utils/network_utils.py:233)."""


class PortLease:
    """One server's ports. Not picklable: it is given to the server's guard by descriptor."""

    def __init__(self, slot: int, lock: int, held: socket.socket) -> None:
        self.api = FIRST_API_PORT + slot
        self.internal = FIRST_INTERNAL_PORT + slot * INTERNAL_PORTS
        self.lock = lock
        """Descriptor to hand to the guard."""
        self._held: socket.socket | None = held

    def let_go_of_api_port(self) -> None:
        """Once the server listens on it."""
        if self._held is not None:
            self._held.close()
            self._held = None

    def release(self) -> None:
        """A second call does nothing. The slot stays taken as long as a guard holds its copy of the lock."""
        self.let_go_of_api_port()
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def lease_ports() -> PortLease:
    """Ports that nobody has. Raises Unavailable when none is left."""
    for is_closed_lately, slot in itertools.product((False, True), _slots()):
        lock = try_lock(subdirectory("ports") / f"{slot}.lock")
        if lock is not None:
            held = _bind(FIRST_API_PORT + slot, is_closed_lately)
            if held is not None:
                return PortLease(slot, lock, held)
            os.close(lock)
    last = FIRST_API_PORT + N_SLOTS - 1
    raise Unavailable(f"every port of {FIRST_API_PORT}..{last} is taken; end some of the servers on this machine")


def _slots() -> Iterator[int]:
    """Beginning at another one each time: a port just closed is the last to be tried."""
    global _next_slot
    first, _next_slot = _next_slot, (_next_slot + 1) % N_SLOTS
    return iter([(first + i) % N_SLOTS for i in range(N_SLOTS)])


_next_slot = os.getpid() % N_SLOTS


def _bind(port: int, is_closed_lately: bool) -> socket.socket | None:
    """A socket bound to the port, or None if someone has it. `is_closed_lately`: accept one whose old connections
    the kernel still remembers; otherwise bind it alone once, which also sees a foreign socket that does not listen."""
    if not is_closed_lately:
        with contextlib.closing(socket.socket()) as alone:
            try:
                alone.bind((HOST, port))
            except OSError:
                return None
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        held.bind((HOST, port))
    except OSError:
        held.close()
        return None
    return held
