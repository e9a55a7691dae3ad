"""One log may hold several servers' lines, each under its name (docker compose, kubectl, a JSON log driver): each name
is scanned on its own, or the boot of one would hide the death of another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy

from optimizer.diagnosis.log_line import LogLine
from optimizer.diagnosis.remarks import Remarks
from optimizer.diagnosis.scan import Scan
from optimizer.diagnosis.server_lines import is_of_vllm, other_engine

MAX_NAMES = 64
"""More are no names but a table's first column."""


class Servers:
    """Feed every line, then read `scans`."""

    def __init__(self) -> None:
        self.whole = Scan()
        """All lines, as of one server."""
        self._named: dict[str, Scan] = {}
        self._unnamed = self.whole
        self.remarks = Remarks()
        self._other = ""
        self._is_of_vllm = False

    def feed(self, line: LogLine) -> None:
        self.remarks.feed(line)
        self._is_of_vllm = self._is_of_vllm or is_of_vllm(line)
        if not self._other and not self._is_of_vllm:
            self._other = other_engine(line.text)
        if line.origin and not self._named:
            self._unnamed = deepcopy(self.whole)
        if line.origin in self._named or (line.origin and len(self._named) < MAX_NAMES):
            self._named.setdefault(line.origin, Scan()).feed(line)
        elif self._named:
            self._unnamed.feed(line)
        self.whole.feed(line)

    @property
    def other_engine(self) -> str:
        """The engine whose log this is, if it is another than vLLM; empty if it is not, or does not say."""
        return "" if self._is_of_vllm else self._other

    @property
    def is_of_server(self) -> bool:
        return self.whole.is_of_server

    @property
    def scans(self) -> Mapping[str, Scan]:
        """Name -> what it printed. With fewer than two names that tell anything it is one server's log, named ``."""
        telling = {name: scan for name, scan in self._named.items() if scan.is_of_server or scan.findings}
        return {**telling, "": self._unnamed} if len(telling) > 1 else {"": self.whole}


def scan_servers(lines: Iterable[LogLine]) -> Servers:
    servers = Servers()
    for line in lines:
        servers.feed(line)
    return servers
