import json
from pathlib import Path

import pytest
import yaml

from optimizer.deployment.current import read_current
from optimizer.deployment.deployment import Deployment
from optimizer.deployment.vllm_yaml import read_yaml, write_yaml
from optimizer.errors import UserError
from search_spaces.config import Config


def test_what_people_keep_in_git() -> None:  # case FMT-01
    text = """model: org/model-8b
served-model-name: [chat, chat-v2]
port: 8000
gpu-memory-utilization: 0.90
max-model-len: 16k
max-num-seqs: 128
no-enable-prefix-caching: true
kv-cache-dtype: fp8
my-plugin-flag: [1, {a: b}]
lora-modules:
  - a=/l/a
  - b=/l/b
compilation-config:
  cudagraph_mode: FULL_AND_PIECEWISE
"""
    current = read_yaml(text, "serve.yaml")
    assert current.model == "org/model-8b"
    assert dict(current.config) == {
        "gpu_memory_utilization": 0.9,
        "max_model_len": 16000,
        "max_num_seqs": 128,
        "enable_prefix_caching": False,
        "kv_cache_dtype": "fp8",
    }
    assert dict(current.other) == {
        "served-model-name": ["chat", "chat-v2"],
        "port": 8000,
        "my-plugin-flag": [1, {"a": "b"}],
        "lora-modules": ["a=/l/a", "b=/l/b"],
        "compilation-config": {"cudagraph_mode": "FULL_AND_PIECEWISE"},
    }
    assert any("line 9: my-plugin-flag is unknown" in n for n in current.notices)
    again = yaml.safe_load(write_yaml(current))
    names = ["model", "served-model-name", "port", "gpu-memory-utilization", "max-model-len", "max-num-seqs"]
    more = ["no-enable-prefix-caching", "kv-cache-dtype", "my-plugin-flag", "lora-modules", "compilation-config"]
    assert list(again) == names + more
    assert again["lora-modules"] == ["a=/l/a", "b=/l/b"]
    assert again["compilation-config"] == {"cudagraph_mode": "FULL_AND_PIECEWISE"}


@pytest.mark.parametrize(
    "line",
    [
        "enable_prefix_caching: false",
        "enable-prefix-caching: false",
        "enable-prefix-caching: off",
        "no-enable-prefix-caching: true",
        "no_enable_prefix_caching: yes",
        "no-enable-prefix: true",
    ],
)
def test_every_spelling_of_off_means_off(line: str) -> None:  # case CFG-01
    current = read_yaml(f"model: org/m\n{line}\n", "a.yaml")
    assert dict(current.config) == {"enable_prefix_caching": False}
    assert yaml.safe_load(write_yaml(current)) == {"model": "org/m", "no-enable-prefix-caching": True}


def test_a_dropped_false_is_told() -> None:  # case CFG-01
    (notice,) = read_yaml("async-scheduling: false", "a.yaml").notices
    assert notice.startswith("line 1: ")
    assert "no-async-scheduling: true" in notice


def test_null_is_not_set() -> None:  # case CFG-01
    current = read_yaml("max-model-len: null\nquantization: ~\nport: 1\n", "c.yaml")
    assert dict(current.config) == {}
    assert "null" not in write_yaml(current) and "None" not in write_yaml(current)


