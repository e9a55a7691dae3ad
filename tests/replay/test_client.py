"""The client against a small server that speaks the protocol: what is sent when, what comes back, what is left behind."""

import asyncio
import json
import resource
import time
from collections import Counter

import numpy as np
import pytest

from optimizer.errors import UserError
from optimizer.replay.client import Replay, ReplayResult
from tests.replay.replaying import against, endless, replayed, wait_for
from tests.replay.streaming_peer import DONE, Peer, Request, Script, answer, event, message, total, whole
from tests.replay.traces import plan_of, target_of, trace_of


def test_every_row_is_sent_in_time_and_answered_whole(peer: Peer) -> None:
    arrival_s = np.linspace(-0.2, 0.8, 30)
    trace = trace_of(arrival_s, np.arange(20, 50), np.arange(1, 31))
    with Replay(plan_of(trace, target_of(peer.url), n_warmup=6, n_processes=2)) as replay:
        result, start_s = replay.result(60), replay.start_monotonic_s
    assert [r.request_id for r in result.records] == list(range(6, 30))
    assert all(r.is_finished and r.output_tokens == r.request_id + 1 for r in result.records)
    assert all(r.prompt_tokens == 20 + r.request_id == r.asked_output_tokens + 19 for r in result.records)
    assert [r.scheduled_s for r in result.records] == arrival_s[6:].tolist()
    assert all(0 <= r.sent_s - r.scheduled_s < 0.5 for r in result.records)
    came = {tuple(q.body["prompt"]): q.came_s - start_s for q in peer.requests}
    assert len(came) == 30
    first, last = result.records[0], result.records[-1]
    assert result.end_s == pytest.approx(max(r.token_times_s[-1] for r in result.records))
    assert first.sent_s <= first.token_times_s[0] and last.sent_s >= 0.8
    assert all(-0.01 <= came_s - float(s) < 0.5 for came_s, s in zip(sorted(came.values()), arrival_s, strict=True))
    assert (result.cut_reason, result.first_failure, result.warmup_failures) == (None, None, {})
    assert result.client.n_processes == 2 and result.client.n_messages == sum(range(7, 31))


def test_times_are_those_of_the_server(peer: Peer) -> None:
    with Replay(plan_of(trace_of([0.0], output=20), target_of(peer.url))) as replay:
        (record,) = replay.result(60).records
        sent_s = np.array(peer.requests[0].sent_s[:20]) - replay.start_monotonic_s
    late_s = record.token_times_s - sent_s
    assert late_s.min() > -0.001 and np.median(late_s) < 0.05
    assert record.sent_s <= peer.requests[0].came_s - replay.start_monotonic_s


def test_messages_with_several_tokens_are_counted() -> None:  # case DIAG-08
    async def in_chunks(request: Request) -> None:
        request.begin()
        request.write(message(4, 40))
        await asyncio.sleep(0.04)
        request.write(message(7, 40))
        await asyncio.sleep(0.12)
        request.write(message(8, 40, "length"), total(8, 40), DONE)
        request.end()

    (record,) = against(in_chunks, trace_of([0.0], output=8)).records
    assert record.failure is None and record.tokens_per_message is not None
    assert record.tokens_per_message.tolist() == [4, 3, 1] and record.output_tokens == 8
    assert record.gaps_s[0] > 0.03 and record.gaps_s[1] > 0.11


def test_tenants_go_to_their_servers() -> None:
    tenants = np.array([0, 1, 0, 1, 1], np.int16)
    trace = trace_of(np.zeros(5), tenants=("chat", "batch"), tenant=tenants)
    with Peer() as one, Peer() as other:
        targets = (
            target_of(one.url, tenants=("chat",)),
            target_of(other.url, instance="b", tenants=("batch",), model="n"),
        )
        result = replayed(plan_of(trace, *targets))
        assert [q.body["model"] for q in one.requests] == ["m"] * 2
        assert [q.body["model"] for q in other.requests] == ["n"] * 3
    assert [r.tenant for r in result.records] == ["chat", "batch", "chat", "batch", "batch"]


