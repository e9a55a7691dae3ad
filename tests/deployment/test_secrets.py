"""# case EDGE-16: secrets are masked in everything printed and never exported."""

import pytest

from optimizer.deployment.secrets import has_secret, is_secret_name, mask


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("--api-key sk-PLACEHOLDER --port 8", "--api-key *** --port 8"),
        ("--api-key=abc --x", "--api-key=*** --x"),
        ("--api-key one two --x", "--api-key *** --x"),
        ("--api-key \\\n  one \\\n  --port 1", "--api-key *** \\\n  --port 1"),
        ("api-key: foo", "api-key: ***"),
        ("api-key:\n  - one\n  - two\nport: 8", "api-key:***\nport: 8"),
        ('{"api_key": "a b"}', '{"api_key": ***}'),
        ("HF_TOKEN=hf_PLACEHOLDER vllm serve m", "HF_TOKEN=*** vllm serve m"),
        ('export HF_TOKEN="a b"', "export HF_TOKEN=***"),
        ("postgresql://u:p@ss:w@host/db", "postgresql://u:***@host/db"),
        ("postgresql://u@host/db?sslpassword=x&a=1", "postgresql://u@host/db?sslpassword=***&a=1"),
        ("Authorization: Bearer abcdefgh", "Authorization: Bearer ***"),
        ("failed with hf_abcdef1234", "failed with ***"),
    ],
)
def test_secrets_are_masked_and_their_names_stay(text: str, masked: str) -> None:
    assert mask(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "max-num-batched-tokens: 4096",
        "--max-num-batched-tokens 4096 --tokenizer org/t --spec-tokens 3",
        "return-tokens-as-token-ids: true",
        "long-prefill-token-threshold: 512",
        "saturation_output_tokens_per_s_per_gpu: 2450",
        "ssl-keyfile: /etc/key.pem",
        "org/sk-model-large",
        "http://host:8000/v1",
    ],
)
def test_ordinary_flags_are_left_alone(text: str) -> None:
    assert mask(text) == text


@pytest.mark.parametrize("name", ["api-key", "--api-key", "HF_TOKEN", "hf-token", "PGPASSWORD", "db_password"])
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["tokenizer", "max-num-batched-tokens", "spec-tokens", "port", "ssl-keyfile"])
def test_names_that_only_sound_like_secrets(name: str) -> None:
    assert not is_secret_name(name)


def test_secrets_are_found_at_any_depth() -> None:
    assert has_secret({"a": [{"password": "x"}]})
    assert has_secret({"url": ["redis://:pw@host"]})
    assert not has_secret({"cudagraph_mode": "FULL", "sizes": [1, 2]})


@pytest.mark.timeout(120)
def test_an_image_in_a_log_is_read_in_time() -> None:
    """One word of 200,000 characters; by its square it would take a quarter of an hour."""
    word = "iVBORw0KGgo-AAAA_" * 12_000
    assert mask(f"data:image/png;base64,{word}") == f"data:image/png;base64,{word}"
    assert mask(f"{word} --api-key abcdefgh") == f"{word} --api-key ***"
