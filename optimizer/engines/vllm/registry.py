"""Records of the servers we started, so that the next start can end what an earlier one was not let end.

A server's guard ends it whatever happens to us; its owner ends it if the guard is killed. Only when both are killed
at once may processes be left: then the record names their session and their stamp, and `sweep_leftovers` ends them.
A record is trusted only on the boot and in the pid namespace it was written in.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from optimizer.engines.vllm.host_directory import subdirectory
from optimizer.processes import (
    Started,
    end_all,
    existing,
    remove_shared_memory,
    session_of,
    shared_memory_of,
    stamped,
)

STAMP = "VCO_SERVER"
"""Environment variable that everything below a server inherits. vLLM does not hash it into its compile cache's key."""
END_WITHIN_S = 10.0


@dataclass(frozen=True)
class ServerRecord:
    """How the processes of one server are found, by whoever has to end them."""

    stamp: str
    guard: Started
    server: Started | None
    directory: str
    """The server's own temporary folder."""
    shared: tuple[str, ...] = ()
    """Files of shared memory that it was seen to have mapped."""

    def family(self) -> set[psutil.Process]:
        """The server's processes that exist now, by session and descent; without its guard."""
        leaders = [s.pid for s in (self.guard, self.server) if s is not None and s.may_lead_a_session]
        found = session_of(*leaders)
        if self.server is not None and self.server.pid in leaders:
            found |= existing([self.server.pid])
        return {p for p in found if p.pid != self.guard.pid}

    def processes(self) -> set[psutil.Process]:
        """Those and what left the family after its guard was killed; dearer, because every process is asked."""
        return self.family() | {p for p in stamped(STAMP, self.stamp) if p.pid != self.guard.pid}

    def end(self, within_s: float = END_WITHIN_S) -> set[psutil.Process]:
        """SIGKILL all of them, then remove what they leave on the machine; the survivors.

        Killing comes before anything that a slow disk could hold up."""
        mapped = shared_memory_of(self.processes())
        survivors = end_all(self.processes, within_s)
        remove_shared_memory(mapped | self._noted_shared_memory())
        shutil.rmtree(self.directory, ignore_errors=True)
        return survivors

    def note_shared_memory(self) -> None:
        """Write down what they have mapped by now: once all of them are killed, or their killer, nobody can tell."""
        known = self._noted_shared_memory()
        found = known | shared_memory_of(self.family())
        if found != known:
            replace(self, shared=tuple(map(str, found))).write()

    def _noted_shared_memory(self) -> set[Path]:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return set(map(Path, json.loads(self.path.read_text())["shared"]))
        return set()

    @property
    def path(self) -> Path:
        return subdirectory("servers") / f"{self.stamp}.json"

    def write(self) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"machine": machine(), **asdict(self)}))
        new.replace(self.path)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def machine() -> str:
    """This boot of this machine, in this pid namespace: where a process number means something."""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    return f"{int(psutil.boot_time())}"


def sweep_leftovers() -> None:
    """End every server whose guard has gone, and forget it. Records of other machines and older boots stay."""
    for record in _records():
        if not record.guard.is_alive and not record.end():
            record.remove()


def _records() -> Iterator[ServerRecord]:
    for path in subdirectory("servers").glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(path.read_text())
            if found["machine"] == machine():
                server = found["server"]
                yield ServerRecord(
                    stamp=found["stamp"],
                    guard=Started(**found["guard"]),
                    server=Started(**server) if server else None,
                    directory=found["directory"],
                    shared=tuple(found.get("shared", ())),
                )
