"""The process between us and one vLLM server: it starts the server, and ends all of it, whatever happens to us.

Started by `server.Server` in a session of its own, so that Ctrl-C in the terminal does not reach it or the server.
Its standard input is a pipe from its owner: first one line of orders, then perhaps "stop"; end of file means that the
owner closed it or died. It keeps to the standard library and psutil, so that it is small, starts at once and cannot
die of vLLM. The server is ended

- in order (SIGTERM to the API server, which ends its engine, then SIGKILL to whatever is left) when told to stop;
- by SIGKILL to everything when the owner goes, however it went, or when the guard gets a signal;
- by SIGKILL to the rest, a moment after the API server ended: an EngineCore outlives an API server that is killed.

If the guard itself is killed, the kernel kills the API server, and the owner or the next start the rest. A guard that
was stopped is woken by the kernel when its owner dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from optimizer.engines.vllm.log_file import LogWriter
from optimizer.engines.vllm.registry import ServerRecord
from optimizer.processes import (
    Started,
    adopt_orphans,
    collect_zombies,
    is_alive,
    receive_on_parents_death,
)

LOOK_EVERY_S = 0.5
"""How often the guard asks whether its parent is still its owner; everything else wakes it."""
FIRST_LOOK_AT_MEMORY_S = 1.0
"""After the start, then after twice as long each time: reading it costs milliseconds, and a server maps it early."""
LAST_WORDS_S = 1.5
"""How long the rest may write its reasons and end by itself once the API server has ended unasked."""
TIDYING_S = 0.3
"""The same once it ended in order: its resource tracker removes shared memory."""
PIPE_BYTES = 2**20
OUT_OF_MEMORY_SCORE = "500"
"""proc(5) oom_score_adj: when the host runs out of memory the kernel takes the server, not its driver."""


class Guard:
    """One server, from start to end. One thread; only its signals' functions interrupt it."""

    def __init__(self, orders: dict[str, Any]) -> None:
        me = Started.of(os.getpid())
        assert me is not None
        self._orders = orders
        self._must_die = False
        self._grace_s: float | None = None
        """How long the server may take to end in order; None until the owner wants it to end."""
        self._output, self._pipe = _wide_pipe()
        self._log = LogWriter(Path(orders["log"]))
        self._record = ServerRecord(orders["stamp"], me, None, orders["directory"])
        self._record.write()
        self._process: subprocess.Popen[bytes] | None = None

    def die(self, *_: object) -> None:
        self._must_die = True

    def stop(self, order: bytes) -> None:
        """`stop SECONDS`"""
        with contextlib.suppress(IndexError, ValueError):
            self._grace_s = float(order.split()[1])

    def run(self) -> None:
        """Start the server and stay until it has ended or must end; then end all of it, and say how it went."""
        try:
            self._process = self._start()
            self._watch(self._process)
        finally:
            self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self._orders["command"],
            env=self._orders["environment"],
            cwd=self._orders["directory"],
            stdin=subprocess.DEVNULL,
            stdout=self._pipe,
            stderr=self._pipe,
            start_new_session=True,
            preexec_fn=self._prepare,
        )
        os.close(self._pipe)
        server = Started.of(process.pid)
        self._record = replace(self._record, server=server)
        self._record.write()
        say(started=None if server is None else [server.pid, server.start])
        return process

    def _prepare(self) -> None:
        """In the child, before it becomes the server."""
        receive_on_parents_death(signal.SIGKILL)
        if os.getppid() != self._record.guard.pid:
            os._exit(1)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if self._orders["cores"]:
            os.sched_setaffinity(0, self._orders["cores"])
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(OUT_OF_MEMORY_SCORE)

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        begin_s, look_after_s = time.monotonic(), FIRST_LOOK_AT_MEMORY_S
        while not self._is_over(process) and not self._is_owner_gone() and self._grace_s is None:
            self._wait(LOOK_EVERY_S)
            if time.monotonic() - begin_s > look_after_s:
                with contextlib.suppress(OSError):  # a full disk
                    self._record.note_shared_memory()
                look_after_s *= 2
        if self._grace_s is not None and not self._is_over(process):
            self._stop_in_order(process, self._grace_s)
        if self._is_over(process):
            say(exited=process.returncode)
            self._hear_last_words(LAST_WORDS_S if self._grace_s is None else TIDYING_S)

    def _is_over(self, process: subprocess.Popen[bytes]) -> bool:
        """Also when only its main thread has ended: nobody can wait for such a process, and it serves no more."""
        server = self._record.server
        return process.poll() is not None or (server is not None and not server.is_alive)

    def _is_owner_gone(self) -> bool:
        """A forked copy of the owner may hold the pipe open: our parent changing tells its death as well."""
        return self._must_die or os.getppid() != self._orders["owner"]

    def _stop_in_order(self, process: subprocess.Popen[bytes], grace_s: float) -> None:
        """SIGTERM to the API server alone: sent to its group, it makes it report the death of its own engine."""
        deadline = time.monotonic() + grace_s
        process.terminate()
        while not self._is_over(process) and not self._is_owner_gone() and time.monotonic() < deadline:
            self._wait(0.1)

    def _hear_last_words(self, within_s: float) -> None:
        deadline = time.monotonic() + within_s
        while any(map(is_alive, self._record.family())) and not self._is_owner_gone():
            if time.monotonic() > deadline:
                return
            self._wait(0.1)

    def _end(self) -> None:
        survivors = self._record.end()
        exit_code = None if self._process is None else self._process.poll()
        collect_zombies()
        while select.select([self._output], [], [], 0)[0] and self._take_output():
            pass
        self._log.close()
        if not survivors:
            self._record.remove()
        say(ended=not survivors, exited=exit_code)

    def _wait(self, seconds: float) -> None:
        """Take orders and output as they come; at most that long."""
        inputs = [sys.stdin.fileno(), self._output, *_WAKE]
        readable, _, _ = select.select(inputs[self._must_die :], [], [], seconds)
        if self._output in readable and not self._take_output():
            time.sleep(min(seconds, 0.1))  # nobody can write any more: the server is ending
        if sys.stdin.fileno() in readable:
            self._take_order()
        for pipe in _WAKE:
            if pipe in readable:
                os.read(pipe, 4096)

    def _take_order(self) -> None:
        order = os.read(sys.stdin.fileno(), 4096)
        if order:
            self.stop(order)
        else:
            self.die()

    def _take_output(self) -> bool:
        """False at its end."""
        try:
            data = os.read(self._output, PIPE_BYTES)
        except BlockingIOError:
            return True
        self._log.write(data)
        return bool(data)


