"""One client process's work: send every row when it is due, read every answer, cut all of it within a second."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import time
from collections.abc import Callable

import aiohttp
import numpy as np

from optimizer.clock import REAL_CLOCK
from optimizer.replay.ahead import BodiesAhead
from optimizer.replay.answer import Answer
from optimizer.replay.bodies import PATHS, Bodies
from optimizer.replay.connection import StampedResponse, headers_for, open_session, secret_of, sending_noted
from optimizer.replay.failures import TIME_OUT, cancelled, connection_lost, first_line, refused
from optimizer.replay.plan import Target
from optimizer.replay.share import Count, Exchange, Share, ShareResult

LAG_PERIOD_S, COUNT_PERIOD_S = 0.02, 0.25
SENDS_PER_TURN = 16
"""In a burst, between two looks at what can be read: about 3 ms."""
LARGEST_REFUSAL_BYTES = 64 * 2**10
NO_SOCKET = frozenset({errno.EMFILE, errno.ENFILE})


class Sending:
    """One attempt at one request, as aiohttp's tracing sees it."""

    def __init__(self, exchange: Exchange, count: Count) -> None:
        self.exchange, self._count = exchange, count
        self.is_reused = False
        """On a connection that served a request before, which the server may just have closed."""

    def note_sent(self) -> None:
        """A second attempt keeps the first one's time."""
        if self.exchange.sent_s is None:
            self.exchange.sent_s = REAL_CLOCK.now_s()
            self._count.n_sent += 1


