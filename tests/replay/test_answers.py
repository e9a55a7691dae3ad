"""Events found in bytes however they are cut, tokens counted, broken answers told apart."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.replay.answer import Answer
from tests.replay.streaming_peer import DONE, event, message, total, whole


def read(*parts: bytes, n_choices: int = 1) -> Answer:
    answer = Answer(n_choices)
    for i, part in enumerate(parts):
        answer.feed(part, float(i))
    answer.end(float(len(parts)))
    return answer


def failure(answer: Answer, n_asked: int) -> str | None:
    return answer.failure(n_asked, may_stop_early=False)


@settings(max_examples=200, deadline=None)
@given(cuts=st.lists(st.integers(0, 3000)), line_end=st.sampled_from([b"\n", b"\r\n", b"\r"]), data=st.data())
def test_any_cut_of_the_bytes_gives_the_same_answer(cuts: list[int], line_end: bytes, data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))
    so_far = np.cumsum(counts).tolist()
    stream = b": a comment\n\nevent: x\nid: 7\n" + b"".join(
        message(n, 10, "length" if n == so_far[-1] else None, text='"completion_tokens": 99, "\n\ndata: [DONE]\r')
        for n in so_far
    )
    stream = (stream + total(so_far[-1], 10, 4) + DONE).replace(b"\n", line_end)
    ends = sorted({min(c, len(stream)) for c in cuts} | {len(stream)})
    parts = [stream[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    answer = read(*parts)
    assert list(answer.counts) == counts
    assert failure(answer, sum(counts)) is None and answer.is_done
    assert (answer.prompt_tokens, answer.cached_prompt_tokens) == (10, 4)
    assert list(answer.times_s) == sorted(answer.times_s)


def test_every_message_has_its_time_and_its_tokens() -> None:  # case DIAG-08
    parts = [message(4, 5), message(7, 5), message(8, 5, "length"), total(8, 5), DONE]
    answer = read(*parts)
    assert list(answer.counts) == [4, 3, 1] and list(answer.times_s) == [0.0, 1.0, 2.0]
    assert failure(answer, 8) is None


def test_what_a_real_server_sent() -> None:
    head = '{"id":"cmpl-a","object":"text_completion","created":1,"model":"t","choices":[{"index":0,"text":"","logprobs":null,'
    tail = '"finish_reason":REASON,"stop_reason":null}],"usage":{"prompt_tokens":6,"total_tokens":9,"completion_tokens":N}}'
    reasons = {1: "null", 2: "null", 4: '"length"'}
    lines = [head + tail.replace("REASON", reason).replace("N}", f"{n}}}") for n, reason in reasons.items()]
    last = '{"id":"cmpl-a","object":"text_completion","created":1,"model":"t","choices":[],"usage":{"prompt_tokens":6,"total_tokens":10,"completion_tokens":4},"system_fingerprint":"vllm-0.32.0-a8bb5f19"}'
    answer = read(*(f"data: {line}\n\n".encode() for line in [*lines, last, "[DONE]"]))
    assert list(answer.counts) == [1, 1, 2] and failure(answer, 4) is None


def chat(n_so_far: int, finish: str | None = None, **delta: str) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    return event({"id": "c", "choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": n_so_far}})


def test_a_chats_role_is_no_token_and_its_end_may_come_early() -> None:
    answer = read(
        chat(0, role="assistant", content=""), chat(1, content="a"), chat(2, "stop", content=""), total(2, 9), DONE
    )
    assert list(answer.counts) == [1, 1]
    assert answer.failure(50, may_stop_early=True) is None
    assert failure(answer, 50) == "short output: 2 of 50 tokens"


def choice(index: int, n_so_far: int, finish: str | None = None) -> bytes:
    data = json.loads(message(n_so_far, 5, finish)[6:])
    data["choices"][0]["index"] = index
    return event(data)


def test_several_choices_are_counted_apart() -> None:  # case OOM-12
    parts = [choice(0, 1), choice(1, 1), choice(1, 3, "length"), choice(0, 3, "length"), total(6, 5), DONE]
    answer = read(*parts, n_choices=2)
    assert list(answer.counts) == [1, 1, 2, 2] and failure(answer, 6) is None
    assert failure(read(*parts[:3], n_choices=2), 6) == "no finish reason"


def test_a_server_that_counts_only_at_the_end_is_believed_if_it_agrees() -> None:
    def bare(finish: str | None = None) -> bytes:
        return event({"choices": [{"index": 0, "text": "x", "finish_reason": finish}]})

    assert failure(read(bare(), bare("length"), total(2, 5), DONE), 2) is None
    unclear = failure(read(bare(), bare("length"), total(5, 5), DONE), 5)
    assert unclear == "token counts unclear: 2 in the messages, 5 in the server's total"


BROKEN: list[tuple[list[bytes], str]] = [
    ([], "no finish reason"),
    ([DONE], "no finish reason"),
    ([message(1, 5), message(2, 5)], "no finish reason"),
    (whole(2, 5), "short output: 2 of 4 tokens"),  # case TOOL-13
    (whole(5, 5), "long output: 5 of 4 tokens"),
    (
        [message(1, 5), event({"error": {"message": "EngineCore died\nmore", "code": 500}}), DONE],
        "error after 200: EngineCore died",
    ),
    ([event({"object": "error", "message": "old style"}), DONE], "error after 200: old style"),
    ([*whole(4, 5)[:-2], event({"error": {"message": "late"}}), DONE], "error after 200: late"),
    ([b"data: not JSON\n\n"], "error after 200: not JSON"),
    ([message(1, 5), message(2, 5, "abort"), DONE], "finish reason abort: short output: 2 of 4 tokens"),
    ([b'event: error\ndata: {"error": {"message": "named"}}\n\n'], "error after 200: named"),
]


@pytest.mark.parametrize(("parts", "text"), BROKEN)
def test_broken_answers_are_told_apart(parts: list[bytes], text: str) -> None:
    assert failure(read(*parts), 4) == text


def test_an_answer_without_a_stream_is_one_message() -> None:
    answer = Answer()
    body: dict[str, Any] = {
        "choices": [{"finish_reason": "length"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    answer.take_whole(json.dumps(body).encode(), 1.5)
    assert list(answer.times_s) == [1.5] and list(answer.counts) == [4] and failure(answer, 4) is None
    broken = Answer()
    broken.take_whole(b'{"error": {"message": "no"}}', 1.0)
    assert failure(broken, 4) == "error after 200: no"


@pytest.mark.parametrize("n_bytes", [1, 7, 4096])
def test_a_huge_event_in_pieces(n_bytes: int) -> None:
    big = json.loads(message(1, 5)[6:])
    big["choices"][0]["prompt_token_ids"] = list(range(4000))
    stream = event(big) + message(2, 5, "length") + total(2, 5) + DONE
    answer = read(*(stream[i : i + n_bytes] for i in range(0, len(stream), n_bytes)))
    assert failure(answer, 2) is None
