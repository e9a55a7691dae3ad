"""Every log beside this file, judged; and the same logs after what log drivers do to them."""

from __future__ import annotations

import json
import math

import pytest

from optimizer.diagnosis.failure import Circumstances, Verdict, judge
from tests.diagnosis.known_logs import FAILED, HEALTHY, LOGS, STOPPED, known_log

KEYS = ["kind", "phase", "cause", "config_fault", "evidence", "bounds", "advice", "trigger"]


def judged(text: str, given: Circumstances | None = None) -> Verdict:
    verdict = judge(text, given)
    assert verdict is not None
    return verdict


def test_every_log_has_its_verdict() -> None:
    assert sorted(p.stem for p in LOGS.glob("*.log")) == sorted([*FAILED, *HEALTHY, *STOPPED])


@pytest.mark.parametrize("name", FAILED)
def test_a_failure_is_judged(name: str) -> None:
    kind, phase, is_config_fault, bounds = FAILED[name]
    verdict = judged(known_log(name))
    assert (verdict.kind, verdict.phase, verdict.config_fault) == (kind, phase, is_config_fault)
    assert {k: verdict.bounds.get(k) for k in bounds} == pytest.approx(bounds)


@pytest.mark.parametrize("name", FAILED)
def test_a_verdict_is_fit_to_print_and_store(name: str) -> None:
    verdict = judged(known_log(name))
    row = verdict.to_json()
    assert list(row) == KEYS
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert verdict.cause and "\n" not in verdict.cause
    assert "exit code" not in verdict.cause or verdict.kind == "killed"
    assert verdict.evidence and all("\n" not in line and len(line) <= 500 for line in verdict.evidence)
    assert 0 < verdict.violation < math.inf
    assert verdict.advice


@pytest.mark.parametrize("name", FAILED)
def test_the_wrapper_is_not_the_cause(name: str) -> None:  # case OOM-16
    assert "initialization failed" not in judged(known_log(name)).cause


@pytest.mark.parametrize("name", HEALTHY + STOPPED)
def test_nothing_failed(name: str) -> None:
    assert judge(known_log(name)) is None


DRIVERS = {
    "compose": lambda line: f"vllm-1  | {line}",
    "kubectl": lambda line: f"[pod/vllm-0/server] {line}",
    "cri": lambda line: f"2026-11-29T10:00:00.123456789Z stderr F {line}",
    "journald": lambda line: f"Nov 29 10:00:00 node-a vllm[77]: {line}",
    "docker": lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-11-29T10:00:00Z"}),
    "colour": lambda line: f"\x1b[1;36m{line}\x1b[0m",
    "windows": lambda line: line + "\r",
}


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("name", FAILED)
def test_the_verdict_survives_log_drivers(name: str, driver: str) -> None:
    text = known_log(name)
    verdict, wrapped = judged(text), judged("\n".join(map(DRIVERS[driver], text.split("\n"))))
    assert (wrapped.kind, wrapped.phase, wrapped.bounds) == (verdict.kind, verdict.phase, verdict.bounds)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("name", HEALTHY + STOPPED)
def test_log_drivers_make_no_failure(name: str, driver: str) -> None:
    assert judge("\n".join(map(DRIVERS[driver], known_log(name).split("\n")))) is None


@pytest.mark.parametrize("name", FAILED)
def test_only_the_last_boot_is_judged(name: str) -> None:
    assert judge(known_log(name) + "\n" + known_log("boot_ok")) is None
    assert judged(known_log("gpu_boot_ok") + "\n" + known_log(name)).kind == FAILED[name][0]


def test_the_process_of_the_cause_is_named() -> None:
    verdict = judged(known_log("gpu_sampler_two_ranks"))
    assert "Worker_TP1" in verdict.cause and "1024" in verdict.cause
    assert "Tried to allocate 1.74 GiB" in "".join(verdict.evidence)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bad_utilization", ["gpu_memory_utilization", "less than or equal to 1"]),
        ("bad_choice", ["--kv-cache-dtype", "fp7"]),
        ("heads_not_divisible", ["attention heads (4)", "tensor parallel size (3)"]),
        ("removed_flag", ["--swap-space was removed"]),
        ("gpu_mig_uuid", ["MIG UUID"]),
        ("gpu_illegal_access", ["illegal memory access"]),
        ("gpu_neighbour_while_loading", ["pid 4321", "MiB"]),
        ("worker_killed_serving", ["signal 9"]),
        ("engine_terminated_serving", ["SIGTERM"]),
    ],
)
def test_the_cause_says_what_matters(name: str, words: list[str]) -> None:
    cause = judged(known_log(name)).cause
    assert [w for w in words if w not in cause] == []


def test_a_request_that_breaks_the_engine_is_named() -> None:  # case OOM-12
    verdict = judged(known_log("gpu_serving_prompt_logprobs"))
    assert verdict.trigger == "request_params"
    assert "a request's own parameters made the peak" in verdict.cause and "\n" not in verdict.cause
    assert judged(known_log("gpu_serving")).trigger == ""
