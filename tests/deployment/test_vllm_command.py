import shlex
from pathlib import Path

import pytest

from optimizer.deployment.current import read_current
from optimizer.deployment.vllm_command import read_command, write_command
from optimizer.errors import UserError

SCRIPT = """#!/bin/bash
# how we start it
export HF_TOKEN=hf_PLACEHOLDER
export CUDA_VISIBLE_DEVICES=0
VLLM_LOGGING_LEVEL=DEBUG LOGS="$HOME/x" exec vllm serve 'org/m; rm -rf x' \\
  -tp 2 -O3 -cc.cudagraph_mode FULL -cc.pass_config.fuse=true --max_num_seqs=64 --max-num-b 16K \\
  --no-enable-prefix-caching --api-key sk-PLACEHOLDER --port ${PORT:-8000} --seed $(date +%s) \\
  --served-model-name a b --swap-space 4 --device cuda --weird-flag 3 --max-num-seqs 128 > log 2>&1 &
"""


def test_a_start_script_in_all_its_spellings() -> None:
    current = read_current(SCRIPT)
    assert current.model == "org/m; rm -rf x"
    assert dict(current.config) == {
        "tensor_parallel_size": 2,
        "optimization_level": 3,
        "max_num_seqs": 128,
        "max_num_batched_tokens": 16384,
        "enable_prefix_caching": False,
    }
    assert dict(current.other) == {
        "served-model-name": ["a", "b"],
        "weird-flag": "3",
        "compilation-config": {"cudagraph_mode": "FULL", "pass_config": {"fuse": True}},
    }
    assert dict(current.environment) == {"CUDA_VISIBLE_DEVICES": "0", "VLLM_LOGGING_LEVEL": "DEBUG"}
    assert dict(current.shell_filled) == {"env LOGS": "$HOME/x", "port": "${PORT:-8000}", "seed": "$(date +%s)"}
    assert current.withheld == ("HF_TOKEN", "api-key")
    told = "\n".join(current.notices)
    for part in ("swap-space does not exist", "device does not exist", "weird-flag is unknown", "more than once"):
        assert part in told
    assert "PLACEHOLDER" not in told + repr(current) + write_command(current)  # case EDGE-16


def test_a_script_is_written_for_the_next_shell() -> None:
    text = write_command(read_current(SCRIPT), ["trial 3"])
    assert text.startswith("# trial 3\n")
    assert "$(date" not in text.replace("# left out, a shell fills it in: seed $(date +%s)", "")
    command = text[text.index("CUDA") :]
    assert command.startswith(
        "CUDA_VISIBLE_DEVICES=0 VLLM_LOGGING_LEVEL=DEBUG LOGS=\"$HOME/x\" vllm serve 'org/m; rm -rf x' \\\n"
    )
    assert '  --port "${PORT:-8000}"' in command
    assert "--no-enable-prefix-caching" in command
    words = shlex.split(command.replace("\\\n", " "))
    assert words[5] == "org/m; rm -rf x"  # case EDGE-16: one word


def test_shell_marks_from_a_yaml_file_are_quoted() -> None:  # case EDGE-16
    text = write_command(read_current("model: '$(touch x)'\nserved-model-name: '`id`; $HOME'\n"))
    assert shlex.split(text.replace("\\\n", " ")) == [
        "vllm",
        "serve",
        "$(touch x)",
        "--served-model-name",
        "`id`; $HOME",
    ]
    assert "'$(touch x)'" in text and "'`id`; $HOME'" in text


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve org/m --max-num-seqs 8",
        "/opt/venv/bin/vllm serve --model org/m --max-num-seqs=8",
        "python3 -m vllm.entrypoints.openai.api_server --model=org/m --max_num_seqs 8",
        "python -m vllm.entrypoints.cli.main serve org/m --max-num-seqs 8",
        "nohup env A=b vllm serve --max-num-seqs 8 --model org/m &",
        "--model org/m --max-num-seqs 8",
        "$ vllm serve org/m --max-num-seqs 8",
        "set -e\ncd /srv\nvllm serve org/m \\\r\n  --max-num-seqs 8\r\n",
    ],
)
def test_every_way_to_start_it(line: str) -> None:
    current = read_current(line)
    assert (current.model, dict(current.config)) == ("org/m", {"max_num_seqs": 8})


