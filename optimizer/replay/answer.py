"""One answer as it comes in: events found in the bytes, tokens counted, no JSON parsed while tokens flow.

A message's tokens are the increase of `completion_tokens`, which the server counts (`continuous_usage_stats`). The
byte patterns cannot match inside generated text: JSON escapes its quotes.
"""

from __future__ import annotations

import json
import re
from array import array
from typing import Any

from optimizer.replay.failures import NO_FINISH_REASON, error_after_200, long_output, short_output

_COUNT = re.compile(rb'"completion_tokens":\s*(\d+)')
_FINISH = re.compile(rb'"finish_reason":\s*"(\w+)"')
_INDEX = re.compile(rb'"choices":\s*\[\s*\{\s*"index":\s*(\d+)')
_CHOICES = re.compile(rb'"choices":\s*\[\s*\{')
WHOLE = frozenset({"length", "stop", "tool_calls", "function_call"})
"""Finish reasons of an answer that was not broken off. vLLM's others: abort, error, repetition."""


class Answer:
    """What has come of one answer. Feed it bytes with the time they were read, then ask for its failure."""

    def __init__(self, n_choices: int = 1, secret: str = "") -> None:
        self.times_s = array("d")
        self.counts = array("i")
        self.is_done = False
        """`[DONE]` came."""
        self.prompt_tokens: int | None = None
        self.cached_prompt_tokens: int | None = None
        self.error: str | None = None
        self._n_choices, self._secret = n_choices, secret
        self._n_finished = 0
        self._broken_off: str | None = None
        self._n_so_far: dict[bytes, int] = {}
        self._n_tokens = 0
        self._total: int | None = None
        self._rest = b""

    @property
    def n_tokens(self) -> int:
        return self._n_tokens

    def feed(self, data: bytes, now_s: float) -> None:
        """Any cut of the stream: several events, half an event, half a line end."""
        if self._rest:
            data = self._rest + data
        if b"\r" in data:
            data, self._rest = _unified(data)
        else:
            self._rest = b""
        end = data.rfind(b"\n\n")
        if end < 0:
            self._rest = data + self._rest
            return
        self._rest = data[end + 2 :] + self._rest
        for event in data[:end].split(b"\n\n"):
            self._read(event, now_s)

    def end(self, now_s: float) -> None:
        """The body is over: what a server did not close with a blank line still counts."""
        rest, self._rest = self._rest.strip(), b""
        if rest:
            self._read(rest.replace(b"\r", b"\n"), now_s)

    def take_whole(self, body: bytes, now_s: float) -> None:
        """An answer that was not streamed: all of its tokens come in one message."""
        try:
            data = json.loads(body)
            n_tokens = int(data["usage"]["completion_tokens"])
            reasons = [choice["finish_reason"] for choice in data["choices"]]
        except (ValueError, KeyError, TypeError):
            self.error = error_after_200(body, self._secret)
            return
        for reason in reasons:
            self._finish(str(reason))
        self._count(n_tokens, now_s)
        self._use(data["usage"])
        self.is_done = True

    def failure(self, n_asked: int, *, may_stop_early: bool) -> str | None:
        """Why this is no whole answer; None if it is. `n_asked` over all choices."""
        if self.error is not None:
            return self.error
        if self._broken_off is not None:
            return f"finish reason {self._broken_off}: {short_output(self._n_tokens, n_asked)}"
        if self._n_finished < self._n_choices:
            return NO_FINISH_REASON
        if self._total is not None and self._total != self._n_tokens:
            return f"token counts unclear: {self._n_tokens} in the messages, {self._total} in the server's total"
        if self._n_tokens > n_asked:
            return long_output(self._n_tokens, n_asked)
        if self._n_tokens < n_asked and not may_stop_early:
            return short_output(self._n_tokens, n_asked)
        return None

    def _read(self, event: bytes, now_s: float) -> None:
        if not event.startswith(b"data:") or b"\n" in event:
            event = _data_of(event)
            if not event:
                return
        if not _CHOICES.search(event):
            self._read_last(event)
            return
        counted = _COUNT.search(event)
        if counted is None or self._n_choices > 1:
            self._read_slowly(event, counted, now_s)
        elif (n_new := int(counted[1]) - self._n_tokens) > 0:
            self._count(n_new, now_s)
        if b'"finish_reason":null' not in event and (found := _FINISH.search(event)):
            self._finish(found[1].decode())

    def _read_slowly(self, event: bytes, counted: re.Match[bytes] | None, now_s: float) -> None:
        """Events without a count, and those of several choices: each choice counts for itself."""
        index = _INDEX.search(event)
        if index is not None and counted is not None:
            n_new = int(counted[1]) - self._n_so_far.get(index[1], 0)
            self._n_so_far[index[1]] = int(counted[1])
            if n_new > 0:
                self._count(n_new, now_s)
        else:
            self._count(1, now_s)

    def _read_last(self, event: bytes) -> None:
        """`[DONE]`, an error, or the usage of the whole answer."""
        text = event.removeprefix(b"data:").strip()
        if text == b"[DONE]":
            self.is_done = True
            return
        try:
            data = json.loads(text)
        except ValueError:
            self.error = self.error or error_after_200(text, self._secret)
            return
        if isinstance(data, dict) and (data.get("error") is not None or data.get("object") == "error"):
            self.error = self.error or error_after_200(text, self._secret)
        elif isinstance(data, dict) and isinstance(data.get("usage"), dict):
            self._use(data["usage"])

    def _use(self, usage: dict[str, Any]) -> None:
        self.prompt_tokens = usage.get("prompt_tokens")
        self.cached_prompt_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        self._total = usage.get("completion_tokens")

    def _count(self, n_tokens: int, now_s: float) -> None:
        self._n_tokens += n_tokens
        self.times_s.append(now_s)
        self.counts.append(n_tokens)

    def _finish(self, reason: str) -> None:
        self._n_finished += 1
        if reason not in WHOLE:
            self._broken_off = reason


def _unified(data: bytes) -> tuple[bytes, bytes]:
    """The bytes with \\n for every line end, and a last \\r held back: its \\n may be still to come."""
    data, held = (data[:-1], b"\r") if data.endswith(b"\r") else (data, b"")
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n"), held


def _data_of(event: bytes) -> bytes:
    """The data of an event with other lines around it (comments, ids); empty if it has none."""
    lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"data: " + b"\n".join(lines) if lines else b""
