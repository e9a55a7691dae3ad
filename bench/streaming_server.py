"""A local server that streams like vLLM and logs when it sent what: the truth that clients are held against.

Every STEP_MS it writes one completion event of about 240 bytes, as vLLM 0.32 does, to every live stream (300 bytes with
the running usage, for clients that ask for it). `GET /log` returns, and forgets, what was sent: per stream the hash of
its request and the times on CLOCK_MONOTONIC.

    python -m bench.streaming_server PORT STEP_MS
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from typing import Any

import uvloop

PORT = 8765
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    '{"id":"cmpl-a5533fb257849754","object":"text_completion","created":1796001562,"model":"bench-model-of-usual-name",'
    '"choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":%s,"stop_reason":null}]%s}'
)
USAGE = ',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}'
TOTAL = '{"id":"cmpl-a5533fb257849754","choices":[]%s}'


class Streams:
    """Everything that is being answered."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self.live: list[Stream] = []
        self.log: list[dict[str, Any]] = []

    async def run(self) -> None:
        """Steps on a fixed grid; one that comes late is not made up for."""
        due_s = time.monotonic()
        while True:
            due_s = max(due_s + self.step_s, time.monotonic())
            while (wait_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(wait_s)
            await asyncio.sleep(0)
            self.live = [stream for stream in self.live if stream.step()]

    def take_log(self) -> list[dict[str, Any]]:
        log, self.log = self.log, []
        return log


class Stream:
    """One answer."""

    def __init__(self, streams: Streams, transport: Any, body: bytes) -> None:
        fields = json.loads(body)
        self._streams, self._transport = streams, transport
        self._n_prompt, self._n_asked = len(fields["prompt"]), int(fields["max_tokens"])
        self._is_usage_told = bool(fields.get("stream_options", {}).get("continuous_usage_stats"))
        self._request, self._came_s = hashlib.sha256(body).hexdigest(), time.monotonic()
        self._sent_s: list[float] = []
        transport.write(HEAD)

    def step(self) -> bool:
        """Write the next event; whether there is more to come."""
        if self._transport.is_closing():
            return False
        n = len(self._sent_s) + 1
        is_last = n == self._n_asked
        usage = USAGE % (self._n_prompt, self._n_prompt + n, n)
        text = EVENT % ('"length"' if is_last else "null", usage if self._is_usage_told else "")
        self._sent_s.append(time.monotonic())
        self._write(text)
        if is_last:
            self._write(TOTAL % usage)
            self._write("[DONE]")
            self._transport.write(b"0\r\n\r\n")
            self._streams.log.append({"request": self._request, "came_s": self._came_s, "sent_s": self._sent_s})
        return not is_last

    def _write(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))


class Connection(asyncio.Protocol):
    """Just enough of HTTP/1.1 for clients on this machine."""

    def __init__(self, streams: Streams) -> None:
        self._streams, self._data = streams, b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, rest = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        lines = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
        n_bytes = int(lines.get(b"content-length", b"0"))
        if len(rest) >= n_bytes:
            self._data = rest[n_bytes:]
            self._answer(head.split(b" ")[1], rest[:n_bytes])

    def _answer(self, path: bytes, body: bytes) -> None:
        if path == b"/v1/completions":
            self._streams.live.append(Stream(self._streams, self._transport, body))
            return
        reply = json.dumps(self._streams.take_log() if path == b"/log" else {"data": [{"id": "m"}]}).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % len(reply) + reply)


async def serve(port: int, step_s: float) -> None:
    streams = Streams(step_s)
    await asyncio.get_running_loop().create_server(lambda: Connection(streams), "127.0.0.1", port, backlog=4096)
    print("ready", flush=True)
    await streams.run()


def main() -> None:
    uvloop.run(serve(int(sys.argv[1]), float(sys.argv[2]) / 1e3))


if __name__ == "__main__":
    main()
