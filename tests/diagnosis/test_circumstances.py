"""What is known beside the log decides where the log is silent, and never against what it says."""

from __future__ import annotations

from typing import Any

import pytest

from optimizer.diagnosis.failure import Circumstances, judge
from tests.diagnosis.known_logs import known_log

DMESG = "[ 1234.5] Out of memory: Killed process {} (VLLM::EngineCor) total-vm:9kB, anon-rss:8kB"


@pytest.mark.parametrize(
    ("log", "given", "kind", "phase"),
    [
        ("gpu_boot_ok", {"exit_code": -9}, "killed", "serving"),
        ("gpu_boot_ok", {"exit_code": 137}, "killed", "serving"),
        ("gpu_boot_ok", {"exit_code": 137, "host_free_bytes": 10_000_000}, "host_ram", "serving"),
        ("gpu_boot_ok", {"exit_code": 137, "extra_logs": DMESG.format(60)}, "host_ram", "serving"),
        ("gpu_boot_ok", {"exit_code": 137, "extra_logs": DMESG.format(4711)}, "killed", "serving"),
        ("gpu_boot_ok", {"exit_code": -7}, "host_ram", "serving"),
        ("gpu_boot_ok", {"exit_code": -15}, "killed", "serving"),
        ("gpu_boot_ok", {"exit_code": 1}, "unknown", "serving"),
        ("gpu_boot_ok", {"hang_s": 45.0}, "hang", "serving"),
        ("api_terminated_serving", {"exit_code": 0}, "killed", "serving"),
        ("engine_killed_serving", {"host_free_bytes": 10_000_000}, "host_ram", "serving"),
        ("engine_killed_serving", {"extra_logs": DMESG.format(4711)}, "killed", "serving"),
        ("gpu_serving", {"exit_code": 0, "hang_s": 30.0}, "runtime_peak", "serving"),
        ("gpu_serving", {"killed_by_us": "the trial is over"}, "runtime_peak", "serving"),
        ("gpu_profile", {"neighbour_starting": True}, "profiling_race", "warmup"),
        ("gpu_neighbour", {"previous_trial_ended_s_ago": 2.0}, "orphan", "load"),
        ("gpu_neighbour_while_loading", {"own_former_pids": (4321,)}, "orphan", "load"),
        ("gpu_neighbour_while_loading", {"sibling_pids": (4321,)}, "weights", "load"),
        ("v0_kv_tokens", {"exit_code": 1}, "kv_capacity", "kv_alloc"),
    ],
)
def test_circumstances(log: str, given: dict[str, Any], kind: str, phase: str) -> None:
    verdict = judge(known_log(log), Circumstances(**given))
    assert verdict is not None
    assert (verdict.kind, verdict.phase) == (kind, phase)


@pytest.mark.parametrize(
    ("log", "given"),
    [
        ("gpu_boot_ok", {"exit_code": None}),
        ("gpu_boot_ok", {"exit_code": 0, "killed_by_us": "the trial is over"}),
        ("gpu_boot_ok", {"exit_code": -9, "killed_by_us": "it did not end in 10 s"}),
        ("api_terminated_serving", {"exit_code": 0, "killed_by_us": "the trial is over"}),
        ("engine_killed_serving", {"exit_code": 0, "killed_by_us": "the trial is over"}),
    ],
)
def test_what_we_ended_did_not_fail(log: str, given: dict[str, Any]) -> None:
    assert judge(known_log(log), Circumstances(**given)) is None


def test_a_card_without_neighbours_makes_it_the_configurations_fault() -> None:
    log = (
        "ValueError: Free memory on device cuda:0 (78.6/79.19 GiB) on startup is less than desired GPU memory "
        "utilization (0.995, 78.8 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
    )
    verdict = judge(log)
    assert verdict is not None and (verdict.kind, verdict.config_fault) == ("arguments", True)
    assert verdict.bounds["gpu_memory_utilization_at_most"] == 0.992
    with_neighbour = judge(log, Circumstances(foreign_pids=(7,)))
    assert with_neighbour is not None and with_neighbour.kind == "neighbour"


def test_secrets_stay_out_of_the_verdict() -> None:
    log = "vllm: error: unrecognized arguments: --hf-tokn hf_abcdefghijklmnop --api-key sk-abcdefghijkl"
    verdict = judge(log)
    assert verdict is not None
    assert "hf_abcdefghijklmnop" not in str(verdict) and "sk-abcdefghijkl" not in str(verdict)
