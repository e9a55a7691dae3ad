"""The environment a server is started with: the same for every trial, so that warm starts stay warm.

vLLM hashes nearly every `VLLM_*` variable into the key of its compile cache (vLLM 0.32 envs.py, compile_factors). What
differs between trials is therefore only what it leaves out: VLLM_PORT, CUDA_VISIBLE_DEVICES, the temporary folder, and
variables it does not know.
"""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optimizer.deployment.secrets import MASK, has_secret, is_secret_name
from optimizer.processes import THREAD_LIMITS

OF_ANOTHER_PYTHON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
DROPPED = {
    "VLLM_ENABLE_STARTUP_PLAN": "it would reuse the KV size of another trial, whatever its memory share",
    "VLLM_CPU_KVCACHE_SPACE": "it would overwrite the trial's kv_cache_memory_bytes",
    "VLLM_API_KEY": "the server listens on 127.0.0.1 and is asked without a key",
    "VLLM_PORT": "ports are leased",
    "VLLM_RPC_BASE_PATH": "its sockets lie in the server's own temporary folder, which goes when it ends",
    "VLLM_HOST_IP": "the server keeps to this machine",
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": "a server whose engine died must end",
    "VLLM_LOGGING_LEVEL": "the boot's phases are read from lines at INFO",
    "VLLM_LOGGING_PREFIX": "the log is read",
    "VLLM_LOGGING_STREAM": "the log is read",
    "VLLM_LOGGING_CONFIG_PATH": "the log is read",
    "VLLM_CONFIGURE_LOGGING": "the log is read",
    "PROMETHEUS_MULTIPROC_DIR": "counters of earlier servers lie there",
    "FORCE_COLOR": "the log is read",
}
"""Variables a server must not inherit, and why."""


@dataclass(frozen=True)
class ServerEnvironment:
    variables: Mapping[str, str]
    notices: tuple[str, ...] = ()
    """Variables of the user that were left out, each with the reason."""

    def recorded(self) -> dict[str, str]:
        """What identifies the run: vLLM's and CUDA's variables; of one that looks like a secret the name only."""
        kept = {k: v for k, v in self.variables.items() if k.startswith(("VLLM_", "CUDA_", "NCCL_", "HF_HUB_"))}
        return {k: MASK if is_secret_name(k) or has_secret(v) else v for k, v in sorted(kept.items())}


def server_environment(
    python: str,
    *,
    is_own_python: bool,
    is_cpu: bool,
    is_local_model: bool,
    gpu_uuids: tuple[str, ...] = (),
    cache_root: Path | None = None,
    extra: Mapping[str, str] | None = None,
    inherited: Mapping[str, str] | None = None,
) -> ServerEnvironment:
    """From ours (`inherited`) to the server's. `extra` wins over everything; what the user set for vLLM is kept."""
    source = dict(os.environ if inherited is None else inherited)
    kept = {name: value for name, value in source.items() if not _is_ours(name, value, source, is_own_python)}
    notices = tuple(f"{n} is not passed to the server: {why}" for n, why in DROPPED.items() if n in kept)
    variables = {name: value for name, value in kept.items() if name not in DROPPED}
    variables |= _fixed(python, variables, cache_root)
    if is_cpu:
        variables.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    if is_local_model:
        variables["HF_HUB_OFFLINE"] = "1"
    if gpu_uuids:
        variables |= {"CUDA_VISIBLE_DEVICES": ",".join(gpu_uuids), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return ServerEnvironment({**variables, **(extra or {})}, notices)


def _is_ours(name: str, value: str, source: Mapping[str, str], is_own_python: bool) -> bool:
    """Whether it is meant for us, or for Ray, and not for a server."""
    if name in THREAD_LIMITS:
        return value == "1" and any(n.startswith(("RAY_", "VCO_")) for n in source)
    if name in OF_ANOTHER_PYTHON:
        return not is_own_python
    return name.startswith(("RAY_", "VCO_"))


def _fixed(python: str, variables: Mapping[str, str], cache_root: Path | None) -> dict[str, str]:
    fixed = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONHASHSEED": "0",
        "NO_COLOR": "1",
        "PATH": os.pathsep.join([str(Path(python).parent), variables.get("PATH", os.defpath)]),
    }
    if cache_root is not None:
        fixed["VLLM_CACHE_ROOT"] = str(cache_root)
    if "TORCHINDUCTOR_CACHE_DIR" not in variables:  # in the temporary folder by default, and a server has its own
        shared = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}"
        fixed["TORCHINDUCTOR_CACHE_DIR"] = str(cache_root / "torchinductor" if cache_root else shared)
    return fixed