@pytest.mark.parametrize(
    ("words", "config"),
    [
        ("-O 2", {"optimization_level": 2}),
        ("-O=1", {"optimization_level": 1}),
        ("-pp=2 -q fp8", {"pipeline_parallel_size": 2, "quantization": "fp8"}),
        ("-qfp8", {"quantization": "fp8"}),
        ("--kv-cache-memory 8g", {"kv_cache_memory_bytes": 8 * 10**9}),
        ("--device-memory-utilization .5", {"gpu_memory_utilization": 0.5}),
        ("--max-model-len -1", {}),
        ("--max-model-len auto", {}),
        ("--enable-prefix-caching --no-enable-prefix-caching", {"enable_prefix_caching": False}),
        ("--quantization None", {}),
    ],
)
def test_spellings_of_flags(words: str, config: dict[str, object]) -> None:
    assert dict(read_command(f"vllm serve m {words}", "f").config) == config


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo hello\nvllm chat\n--x", None),
        ("vllm serve m\nvllm serve n", "starts 2 servers .lines 1, 2."),
        ("vllm serve m --max-num-seqs --port 3", "line 1: --max-num-seqs has no value"),
        ("vllm serve m --enable-prefix-caching=true", "line 1: --enable-prefix-caching takes no value"),
        ("vllm serve m --enable-prefix-caching true", "line 1: 'true' belongs to no flag"),
        ("vllm serve m \\\n  --gpu-memory-utilization 0,9", "line 2: gpu-memory-utilization: .*write 0.9"),
        ("vllm serve m \\ \n --port 3", "line 1: delete the blanks"),
        ("vllm serve m \\\n # note\n --port 3", "line 3: --port is cut off"),
        ("vllm serve 'm", "line 1: ' is opened"),
        ("vllm serve m --max-num 4", "line 1: max-num is short for several"),
        ("vllm serve m --config none.yaml", "line 1: cannot read .*none.yaml"),
        ("vllm serve m --config $F", "line 1: the config file is filled in by a shell"),
        ("docker run --gpus all vllm/vllm-openai:v0.32.0 --model m", "container"),
        ("vllm serve m -O7", "'7' is not one of 0, 1, 2, 3"),
    ],
)
def test_bad_commands_get_one_line(text: str, message: str | None) -> None:
    if message is None:
        assert read_command(text, "f").other == {"x": True}
        return
    with pytest.raises(UserError, match=message) as error:
        read_command(text, "f")
    assert "\n" not in str(error.value)


def test_a_config_file_beside_the_command_is_read_and_loses_to_it(tmp_path: Path) -> None:  # case CFG-03
    (tmp_path / "base.yaml").write_text("model: org/m\nmax-num-seqs: 4\nport: 9\n")
    script = tmp_path / "start.sh"
    script.write_text("vllm serve --max-num-seqs 8 --config base.yaml\n")
    current = read_current(script)
    assert (current.model, dict(current.config), dict(current.other)) == ("org/m", {"max_num_seqs": 8}, {"port": 9})


def test_an_attached_config_file_is_told_to_be_ignored() -> None:  # case CFG-03
    current = read_command("vllm serve m --config=x.yaml", "f")
    assert dict(current.flags()) == {}
    assert "vLLM ignores --config=x.yaml" in current.notices[0]


def test_both_formats_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "serve.yaml"
    path.write_text("# usage: vllm serve --config serve.yaml\nmodel: m\nserved-model-name: vllm serve x\n")
    assert read_current(path).model == "m"
    assert read_current(str(path)).other == {"served-model-name": "vllm serve x"}
    with pytest.raises(UserError, match="no-such-file: cannot be read"):
        read_current("no-such-file")
    with pytest.raises(UserError, match="cannot be read"):
        read_current(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not UTF-8"):
        read_current(tmp_path / "binary")
    with pytest.raises(UserError, match="empty"):
        read_current("\n")
