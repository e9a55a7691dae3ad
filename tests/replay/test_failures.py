"""Failure texts: one line, stable, without prompts and keys."""

import pytest

from optimizer.replay.failures import LONGEST_MESSAGE, connection_lost, first_line, refused


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            b'{"error": {"message": "This model\'s maximum context length is 8 tokens.\\nMore.", "code": 400}}',
            "HTTP 400: This model's maximum context length is 8 tokens.",
        ),
        (b'{"object": "error", "message": "old vLLM"}', "HTTP 400: old vLLM"),
        (b'{"detail": "Not Found"}', "HTTP 400: Not Found"),
        (b"\n\n  upstream gone \nx", "HTTP 400: upstream gone"),
        (b"", "HTTP 400: no message"),
        (b"\xff\xfe", "HTTP 400: \ufffd\ufffd"),
        (b'["a", 1]', 'HTTP 400: ["a", 1]'),
    ],
)
def test_a_refusal_is_the_servers_first_line(body: bytes, text: str) -> None:
    assert refused(400, body) == text


def test_prompts_and_keys_are_not_repeated() -> None:
    ids = ", ".join(map(str, range(500)))
    line = refused(422, f'{{"error": {{"message": "1 validation error: [{ids}] is too long"}}}}'.encode())
    assert line == "HTTP 422: 1 validation error: […] is too long"
    line = refused(422, b"{'type': 'list_type', 'loc': ('body',), 'input': 'the secret text of a user', 'x': 1}")
    assert "secret" not in line
    assert refused(401, b"key sk-12345 is wrong", "sk-12345") == "HTTP 401: key *** is wrong"


def test_long_messages_are_cut() -> None:
    assert len(first_line("x" * 5000)) == LONGEST_MESSAGE


def test_an_error_without_words_has_its_type() -> None:
    assert connection_lost(ConnectionResetError()) == "connection lost: ConnectionResetError"
