"""Which processes of this machine are the server behind a URL: who listens on its port, and everything of that server.

They are looked at and never touched. What may not be seen (another machine, a container of its own, another user) is
said, and leaves the questions about CPU and GPU open.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil

from optimizer.engines.vllm.process_watch import TITLE

LAUNCHERS = ("vllm", "vllm.exe")
MODULE = "vllm.entrypoints"
ENGINES = ("EngineCore", "EngineCor")


@dataclass(frozen=True)
class LocalServer:
    """The processes of one server, as a tree."""

    root: int
    """Its first process; 0: none that may be seen."""
    unseen: str = ""
    """Why none is seen, in words that go on "its processes cannot be seen: …"."""

    @property
    def is_seen(self) -> bool:
        return self.root > 0

    def pids(self) -> tuple[int, ...]:
        """All of them now."""
        try:
            root = psutil.Process(self.root)
            return (root.pid, *(child.pid for child in root.children(recursive=True)))
        except psutil.Error:
            return ()

    @property
    def n_cores(self) -> int | None:
        """Cores that it may run on, where the system tells; else all of this machine. None where it is not seen."""
        if not self.is_seen:
            return None
        try:
            process = psutil.Process(self.root)
            allowed = process.cpu_affinity() if hasattr(process, "cpu_affinity") else None
        except psutil.Error:
            allowed = None
        return len(allowed or ()) or psutil.cpu_count()

    @property
    def command(self) -> tuple[str, ...]:
        """The words it was started with; empty where they may not be read."""
        try:
            return tuple(psutil.Process(self.root).cmdline())
        except psutil.Error:
            return ()

    @property
    def folder(self) -> str:
        """Its working directory, where a relative --config lies; empty where it may not be read."""
        try:
            return psutil.Process(self.root).cwd()
        except psutil.Error:
            return ""


def find_local(url: str) -> LocalServer:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    addresses = _addresses(parts.hostname or "")
    if not addresses & _own_addresses() and not any(map(_is_any, addresses)):
        return LocalServer(0, "it runs on another machine")
    try:
        listeners = [c.pid for c in psutil.net_connections("tcp") if _listens(c, port, addresses)]
    except psutil.AccessDenied:
        return LocalServer(0, "this user may not ask who listens on a port")
    if not listeners:
        return LocalServer(0, f"nobody on this machine listens on port {port} (a container, or a forwarded port)")
    seen = [pid for pid in listeners if pid]
    if not seen:
        return LocalServer(0, f"port {port} belongs to another user or container; run this as that user")
    return _checked(_root_of(seen[0]), port)


def _checked(root: int, port: int) -> LocalServer:
    found = LocalServer(root)
    if any(_is_engine(pid) for pid in found.pids()) or _is_server(root):
        return found
    return LocalServer(0, f"port {port} belongs to {_name(root)}, which is no vLLM (a proxy, or a forwarded port?)")


def _listens(connection: object, port: int, addresses: set[str]) -> bool:
    local, status = getattr(connection, "laddr", None), getattr(connection, "status", "")
    if status != psutil.CONN_LISTEN or not local or local.port != port:
        return False
    return _plain(local.ip) in addresses or _is_any(local.ip) or any(map(_is_any, addresses))


def _is_any(address: str) -> bool:
    """0.0.0.0 or ::, which a client may name as well for this machine."""
    try:
        return ipaddress.ip_address(_plain(address)).is_unspecified
    except ValueError:
        return False


def _root_of(pid: int) -> int:
    """Up from an API server that is one of several to the process that started them."""
    try:
        process = psutil.Process(pid)
        while (parent := process.parent()) is not None and _is_server(parent.pid):
            process = parent
        return process.pid
    except psutil.Error:
        return pid


def _is_server(pid: int) -> bool:
    """A process of vLLM by its title, or by the program or module it was started as."""
    try:
        process = psutil.Process(pid)
        words = process.cmdline()
        title = TITLE.match(" ".join(words)) or TITLE.match(process.name())
    except psutil.Error:
        return False
    return title is not None or is_server_command(words)


def is_server_command(words: Iterable[str]) -> bool:
    """Not of a shell or a lock around it: there the server's command is an argument, and not the program."""
    row = list(words)
    if row and _base(row[0]).startswith("python"):
        row = row[1:]
    while row and row[0].startswith("-") and row[0] != "-m":
        row = row[1:]
    if row[:1] == ["-m"]:
        return row[1:2] == ["vllm"] or (row[1:2] != [] and row[1].startswith(MODULE))
    return bool(row) and _base(row[0]) in LAUNCHERS


def _base(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]


def _is_engine(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        title = TITLE.match(" ".join(process.cmdline())) or TITLE.match(process.name())
    except psutil.Error:
        return False
    return title is not None and title[1] in ENGINES


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "a process that is gone"


def _addresses(host: str) -> set[str]:
    """Empty for a name that nobody knows."""
    try:
        return {_plain(str(row[4][0])) for row in socket.getaddrinfo(host, None)}
    except OSError:
        return set()


def _own_addresses() -> set[str]:
    rows = [row.address for rows in psutil.net_if_addrs().values() for row in rows if row.family in _FAMILIES]
    return {"127.0.0.1", "::1", *map(_plain, rows)}


_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def _plain(address: str) -> str:
    """Without a zone (`fe80::1%eth0`), and IPv4 as such where it is mapped into IPv6."""
    text = address.partition("%")[0]
    try:
        parsed = ipaddress.ip_address(text)
    except ValueError:
        return text
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)
