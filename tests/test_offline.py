"""A laptop without a GPU, Ray cluster or network: what works there works, and what cannot says what was looked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
NO_NETWORK = """
import ipaddress, sys
def refuse(event, arguments):
    if event == "socket.getaddrinfo" and arguments[0] not in (None, "localhost", "127.0.0.1", "::1"):
        raise OSError(f"this test has no network: {arguments[0]}")
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        if not ipaddress.ip_address(arguments[1][0]).is_loopback:
            raise OSError(f"this test has no network: {arguments[1]}")
sys.addaudithook(refuse)
"""
"""Put where Python runs it at start-up, in every child process too."""


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("laptop")
    (folder / "start").mkdir()
    (folder / "start/sitecustomize.py").write_text(NO_NETWORK)
    return folder


def run(laptop: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m optimizer.X …` with an empty PATH (no nvidia-smi, no git) and no way out."""
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("CUDA", "RAY", "VLLM"))},
        "PYTHONPATH": os.pathsep.join([str(laptop / "start"), str(PROJECT)]),
        "PATH": str(laptop / "nothing"),
    }
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=laptop, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240
    )


def window(name: str) -> Path:
    (path,) = (PROJECT / "optimizer/workload/data").glob(f"*{name}*.csv")
    return path


def test_the_network_is_really_refused(laptop: Path) -> None:
    program = "import socket; socket.create_connection(('192.0.2.1', 80), 1)"
    (laptop / "dial.py").write_text(program)
    assert "this test has no network" in run(laptop, "dial").stderr


@pytest.mark.slow
def test_a_search_ends_well_and_is_labelled_simulated(laptop: Path) -> None:  # case EDGE-18
    done = run(laptop, "optimizer.run", "--profile", "chat", "--study", "s", "--n-trials", "4", "--workers", "0")
    assert done.returncode == 0, done.stderr
    assert "no GPU found, simulating" in done.stdout + done.stderr
    exported = run(laptop, "optimizer.export", "s", "--format", "json", "--all")
    assert exported.returncode == 0, exported.stderr
    assert "simulat" in json.dumps(json.loads(exported.stdout)).lower()


def test_vllm_without_a_gpu_says_what_was_checked(laptop: Path) -> None:  # case EDGE-18
    done = run(laptop, "optimizer.run", "--engine", "vllm", "--n-trials", "4")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1 and "no GPU found" in done.stderr and "nvidia-smi" in done.stderr
    assert not (laptop / "studies").exists() or not list((laptop / "studies").glob("chat-*"))


def test_a_trace_is_characterised(laptop: Path) -> None:  # case EDGE-18
    done = run(laptop, "optimizer.characterize", str(window("conv")), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


@pytest.mark.parametrize("model", ["org/m; rm -rf x", "$(touch x)", "`touch x`", "m\nn", "../" * 9 + "m"])
def test_a_hostile_model_name_is_only_a_name(laptop: Path, model: str) -> None:  # case EDGE-16
    done = run(laptop, "optimizer.run", "--model", model, "--explain-capacity")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert not (laptop / "x").exists()


def test_a_hostile_folder_is_a_model_like_any_other(laptop: Path) -> None:  # case EDGE-16
    folder = laptop / "m; touch x"
    folder.mkdir()
    config = {
        "model_type": "llama", "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True,
        "max_position_embeddings": 131072, "torch_dtype": "bfloat16", "architectures": ["LlamaForCausalLM"],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    done = run(laptop, "optimizer.run", "--model", str(folder), "--explain-capacity")
    assert done.returncode == 0, done.stderr
    assert not (laptop / "x").exists()
    shutil.rmtree(folder)