@pytest.mark.parametrize(
    "spelled",
    [
        'speculative-config: \'{"method": "ngram", "num_speculative_tokens": 3}\'',
        "speculative_config:\n  method: ngram\n  num_speculative_tokens: 3",
        "speculative-config.method: ngram\nspeculative-config.num_speculative_tokens: 3",
    ],
)
def test_nested_and_json_dictionaries_mean_the_same(spelled: str) -> None:  # case CFG-03
    current = read_yaml(f"model: org/m\n{spelled}\n", "a.yaml")
    value = {"method": "ngram", "num_speculative_tokens": 3}
    assert dict(current.config) == {"speculative_config": json.dumps(value)}
    assert yaml.safe_load(write_yaml(current, vllm_version="0.32.0"))["speculative-config"] == value
    old = yaml.safe_load(write_yaml(current, vllm_version="0.11.0"))["speculative-config"]
    assert old == '{"method": "ngram", "num_speculative_tokens": 3}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# only a comment\n", "holds no keys"),
        ("- a\n- b\n", "line 1: holds a list"),
        ("max-num-seqs:4\n", "line 1: holds neither"),
        ("model: m\n\tport: 4\n", "line 2: not valid YAML: .*tab"),
        ("model: [a\nx: }", "line 2: not valid YAML"),
        ("a: 1\n---\nb: 2\n", "line 2: not valid YAML: expected a single document"),
        ("port: *x\n", "line 1: not valid YAML: found undefined alias"),
        ("additional-config: &a\n  x: *a\n", "line 1: .*recursive"),
        ("a: &a {x: 1}\n<<: *a\n", "line 2: a key must be a flag"),
        ("a: &a 1\nb: [" + "*a, " * 17 + "*a]", "aliases; write the values out"),
        ("x: !Env foo\n", "line 1: not valid YAML: .*!Env"),
        ("apiVersion: v1\nkind: Pod\n", "Kubernetes"),
        ("services: {}\n", "Docker Compose"),
        ("model: m\ngpu-memory-utilization: 0,9\n", "line 2: gpu-memory-utilization: .*'0,9'; write 0.9"),
        ("gpu-memory-utilization: 90\n", "line 1: gpu-memory-utilization: 90 .*write 0.9"),
        ("gpu-memory-utilization: 90%\n", "line 1: gpu-memory-utilization: .*write 0.9"),
        ("gpu-memory-utilization: 0\n", "gpu-memory-utilization: 0 is not above 0"),
        ("watermark: 1.0\n", "watermark: 1 is not a share"),
        ("max-num-seqs: 16k\n", "line 1: max-num-seqs: '16k'.*only for.*max-model-len"),
        ("max-num-seqs: 0\n", "max-num-seqs: 0 is below 1"),
        ("max-num-seqs: 8.0\n", "expected a whole number, got 8.0"),
        ("max-num-batched-tokens: 8,192\n", "got '8,192'; write 8192"),
        ("max-num-batched-tokens: 1.5K\n", "decimals need a small suffix"),
        ("max-num-seqs: true\n", "expected one value, got True"),
        ('enable-prefix-caching: "false"\n', "a switch takes no value"),
        ("kv-cache-dtype: fp9\n", "'fp9' is not one of auto, float16"),
        ("speculative-config: '{bad'\n", "line 1: speculative-config: not valid JSON"),
        ("max-num: 4\n", "max-num is short for several flags"),
        ("max-num-seqs: 512\nmax-num-batched-tokens: 256\n", "max_num_batched_tokens 256, max_num_seqs 512: "),
        (
            "enable-chunked-prefill: false\nmax-num-batched-tokens: 2k\nmax-model-len: 8k",
            "without chunked prefill a whole prompt must fit",
        ),
        (
            "long-prefill-token-threshold: 9000\nmax-model-len: 8000",
            "long_prefill_token_threshold 9000, max_model_len 8000: ",
        ),
    ],
)
def test_bad_files_get_one_line_that_names_the_place(text: str, message: str) -> None:  # cases CFG-01, CFG-04
    with pytest.raises(UserError, match=message) as error:
        read_yaml(text, "serve.yaml")
    assert str(error.value).startswith("serve.yaml")
    assert "\n" not in str(error.value)


def test_suffixes_as_vllm_reads_them() -> None:
    current = read_yaml("max-num-batched-tokens: 16K\nmax-model-len: 25.6k\nkv-cache-memory-bytes: 64M\n", "a.yaml")
    assert dict(current.config) == {
        "max_num_batched_tokens": 16384,
        "max_model_len": 25600,
        "kv_cache_memory_bytes": 64 * 1024**2,
    }


def test_the_last_of_two_spellings_wins() -> None:
    current = read_yaml("max-num-seqs: 4\nmax_num_seqs: 8\n", "a.yaml")
    assert current.config["max_num_seqs"] == 8
    assert "line 2: max-num-seqs is given more than once; the last one counts (8, not 4)" in current.notices[0]


@pytest.mark.parametrize(
    ("flag", "instead"),
    [
        ("swap-space: 4", "recomputed"),
        ("num_scheduler_steps: 8", "async-scheduling"),
        ("task: embed", "runner"),
        ("preemption-mode: swap", "recomputed"),
        ("max-num-partial-prefills: 2", "long-prefill-token-threshold"),
    ],
)
def test_removed_flags_are_named_with_what_to_do(flag: str, instead: str) -> None:
    current = read_yaml(f"model: m\n{flag}\n", "a.yaml")
    assert instead in current.notices[0] and "line 2" in current.notices[0]
    assert yaml.safe_load(write_yaml(current)) == {"model": "m"}


def test_plain_anchors_are_written_out() -> None:
    current = read_yaml("max-num-seqs: &n 64\nport: *n\n", "a.yaml")
    assert current.config["max_num_seqs"] == current.other["port"] == 64


def test_secrets_are_left_out_and_named() -> None:  # case EDGE-16
    text = "model: m\napi-key: sk-PLACEHOLDER\nkv-transfer-config: {url: 'redis://:pw@h'}\nhf-token: hf_PLACEHOLDER\n"
    current = read_yaml(text, "a.yaml")
    assert current.withheld == ("api-key", "kv-transfer-config", "hf-token")
    everything = write_yaml(current) + repr(current)
    assert not any(secret in everything for secret in ("PLACEHOLDER", "pw@"))
    assert "# left out, looks like a secret: api-key" in write_yaml(current)


def test_comments_cannot_be_broken_out_of() -> None:  # case EDGE-16
    text = write_yaml(Deployment(model="m", config=Config({})), ["study x\nport: 1", "a\rb: 2", "c\u2028d: 3"])
    assert yaml.safe_load(text) == {"model": "m"}


def test_a_text_that_looks_like_a_flag_is_refused() -> None:
    with pytest.raises(UserError, match="begins with a hyphen"):
        write_yaml(Deployment(model="m", config=Config({}), other={"chat-template": "--x"}))


def test_files_with_a_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\xef\xbb\xbfmodel: m\r\nmax-num-seqs: 8\r\n")
    assert dict(read_current(path).config) == {"max_num_seqs": 8}
