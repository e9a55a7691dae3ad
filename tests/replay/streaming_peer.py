"""A small server that speaks vLLM's streaming protocol, byte for byte as asked, and notes what it saw."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def message(n_so_far: int, n_prompt: int, finish: str | None = None, text: str = " w") -> bytes:
    """One event as vLLM 0.32 writes it with `continuous_usage_stats`."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    usage = {"prompt_tokens": n_prompt, "total_tokens": n_prompt + n_so_far, "completion_tokens": n_so_far}
    return event({"id": "cmpl-1", "object": "text_completion", "model": "m", "choices": [choice], "usage": usage})


def total(n_tokens: int, n_prompt: int, n_cached: int | None = None) -> bytes:
    usage: dict[str, Any] = {"prompt_tokens": n_prompt, "completion_tokens": n_tokens}
    if n_cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": n_cached}
    return event({"id": "cmpl-1", "choices": [], "usage": usage})


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def whole(n_tokens: int, n_prompt: int) -> list[bytes]:
    """A whole answer as vLLM writes it."""
    events = [message(i, n_prompt, "length" if i == n_tokens else None) for i in range(1, n_tokens + 1)]
    return [*events, total(n_tokens, n_prompt), DONE]


@dataclass
class Request:
    """One request as the server got it."""

    body: dict[str, Any]
    headers: dict[str, str]
    path: str
    connection: int
    came_s: float
    writer: asyncio.StreamWriter
    gone_s: float | None = None
    """When the client closed the connection before the answer was over."""
    sent_s: list[float] = field(default_factory=list)

    @property
    def n_prompt(self) -> int:
        return len(self.body.get("prompt", ()))

    def begin(self) -> None:
        self.writer.write(HEAD)

    def write(self, *parts: bytes) -> None:
        """Each part as a chunk of its own."""
        self.sent_s.append(time.monotonic())
        for part in parts:
            self.writer.write(b"%x\r\n%b\r\n" % (len(part), part))

    def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")

    def refuse(self, status: int, body: bytes) -> None:
        head = f"HTTP/1.1 {status} No\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)


Script = Callable[[Request], Awaitable[None]]


async def answer(request: Request) -> None:
    """Every token asked for, 5 ms apart."""
    request.begin()
    for part in whole(request.body["max_tokens"], request.n_prompt):
        request.write(part)
        await asyncio.sleep(0.005 if part.startswith(b'data: {"id":"cmpl-1","object"') else 0)
    request.end()


class Peer:
    """Runs `script` on every request, in a thread of its own."""

    def __init__(self, script: Script = answer) -> None:
        self.requests: list[Request] = []
        self.n_connections = 0
        self._script = script
        self._loop = asyncio.new_event_loop()
        self._is_up = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Peer:
        self._thread.start()
        assert self._is_up.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)
        self._loop.close()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._take, "127.0.0.1", 0, backlog=4096, limit=2**26)
        self._port = server.sockets[0].getsockname()[1]
        self._is_up.set()
        await self._stop.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_connections += 1
        number = self.n_connections
        try:
            while (request := await self._request(reader, writer, number)) is not None:
                self.requests.append(request)
                work = asyncio.create_task(_to_end(self._script(request)))
                watch = asyncio.create_task(_until_lost(writer))
                await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    request.gone_s = time.monotonic()
                for task in (work, watch):
                    task.cancel()
                if writer.is_closing():
                    return
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> Request | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.split("\r\n")
            headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines if line)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        came_s = time.monotonic()
        return Request(json.loads(body), headers, first.split()[1], number, came_s, writer)


async def _to_end(work: Awaitable[None]) -> None:
    with contextlib.suppress(ConnectionError):
        await work


async def _until_lost(writer: asyncio.StreamWriter) -> None:
    while not writer.is_closing():
        await asyncio.sleep(0.005)
