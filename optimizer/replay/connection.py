"""HTTP connections of one client process: as many as there are requests, each read stamped when it happens."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from optimizer.clock import REAL_CLOCK
from optimizer.replay.plan import Target

KEEP_ALIVE_S = 4.0
"""vLLM closes a connection that idles for 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE, envs.py:111); we are first."""
READ_BUFFER_BYTES = 8 * 2**20
"""aiohttp stops reading a stream at twice its default of 64 KiB (256 KiB since 3.14), which slows long answers down."""
CONNECT_WITHIN_S = 30.0
"""A server that accepts nothing for so long does not serve."""


class StampedStream(ResponseHandler):
    """Hands bytes over the moment they arrive, with the time: no task has to wake up for each message.

    A coroutine would run after every socket of this turn was read, and cost as much as the reading itself."""

    take: Callable[[float], None] | None = None
    """Called after each read, once aiohttp has taken the framing off."""
    _is_taking = False
    """Taking bytes out makes aiohttp call `data_received` again, with what it held back."""

    def data_received(self, data: bytes) -> None:
        now_s = REAL_CLOCK.now_s()
        super().data_received(data)
        if self.take is not None and not self._is_taking:
            self._is_taking = True
            try:
                self.take(now_s)
            finally:
                self._is_taking = False


class StampedResponse(aiohttp.ClientResponse):
    """Remembers the handler of its connection, also after the connection went back to the pool."""

    handler: ResponseHandler | None = None

    async def start(self, connection: Any) -> StampedResponse:
        self.handler = connection.protocol
        await super().start(connection)
        return self

    async def read_into(self, feed: Callable[[bytes, float], None]) -> None:
        """The whole body, piece by piece, each with the time it was read. Raises as aiohttp's own reading does."""
        content, handler = self.content, self.handler

        def take(now_s: float) -> None:
            while data := content.read_nowait():
                feed(data, now_s)

        take(REAL_CLOCK.now_s())
        if not isinstance(handler, StampedStream):  # an aiohttp that does not take ours
            while data := await content.readany():
                feed(data, REAL_CLOCK.now_s())
            return
        handler.take = take
        try:
            await content.wait_eof()
        finally:
            if handler.take is take:
                handler.take = None


def open_session(trace: aiohttp.TraceConfig, *, is_kept_alive: bool) -> aiohttp.ClientSession:
    """A session without any limit of its own. Must be called inside the event loop."""
    how: dict[str, Any] = {"keepalive_timeout": KEEP_ALIVE_S} if is_kept_alive else {"force_close": True}
    connector = aiohttp.TCPConnector(limit=0, limit_per_host=0, **how)
    factory: Any = partial(StampedStream, loop=connector._loop)
    connector._factory = factory
    return aiohttp.ClientSession(
        connector=connector,
        response_class=StampedResponse,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_WITHIN_S),
        read_bufsize=READ_BUFFER_BYTES,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept-Encoding"),
        auto_decompress=False,
        trust_env=False,
        trace_configs=[trace],
    )


def sending_noted() -> aiohttp.TraceConfig:
    """Notes on the object given as `trace_request_ctx` when the headers went out, and on what kind of connection."""
    config = aiohttp.TraceConfig()
    config.on_request_headers_sent.append(_note_sent)
    config.on_connection_reuseconn.append(_note_reused)
    return config


async def _note_sent(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
    context.trace_request_ctx.note_sent()


async def _note_reused(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
    context.trace_request_ctx.is_reused = True


def headers_for(target: Target) -> dict[str, str]:
    key = secret_of(target)
    return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})


def secret_of(target: Target) -> str:
    """The key named by the target; empty if it names none, or the variable is not set."""
    return os.environ.get(target.api_key_variable, "") if target.api_key_variable else ""
