"""The words one server is started with, and whether they are what it ran with."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optimizer.deployment.deployment import Deployment
from optimizer.deployment.vllm_check import is_same
from optimizer.deployment.vllm_command import command_arguments
from optimizer.engines.vllm.interpreter import VllmInstall
from optimizer.engines.vllm.ports import HOST
from optimizer.engines.vllm.turns import weight_files
from optimizer.errors import EngineFailed, UserError
from search_spaces.config import Config
from search_spaces.vllm import START_UTILIZATION

CACHED_TOKENS_FLAG = "enable-prompt-tokens-details"
"""Gives `cached_tokens` in every answer's usage (vLLM 0.32 entrypoints/launchers/cli_args.py:148)."""
FIRST_WITH_MIG_NAMES = (0, 21)
"""vLLM issue 41848: up to 0.20 it takes CUDA_VISIBLE_DEVICES apart with int()."""
QUEUE_BYTES = 400 * 2**20
"""What one vLLM 0.32 server of several processes reserves for its queues: two of 240 and 160 MiB, seen on a CPU."""
RANK_BYTES = 64 * 2**20
"""NCCL's transport between the ranks of one machine, generously; docker's default of 64 MiB breaks it with two."""
NOT_FLAGS = frozenset({"model"})
OVERRIDDEN = frozenset({"async_scheduling", "enforce_eager", "optimization_level", "max_cudagraph_capture_size"})
"""Arguments that vLLM 0.32 settles by platform and batch size (platforms/cpu.py, config/vllm.py:2455); a difference
is noted, not an error."""


def server_words(config: Config, model: str) -> list[str]:
    """What goes behind `vllm serve`, without the port. The same for every start of this configuration."""
    return command_arguments(Deployment(model=model, config=Config({}), other=_flags(config, model)))[1:]


def command(install: VllmInstall, config: Config, model: str, port: int, *, shares_card: bool = False) -> list[str]:
    words = [*server_words(config, model), *_start_words(config, shares_card), "--host", HOST, "--port", str(port)]
    return [*install.command, *(words if install.takes_model_as_word else ["--model", *words])]


def _start_words(config: Config, shares_card: bool) -> list[str]:
    """For a server that finds others on its card: see START_UTILIZATION."""
    if not shares_card or "kv_cache_memory_bytes" not in config or "gpu_memory_utilization" in config:
        return []
    return ["--gpu-memory-utilization", str(START_UTILIZATION)]


def _flags(config: Config, model: str) -> dict[str, object]:
    flags: dict[str, object] = {k.replace("_", "-"): v for k, v in config.items() if k not in NOT_FLAGS}
    for name in ("host", "port"):
        if name in flags:
            raise UserError(f"{name}: the program chooses it; take it out of the configuration")
    flags.setdefault(CACHED_TOKENS_FLAG, True)
    if needs_dummy_weights(config, model):
        flags["load-format"] = "dummy"
    return flags


def needs_dummy_weights(config: Config, model: str) -> bool:
    """A local directory without weights, and no word on how to load them."""
    return "load_format" not in config and Path(model).is_dir() and not weight_files(model)


def check_kv_size_given(install: VllmInstall, config: Config) -> None:
    """On a CPU the KV cache is sized in bytes: vLLM's default is 92 % of the host's memory, which is rarely free.

    Raises UserError when neither a size nor a share of the memory is given."""
    if install.is_cpu and not {"kv_cache_memory_bytes", "gpu_memory_utilization"} & set(config):
        raise UserError("kv_cache_memory_bytes: on a CPU the size of the KV cache must be given in bytes")


def check_device_names(install: VllmInstall, gpu_uuids: Sequence[str]) -> None:
    """Raises EngineFailed for a MIG slice under a vLLM that reads device names as numbers; what it says itself then
    ("Model architectures failed to be inspected") tells nobody why."""
    slices = [uuid for uuid in gpu_uuids if uuid.startswith("MIG-")]
    if slices and _release(install.version) < FIRST_WITH_MIG_NAMES:
        cause = f"MIG UUID {slices[0]} is not supported by vLLM {install.version}; install 0.21 or later"
        raise EngineFailed("version", "config", cause, is_config_fault=False)


def _release(version: str) -> tuple[int, ...]:
    """The first two numbers; a version that is none counts as the newest."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (sys.maxsize,)


def notices(config: Config, model: str, shared_bytes: int | None = None) -> tuple[str, ...]:
    """What the user should know about this start. `shared_bytes`: the size of /dev/shm; None: ask the machine."""
    found = []
    if needs_dummy_weights(config, model):
        found.append(f"{model} holds no weights: the server runs on random ones (load-format dummy)")
    n_ranks = config.int_("tensor_parallel_size", 1) * config.int_("pipeline_parallel_size", 1)
    has_bytes = shared_memory_bytes() if shared_bytes is None else shared_bytes
    need_bytes = QUEUE_BYTES + n_ranks * RANK_BYTES
    if n_ranks > 1 and has_bytes is not None and has_bytes < need_bytes:
        found.append(
            f"/dev/shm holds {has_bytes >> 20} MiB, and {n_ranks} ranks may need {need_bytes >> 20} MiB of it:"
            " start the container with --ipc=host or a larger --shm-size"
        )
    return tuple(found)


def shared_memory_bytes() -> int | None:
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None
    return found.f_blocks * found.f_frsize


def differences(config: Config, parsed: Mapping[str, Any] | None, resolved: Mapping[str, Any]) -> list[str]:
    """Arguments the server did not get, or does not run with, as they were asked for.

    `parsed`: its log's `non-default args`; `resolved`: `/server_info`'s configuration. What neither of them names
    cannot be compared; of text, only what was parsed."""
    found = []
    for name, asked in config.items():
        if name in NOT_FLAGS or asked in ("auto", -1):
            continue
        got = [(parsed or {}).get(name)]
        if not isinstance(asked, str):
            got += _resolved(name, resolved)
        wrong = [value for value in got if _is_comparable(asked, value) and not is_same(_plain(asked), value)]
        if wrong:
            found.append(f"{name}: asked {asked!r}, runs with {wrong[-1]!r}")
    return found


def _is_comparable(asked: object, value: object) -> bool:
    """A text argument is parsed into structures and enumerations; only text is compared with text."""
    return isinstance(value, str) if isinstance(asked, str) else isinstance(value, int | float)


def split_overridden(differences: list[str]) -> tuple[list[str], list[str]]:
    """Differences that are an error, and those vLLM makes by platform."""
    expected = [d for d in differences if d.partition(":")[0] in OVERRIDDEN]
    return [d for d in differences if d not in expected], expected


def _resolved(name: str, resolved: Mapping[str, Any]) -> list[Any]:
    """The values under that name, in any section."""
    sections = [resolved, *(section for section in resolved.values() if isinstance(section, Mapping))]
    return [section[name] for section in sections if name in section]


def _plain(value: object) -> object:
    """A whole number given as a float is the same number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