_WAKE: list[int] = []
"""The pipe that a signal writes to, so that no child's end goes unnoticed between two looks."""


def _wide_pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return reading, writing


def _wake_on_signals() -> None:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    _WAKE.append(reading)
    signal.signal(signal.SIGCHLD, lambda *_: None)


def say(**message: object) -> None:
    try:
        print(json.dumps(message), flush=True)
    except BrokenPipeError:  # the owner went meanwhile; the next look tells us
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _read_orders() -> tuple[dict[str, Any], bytes]:
    """The first line, and what came with it. Exits if the owner went before it had said what to start."""
    data = b""
    while b"\n" not in data:
        part = os.read(sys.stdin.fileno(), 2**16)
        if not part:
            sys.exit(1)
        data += part
    line, _, rest = data.partition(b"\n")
    return json.loads(line), rest


def _say_failure(kind: type[BaseException], error: BaseException, _: TracebackType | None) -> None:
    say(failure=f"{kind.__name__}: {error}")


def main() -> None:
    """Its exit status says nothing: what became of the server is said on standard output."""
    sys.excepthook = _say_failure
    receive_on_parents_death(signal.SIGCONT)
    adopt_orphans()
    _wake_on_signals()
    orders, rest = _read_orders()
    guard = Guard(orders)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, guard.die)
    if rest:
        guard.stop(rest)
    guard.run()
