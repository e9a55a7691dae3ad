"""What a server said about itself once it was ready: recorded with the trial, and compared with what was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optimizer.deployment.secrets import MASK, has_secret, is_secret_name
from optimizer.diagnosis.vllm_log import LogFacts, facts_of, read_log
from optimizer.engines.vllm import http
from optimizer.engines.vllm.launch import differences, split_overridden
from optimizer.errors import EngineFailed
from search_spaces.config import Config


@dataclass(frozen=True)
class ServerBoot:
    """One server's start."""

    kv_tokens: int
    kv_blocks: int
    seconds: Mapping[str, float] = field(default_factory=dict)
    """boot phase -> seconds; the first includes the imports, the last ends when it answers."""
    server_info: Mapping[str, Any] = field(default_factory=dict)
    """The resolved configuration (`vllm_config`), without secrets; empty where the server has no such endpoint."""
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    """The words it was started with."""
    gpu_uuids: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def facts(self) -> dict[str, Any]:
        """For the trial's record, plain values only."""
        return {
            "versions": dict(self.versions),
            "gpu_uuids": list(self.gpu_uuids),
            "arguments": list(self.arguments),
            "environment": dict(self.environment),
            "kv_tokens": self.kv_tokens,
            "kv_blocks": self.kv_blocks,
            "boot_s": dict(self.seconds),
            "warnings": list(self.warnings),
            "resolved": dict(self.server_info),
        }


def read_boot(url: str, log_text: str, config: Config, installed: Mapping[str, str]) -> ServerBoot:
    """What the server itself knows.

    Raises EngineFailed, the configuration's fault, when it does not run with what was asked."""
    facts = facts_of(read_log(log_text))
    info = http.server_info(url) or {}
    resolved = info.get("vllm_config", {})
    wrong, noted = split_overridden(differences(config, facts.non_default_args, resolved))
    if wrong:
        cause = f"the server does not run with the arguments it was given: {'; '.join(wrong)}"
        raise EngineFailed("arguments", "serving", cause, is_config_fault=True, evidence=wrong)
    labels = http.cache_config(url)
    return ServerBoot(
        kv_tokens=_whole(labels.get("kv_tokens")) or facts.kv_tokens or 0,
        kv_blocks=_whole(labels.get("num_gpu_blocks")) or facts.kv_blocks or 0,
        server_info=without_secrets(resolved),
        versions={**_versions(url, info, facts), **installed},
        warnings=tuple(f"vLLM decides this by platform: {text}" for text in noted),
    )


def _versions(url: str, info: Mapping[str, Any], facts: LogFacts) -> dict[str, str]:
    system = info.get("system_env", {})
    found = {
        "vllm": http.version(url) or facts.vllm_version,
        "torch": system.get("torch_version"),
        "cuda": system.get("cuda_compiled_version"),
        "driver": system.get("nvidia_driver_version"),
    }
    return {name: str(value) for name, value in found.items() if value}


def without_secrets(value: Any) -> Any:
    """A structure of plain values with whatever looks like a secret replaced by `***`."""
    if isinstance(value, Mapping):
        return {
            str(k): MASK if is_secret_name(str(k)) and v is not None else without_secrets(v) for k, v in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [without_secrets(v) for v in value]
    return MASK if isinstance(value, str) and has_secret(value) else value


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
