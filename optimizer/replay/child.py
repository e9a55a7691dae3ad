"""A client process: takes its share from standard input, says what it does on standard output, dies with its parent.

Input: one pickled Share, length first; then lines of JSON, {"start": time}, {"cancel": reason} or
{"release": true}. End of file ends
the process at once. Output: lines of JSON, {"ready": true}, {"count": {...}}; at last {"result": bytes} and a pickle.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import pickle
import resource
import signal
import sys
import warnings
from dataclasses import asdict
from typing import Any, NoReturn

import uvloop

from optimizer.replay.load import Load
from optimizer.replay.share import LENGTH, Count, Share

PR_SET_PDEATHSIG = 1
"""linux/prctl.h. It tells the death of the *thread* that started us, so the handler asks whether the process died."""


class Channel:
    """The two pipes. Standard output proper goes to standard error, so that nothing else can write between."""

    def __init__(self) -> None:
        self._in = sys.stdin.fileno()
        self._out = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._rest = b""

    def take_share(self) -> Share:
        (n_bytes,) = LENGTH.unpack(self._take(LENGTH.size))
        share = pickle.loads(self._take(n_bytes))
        assert isinstance(share, Share)
        return share

    def _take(self, n_bytes: int) -> bytes:
        parts, missing = [], n_bytes
        while missing:
            part = os.read(self._in, min(missing, 2**20))
            if not part:
                stop()
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def messages(self) -> list[dict[str, Any]]:
        """What the parent has just written; called when there is something."""
        data = os.read(self._in, 2**16)
        if not data:
            stop()
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def listen(self, take: Any) -> None:
        asyncio.get_running_loop().add_reader(self._in, lambda: [take(m) for m in self.messages()])

    def say(self, **message: Any) -> None:
        self._write(json.dumps(message).encode() + b"\n")

    def say_count(self, count: Count) -> None:
        """Left out if the parent does not read: it must not hold up the replay."""
        os.set_blocking(self._out, False)
        try:
            os.write(self._out, json.dumps({"count": asdict(count)}).encode() + b"\n")
        except BlockingIOError:
            pass
        except BrokenPipeError:
            stop()
        finally:
            os.set_blocking(self._out, True)

    def give(self, result: object) -> None:
        data = pickle.dumps(result, protocol=5)
        self.say(result=len(data))
        self._write(data)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._out, view) :]
            except BrokenPipeError:
                stop()


def stop() -> NoReturn:
    """The parent is gone or wants us no more: its open requests end with our sockets."""
    os._exit(1)


def die_with(parent: int) -> None:
    def look(*_: object) -> None:
        if os.getppid() != parent:
            stop()

    signal.signal(signal.SIGUSR2, look)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGUSR2), 0, 0, 0)
    look()


def allow_many_sockets() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def keep_to(cores: tuple[int, ...]) -> None:
    if cores and sys.platform == "linux":
        os.sched_setaffinity(0, cores)


async def replay(share: Share, channel: Channel) -> None:
    load = Load(share)
    load.prepare()
    start: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def take(message: dict[str, Any]) -> None:
        if "start" in message and not start.done():
            start.set_result(message["start"])
        elif "cancel" in message:
            load.cut(message["cancel"])
        elif "release" in message:
            load.release()

    channel.listen(take)
    gc.collect()
    gc.freeze()
    channel.say(ready=True)
    result = await load.run(await start, channel.say_count)
    channel.say_count(load.count)
    channel.give(result)


def main(parent: int) -> None:
    die_with(parent)
    warnings.simplefilter("ignore", ResourceWarning)  # aiohttp's, for bodies over 1 MiB given as bytes
    channel = Channel()
    share = channel.take_share()
    allow_many_sockets()
    keep_to(share.plan.cores)
    uvloop.run(replay(share, channel))