def test_nothing_holds_requests_back() -> None:  # case DIAG-15
    """A server with four places: time to first token from the scheduled arrival grows, and sends stay in time."""
    places = asyncio.Semaphore(4)

    async def slow(request: Request) -> None:
        async with places:
            await asyncio.sleep(0.19)
            request.begin()
            request.write(*whole(1, request.n_prompt))
            request.end()

    records = against(slow, trace_of(np.arange(40) / 40, output=1)).records
    assert all(r.is_finished for r in records)
    from_send_s = [r.token_times_s[0] - r.sent_s for r in records]
    waits_s = [r.ttft_s or 0.0 for r in records]
    assert waits_s[-1] > 0.75 > waits_s[0] and waits_s[-1] > 2 * waits_s[0]
    assert all(sent_s <= wait_s for sent_s, wait_s in zip(from_send_s, waits_s, strict=True))


def test_a_thousand_are_open_at_once() -> None:
    """The server answers nobody before all are there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))

    async def all_together(request: Request) -> None:
        while len(server.requests) < 1000:
            await asyncio.sleep(0.05)
        await answer(request)

    with Peer(all_together) as server:
        result = replayed(plan_of(trace_of(np.zeros(1000), output=2), target_of(server.url)))
        assert server.n_connections == 1000
    assert Counter(r.failure for r in result.records) == {None: 1000}


async def refusing(request: Request) -> None:
    request.refuse(503, b'{"error": {"message": "Too many queued requests\\nmore", "code": 503}}')


async def dropping(request: Request) -> None:
    request.begin()
    request.write(message(1, request.n_prompt))
    await asyncio.sleep(0.05)
    request.writer.transport.abort()


async def failing(request: Request) -> None:
    request.begin()
    request.write(message(1, request.n_prompt), event({"error": {"message": "EngineCore encountered an issue"}}), DONE)
    request.end()


async def unfinished(request: Request) -> None:
    request.begin()
    request.write(*whole(5, request.n_prompt)[:-3])
    request.end()


async def ending_early(request: Request) -> None:  # case TOOL-13
    request.begin()
    request.write(*whole(1, request.n_prompt))
    request.end()


async def miscounting(request: Request) -> None:
    request.begin()
    request.write(*whole(5, request.n_prompt + 1))
    request.end()


async def plain_page(request: Request) -> None:
    request.refuse(200, b"<html>please log in</html>")


async def closing(request: Request) -> None:
    request.writer.close()


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (refusing, "HTTP 503: Too many queued requests"),
        (dropping, "connection lost: "),
        (failing, "error after 200: EngineCore encountered an issue"),
        (unfinished, "no finish reason"),
        (ending_early, "short output: 1 of 5 tokens"),
        (miscounting, "wrong prompt length: the server counted 41 of 40 tokens"),
        (plain_page, "HTTP 200 without an event stream: <html>please log in</html>"),
        (closing, "connection lost: Server disconnected"),
    ],
)
def test_failures_are_told_apart(script: Script, text: str) -> None:  # case TOOL-08
    result = against(script, trace_of([-0.1, 0.0, 0.1]), n_warmup=1)
    for record in result.records:
        assert record.failure is not None and record.failure.startswith(text) and not record.is_finished
    assert result.first_failure == result.records[0].failure
    assert sum(result.warmup_failures.values()) == 1
    assert result.cut_reason is None and kept_up(result)


def kept_up(result: ReplayResult) -> bool:
    """Or a busy machine held it up, which is not what these tests are about."""
    return result.client.fault is None or " late: " in result.client.fault


def test_nobody_listens() -> None:
    with Peer() as peer:
        url = peer.url
    result = replayed(plan_of(trace_of([0.0, 0.0]), target_of(url)))
    assert all(
        r.failure and r.failure.startswith("connection lost: ") and not r.token_times_s.size for r in result.records
    )


def test_the_time_limit_cuts_what_is_open_and_what_was_not_sent() -> None:
    result = against(endless, trace_of([0.0, 0.1, 50.0], output=20_000), time_limit_s=0.6)
    assert [r.failure for r in result.records] == ["timeout"] * 3
    assert all(r.is_timed_out for r in result.records) and result.cut_reason == "time limit of 0.6 s"
    assert [r.token_times_s.size > 5 for r in result.records] == [True, True, False]
    assert result.end_s == pytest.approx(0.6, abs=0.3)
    assert kept_up(result)


def test_cancelling_ends_everything_within_a_second() -> None:
    with Peer(endless) as peer:
        trace = trace_of([*np.zeros(200), 60.0], output=20_000)
        with Replay(plan_of(trace, target_of(peer.url), time_limit_s=100.0, n_processes=2)) as replay:
            wait_for(lambda: replay.progress().n_answered == 200)
            begin_s = time.monotonic()
            replay.cancel("preempted 5 times a request")
            result = replay.result(5)
            assert time.monotonic() - begin_s < 1.0
            wait_for(lambda: all(q.gone_s is not None for q in peer.requests), 2.0)
        assert max(q.gone_s or np.inf for q in peer.requests) - begin_s < 1.0
    assert {r.failure for r in result.records} == {"cancelled: preempted 5 times a request"}
    assert all(r.token_times_s.size for r in result.records[:200])
    assert result.cut_reason == result.first_failure.removeprefix("cancelled: ") if result.first_failure else False


def test_a_failure_of_the_servers_is_told_before_the_cut() -> None:
    async def first_refused(request: Request) -> None:
        await (refusing(request) if request.body["max_tokens"] == 1 else endless(request))

    with (
        Peer(first_refused) as peer,
        Replay(plan_of(trace_of([0.0, 0.0], output=[2000, 1]), target_of(peer.url))) as replay,
    ):
        wait_for(lambda: replay.progress().n_failed == 1 and replay.progress().n_answered == 1)
        replay.cancel("enough")
        assert replay.result(5).first_failure == "HTTP 503: Too many queued requests"


def test_progress_says_what_happens(peer: Peer) -> None:
    with Replay(plan_of(trace_of([-0.3, 0.0, 0.3], output=30), target_of(peer.url), n_warmup=1)) as replay:
        early = replay.progress()
        assert not early.has_begun or early.time_s >= -0.3
        with pytest.raises(TimeoutError, match="not over within"):
            replay.result(0.05)
        wait_for(replay.is_over)
        end = replay.progress()
    assert (end.n_sent, end.n_answered, end.n_finished, end.n_failed, end.n_open) == (3, 3, 3, 0, 0)
    assert end.has_begun and end.n_messages == 90 and end.last_message_monotonic_s is not None
    assert end.last_message_monotonic_s <= time.monotonic()


def test_a_connection_that_the_server_just_closed_is_no_failure() -> None:
    async def closing_after(request: Request) -> None:
        """Answers, and closes when the next request comes on the same connection: the moment between."""
        if sum(q.connection == request.connection for q in server.requests) > 1:
            request.writer.transport.abort()
            return
        request.begin()
        request.write(*whole(5, request.n_prompt))
        request.end()

    with Peer(closing_after) as server:
        result = replayed(plan_of(trace_of([0.0, 0.2, 0.4]), target_of(server.url)))
        assert len(server.requests) > 3, "no connection was used twice"
    assert [r.failure for r in result.records] == [None] * 3


def test_a_server_that_drops_fresh_connections_is_not_asked_twice() -> None:
    with Peer(closing) as peer:
        replayed(plan_of(trace_of([0.0, 0.2]), target_of(peer.url)))
        assert len(peer.requests) == 2


@pytest.mark.parametrize("n_bytes", [1, 17, 100_000])
def test_the_streams_bytes_may_come_in_any_pieces(n_bytes: int) -> None:
    async def in_pieces(request: Request) -> None:
        request.begin()
        stream = b"".join(whole(5, request.n_prompt)).replace(b"\n", b"\r\n" if n_bytes == 17 else b"\n")
        for i in range(0, len(stream), n_bytes):
            request.write(stream[i : i + n_bytes])
            await asyncio.sleep(0)
        request.end()

    assert [r.failure for r in against(in_pieces).records] == [None]


def test_long_prompts_arrive_whole(peer: Peer) -> None:
    result = replayed(plan_of(trace_of(np.zeros(20), 100_000), target_of(peer.url), vocabulary=128_000))
    assert [r.failure for r in result.records] == [None] * 20
    assert {len(q.body["prompt"]) for q in peer.requests} == {100_000}


def test_a_key_is_sent_and_never_shown(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def echoing(request: Request) -> None:
        request.refuse(401, f"bad header {request.headers['authorization']}".encode())

    with pytest.raises(UserError, match="REPLAY_TEST_KEY is not set"):
        Replay(plan_of(trace_of([0.0]), target_of(peer.url, api_key_variable="REPLAY_TEST_KEY")))
    monkeypatch.setenv("REPLAY_TEST_KEY", "sk-very-secret")
    with Peer(echoing) as other:
        plan = plan_of(trace_of([0.0]), target_of(other.url, api_key_variable="REPLAY_TEST_KEY"))
        result = replayed(plan)
        assert other.requests[0].headers["authorization"] == "Bearer sk-very-secret"
    assert result.first_failure == "HTTP 401: bad header Bearer ***"
    assert "sk-very-secret" not in repr(result) + repr(plan)


def test_sampling_parameters_that_cost_memory_are_replayed() -> None:  # case OOM-12
    async def both(request: Request) -> None:
        if request.body["stream"]:
            await answer(request)
            return
        usage = {"prompt_tokens": request.n_prompt, "completion_tokens": request.body["max_tokens"]}
        request.refuse(200, json.dumps({"choices": [{"index": 0, "finish_reason": "length"}], "usage": usage}).encode())

    with Peer(both) as peer:
        for extra in ({"logprobs": 5, "top_p": 0.9}, {"prompt_logprobs": 1}):
            result = replayed(plan_of(trace_of([0.0]), target_of(peer.url, extra_body=extra)))
            (record,) = result.records
            assert record.failure is None and record.output_tokens == 5
            assert extra.items() <= peer.requests[-1].body.items()
    assert record.tokens_per_message is not None and record.tokens_per_message.tolist() == [5]


def test_a_chat_may_end_early() -> None:
    async def brief(request: Request) -> None:
        assert request.path == "/v1/chat/completions" and "ignore_eos" not in request.body
        request.begin()
        request.write(message(1, 43), message(2, 43, "stop"), total(2, 43), DONE)
        request.end()

    (record,) = against(brief, trace_of([0.0], output=50), style="chat").records
    assert record.failure is None and record.asked_output_tokens == record.output_tokens == 2
    assert record.prompt_tokens == 43


def test_cached_tokens_are_read_where_the_server_tells_them() -> None:
    async def cached(request: Request) -> None:
        request.begin()
        request.write(*whole(5, request.n_prompt)[:-2], total(5, request.n_prompt, 32), DONE)
        request.end()

    assert [r.cached_prompt_tokens for r in against(cached).records] == [32]


def test_an_empty_trace_is_over_at_once(peer: Peer) -> None:
    result = replayed(plan_of(trace_of([]), target_of(peer.url)))
    assert result.records == () and result.end_s == 0.0 and result.client.send_lag_p99_ms is None


def test_warmup_rows_that_outlast_the_measured_ones_can_be_let_go() -> None:
    """A neighbour's queue is sent as warm-up rows: nobody waits for its end, and it is no failure of the load."""

    async def script(request: Request) -> None:
        await (endless(request) if request.body["max_tokens"] > 100 else answer(request))

    trace = trace_of([-0.1, -0.1, 0.0, 0.1], output=[9999, 9999, 5, 5])
    with Peer(script) as peer, Replay(plan_of(trace, target_of(peer.url), n_warmup=2, n_processes=2)) as replay:
        replay.release()
        wait_for(lambda: replay.progress().n_measured_over == 2)
        assert not replay.is_over()
        replay.release()
        result = replay.result(10)
    assert [r.failure for r in result.records] == [None, None] and result.cut_reason is None
    assert sum(result.warmup_failures.values()) == 2
