"""Several servers in one log: the boot of one does not hide the death of another."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from optimizer.diagnosis.failure import Verdict, judge

NO_KV = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."
WAYS = {
    "one after another": "bbbbbbbbbaaaaa",
    "ready last": "ababababbbbbba",
    "banner between error and wrapper": "bbbbbbbaaaabba",
    "ready between error and wrapper": "aaaabbbbbbbabb",
    "ready before the error": "bbbbaaaaabbbbb",
}
UNNAMED = [way for way in WAYS if way != "one after another"]
"""Without names a boot after a death is that server's restart."""


def server(api: int, engine: int, error: str = "") -> list[str]:
    head = f"(EngineCore pid={engine}) ERROR 11-29 10:00:10 [core.py:1108] "
    boot = [
        f"(APIServer pid={api}) INFO 11-29 10:00:00 [utils.py:1] vLLM API server version 0.32.0",
        f"(APIServer pid={api}) INFO 11-29 10:00:00 [utils.py:2] non-default args: {{'model': 'm'}}",
        f"(EngineCore pid={engine}) INFO 11-29 10:00:02 [core.py:1] Initializing a V1 LLM engine (v0.32.0)",
        f"(EngineCore pid={engine}) INFO 11-29 10:00:03 [gpu_model_runner.py:1] Starting to load model m...",
    ]
    if not error:
        return [*boot, f"(APIServer pid={api}) INFO:     Application startup complete."]
    return [
        *boot,
        head + "EngineCore failed to start.",
        head + "Traceback (most recent call last):",
        head + error,
        f"(APIServer pid={api}) Traceback (most recent call last):",
        f"(APIServer pid={api}) RuntimeError: Engine core initialization failed. See root cause above.",
    ]


def mixed(way: str, name: Callable[[str, str], str], a: list[str], b: list[str]) -> str:
    lines = {"a": list(a), "b": list(b)}
    return "\n".join(name(who, lines[who].pop(0)) for who in WAYS[way])


def judged(text: str) -> Verdict:
    verdict = judge(text)
    assert verdict is not None
    return verdict


NAMES: dict[str, Callable[[str, str], str]] = {
    "compose": lambda who, line: f"vllm-{who}  | {line}",
    "swarm": lambda who, line: f"vllm_{who}.1.x7@node-1    | {line}",
    "kubectl": lambda who, line: f"[pod/vllm-{who}-0/server] {line}",
    "journald": lambda who, line: f"Nov 29 10:00:00 node vllm-{who}[7]: {line}",
    "json": lambda who, line: json.dumps({"log": line, "kubernetes": {"pod_name": f"vllm-{who}"}}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("driver", NAMES)
def test_the_server_that_died_is_judged_and_named(driver: str, way: str) -> None:
    verdict = judged(mixed(way, NAMES[driver], server(9, 60), server(8, 70, NO_KV)))
    assert (verdict.kind, verdict.phase, verdict.config_fault) == ("kv_capacity", "kv_alloc", True)
    assert "b" in verdict.cause.split(": ")[0]


@pytest.mark.parametrize("way", UNNAMED)
def test_without_names_the_pids_tell(way: str) -> None:
    verdict = judged(mixed(way, lambda _, line: line, server(9, 60), server(8, 70, NO_KV)))
    assert (verdict.kind, verdict.config_fault) == ("kv_capacity", True)


def test_a_restart_is_no_other_server() -> None:
    for name in (lambda line: line, lambda line: f"vllm-1  | {line}"):
        boots = [*server(1, 60, NO_KV), *server(1, 60)]
        assert judge("\n".join(map(name, boots))) is None
        failed = [*server(1, 60, NO_KV), *server(1, 60, "RuntimeError: Engine is odd: x")]
        assert judged("\n".join(map(name, failed))).kind == "unknown"


def test_servers_that_are_well_are_well() -> None:
    text = "\n".join(NAMES["compose"](who, line) for line in server(9, 60) for who in "ab")
    assert judge(text) is None
    killed = judged(text + "\nvllm-b exited with code 137")
    assert killed.kind == "killed" and killed.cause.startswith("vllm-b: ")


def test_all_that_failed_are_named() -> None:
    a = [f"vllm-a  | {line}" for line in server(9, 60, "torch.OutOfMemoryError: CUDA out of memory.")]
    b = [f"vllm-b  | {line}" for line in server(8, 70, NO_KV)]
    cause = judged("\n".join([*a, *b])).cause
    assert cause.startswith("vllm-a: ") and cause.endswith("; vllm-b failed too: kv_capacity")


def test_a_proxy_beside_the_server_comes_second() -> None:
    proxy = ["proxy  | Traceback (most recent call last):", "proxy  | OSError: upstream is away"]
    verdict = judged("\n".join([*proxy, *(f"vllm  | {line}" for line in server(8, 70, NO_KV))]))
    assert verdict.kind == "kv_capacity" and verdict.cause.startswith("vllm: ")


def test_a_table_is_no_server() -> None:
    table = ["GPU  | name", "0  | H100"]
    assert judged("\n".join([*table, *server(8, 70, NO_KV), *table])).kind == "kv_capacity"