class Load:
    """Runs one share of a replay in one event loop."""

    def __init__(self, share: Share) -> None:
        self._plan, self._rows = share.plan, share.rows
        self.count = Count()
        self._ahead = BodiesAhead(Bodies(share.plan), share.rows)
        self._targets = {t.instance: (t, headers_for(t), secret_of(t)) for t in share.plan.targets}
        self._path = PATHS[share.plan.style]
        self._exchanges = {row: Exchange(row) for row in share.rows}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sender: asyncio.Task[None] | None = None
        self._lags_s: list[float] = []
        self._cut_failure = self._cut_reason = ""
        self._cut_s: float | None = None
        self._n_refused_sockets = 0
        self._is_over = False

    def prepare(self) -> None:
        self._ahead.fill()

    async def run(self, start_s: float, report: Callable[[Count], None]) -> ShareResult:
        """Replay; phase time 0 is `start_s` on CLOCK_MONOTONIC. Raises whatever a request of ours did not expect."""
        begin_s, begin_cpu_s = REAL_CLOCK.now_s(), time.process_time()
        trace = sending_noted()
        async with contextlib.AsyncExitStack() as stack:
            self._sessions = [
                await stack.enter_async_context(open_session(trace, is_kept_alive=kept)) for kept in (True, False)
            ]
            side = [self._ahead.keep_full(), self._sample_lag(), self._report(report)]
            side_tasks = [asyncio.create_task(work) for work in side]
            limit = asyncio.create_task(self._limit(start_s + self._plan.time_limit_s))
            self._sender = asyncio.create_task(self._send_all(start_s))
            await self._drain()
            self._is_over = True
            for task in (*side_tasks, limit):
                task.cancel()
            await asyncio.gather(*side_tasks, limit, return_exceptions=True)
        wall_s = max(REAL_CLOCK.now_s() - begin_s, 1e-9)
        return self._result((time.process_time() - begin_cpu_s) / wall_s)

    def cut(self, reason: str) -> None:
        """Cancel everything: what is open and what is still to be sent. A second call does nothing."""
        self._cut(cancelled(reason), reason)

    def _cut(self, failure: str, reason: str) -> None:
        if self._cut_s is not None or self._is_over:
            return
        self._cut_failure, self._cut_reason, self._cut_s = failure, reason, REAL_CLOCK.now_s()
        for task in (*self._tasks, *filter(None, [self._sender])):
            task.cancel()

    def release(self) -> None:
        """Every process's measured rows are over: what warm-up rows are still open (a neighbour's queue) end now."""
        if self._cut_s is None and not self._is_over:
            self._cut_failure = cancelled("the measured requests are over")
            for task in self._tasks:
                task.cancel()

    async def _drain(self) -> None:
        """Wait until everything is sent and answered, or cut."""
        assert self._sender is not None
        with contextlib.suppress(asyncio.CancelledError):
            await self._sender
        while self._tasks:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
            self._tasks -= done
            for task in done:
                if not task.cancelled():
                    task.result()

    async def _limit(self, until_s: float) -> None:
        while (wait_s := until_s - REAL_CLOCK.now_s()) > 0:
            await asyncio.sleep(wait_s)
        self._cut(TIME_OUT, f"time limit of {self._plan.time_limit_s:g} s")

    async def _send_all(self, start_s: float) -> None:
        for n_before, row in enumerate(self._rows if self._cut_s is None else ()):
            due_s = start_s + float(self._plan.trace.arrival_s[row])
            if n_before % SENDS_PER_TURN == 0:
                await asyncio.sleep(0)
            while (wait_s := due_s - REAL_CLOCK.now_s()) > 0:
                await asyncio.sleep(wait_s)
            task = asyncio.create_task(self._exchange(self._exchanges[row]))
            self._tasks.add(task)
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        """Done and without a surprise: nothing to wait for."""
        if not task.cancelled() and task.exception() is None:
            self._tasks.discard(task)

    async def _exchange(self, exchange: Exchange) -> None:
        """One request from sending to its last byte, whatever becomes of it."""
        target, headers, secret = self._targets[self._plan.target_of(exchange.row).instance]
        begin_s = REAL_CLOCK.now_s()
        answer = Answer(target.n_choices, secret)
        self.count.n_open += 1
        failure: str | None = None
        try:
            failure = await self._ask(exchange, answer, target, headers)
        except asyncio.CancelledError:
            failure = self._cut_failure
        except (aiohttp.ClientError, OSError) as error:
            self._n_refused_sockets += getattr(error, "errno", None) in NO_SOCKET
            failure = connection_lost(error, secret)
            exchange.sent_s = begin_s if exchange.sent_s is None else exchange.sent_s
        finally:
            self.count.n_open -= 1
        self._settle(exchange, answer, target, failure)

    async def _ask(self, exchange: Exchange, answer: Answer, target: Target, headers: dict[str, str]) -> str | None:
        """Send, and read to the end; again on a fresh connection if a kept one turned out to be closed."""
        body = self._ahead.take(exchange.row)
        for session in self._sessions:
            sending = Sending(exchange, self.count)
            try:
                response = await session.post(
                    target.url.rstrip("/") + self._path, data=body, headers=headers, trace_request_ctx=sending
                )
                break
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not sending.is_reused or session is self._sessions[-1]:
                    raise
        del body  # a long prompt is not kept for as long as its answer takes
        assert isinstance(response, StampedResponse)
        try:
            return await self._read(response, answer, target)
        finally:
            response.close()  # at its end the connection has gone back to the pool already

    async def _read(self, response: StampedResponse, answer: Answer, target: Target) -> str | None:
        if response.status != 200:
            body = await response.content.read(LARGEST_REFUSAL_BYTES)
            return refused(response.status, body, secret_of(target))
        if not target.is_streamed:
            answer.take_whole(await response.content.read(), REAL_CLOCK.now_s())
            self._note(answer, 0)
            return None
        if response.content_type != "text/event-stream":
            body = await response.content.read(LARGEST_REFUSAL_BYTES)
            return f"HTTP 200 without an event stream: {first_line(body.decode(errors='replace'), secret_of(target))}"

        def feed(data: bytes, now_s: float) -> None:
            n_before = len(answer.times_s)
            answer.feed(data, now_s)
            self._note(answer, n_before)

        await response.read_into(feed)
        n_before = len(answer.times_s)
        answer.end(REAL_CLOCK.now_s())
        self._note(answer, n_before)
        return None

    def _note(self, answer: Answer, n_before: int) -> None:
        """Count what a read brought."""
        n_new = len(answer.times_s) - n_before
        if n_new:
            self.count.n_messages += n_new
            self.count.last_message_s = answer.times_s[-1]
            self.count.n_answered += n_before == 0

    def _settle(self, exchange: Exchange, answer: Answer, target: Target, failure: str | None) -> None:
        """Keep what was measured. An answer that is whole is one, even if its connection ended badly after it."""
        may_stop_early = self._plan.style == "chat"
        n_asked = int(self._plan.trace.output_tokens[exchange.row]) * target.n_choices
        own = answer.failure(n_asked, may_stop_early=may_stop_early)
        exchange.failure = None if own is None else (answer.error or failure or own)
        if exchange.failure is None and not may_stop_early:
            exchange.failure = self._wrong_prompt(exchange.row, answer)
        exchange.times_s = np.array(answer.times_s)
        counts = np.array(answer.counts, np.int32)
        exchange.counts = None if (counts == 1).all() else counts
        exchange.end_s = float(answer.times_s[-1]) if own is None else REAL_CLOCK.now_s()
        exchange.prompt_tokens, exchange.cached_prompt_tokens = answer.prompt_tokens, answer.cached_prompt_tokens
        self.count.n_finished += exchange.failure is None
        self.count.n_measured_over += exchange.row >= self._plan.n_warmup
        self.count.n_failed += exchange.failure is not None

    def _wrong_prompt(self, row: int, answer: Answer) -> str | None:
        n_sent = int(self._plan.trace.prompt_tokens[row])
        if answer.prompt_tokens in (None, n_sent):
            return None
        return f"wrong prompt length: the server counted {answer.prompt_tokens} of {n_sent} tokens"

    async def _sample_lag(self) -> None:
        while True:
            due_s = REAL_CLOCK.now_s() + LAG_PERIOD_S
            await asyncio.sleep(LAG_PERIOD_S)
            self._lags_s.append(max(REAL_CLOCK.now_s() - due_s, 0.0))

    async def _report(self, report: Callable[[Count], None]) -> None:
        while True:
            report(self.count)
            await asyncio.sleep(COUNT_PERIOD_S)

    def _result(self, cores: float) -> ShareResult:
        for exchange in self._exchanges.values():
            if exchange.end_s is None:  # never started: cut before it was due, or before its turn
                exchange.failure, exchange.end_s = self._cut_failure, self._cut_s
        return ShareResult(
            exchanges=tuple(self._exchanges.values()),
            lags_s=np.array(self._lags_s),
            cores=cores,
            cut_reason=self._cut_reason or None,
            cut_s=self._cut_s,
            n_refused_sockets=self._n_refused_sockets,
        )
