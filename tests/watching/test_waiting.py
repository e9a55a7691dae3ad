"""What a kernel tells of time without a core, as recorded in its files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from optimizer.questions.diagnosis import diagnose
from optimizer.questions.situation import CpuUse, CpuWait, Gauge, Situation
from optimizer.watching.waiting import WaitClocks, read_clocks, wait_between

V2_STAT = """usage_usec 912345678
user_usec 812345678
system_usec 100000000
nr_periods 12000
nr_throttled 5100
throttled_usec 301500000
"""
V1_STAT = "nr_periods 12000\nnr_throttled 5100\nthrottled_time 301500000000\n"
PRESSURE = "some avg10=41.20 avg60=38.10 avg300=20.01 total=7000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


def tree(root: Path, cgroup: str, folder: str, stat: str) -> None:
    (root / "proc/7").mkdir(parents=True)
    (root / "proc/7/cgroup").write_text(cgroup)
    (root / "proc/pressure").mkdir()
    (root / "proc/pressure/cpu").write_text(PRESSURE)
    (root / "cgroup" / folder).mkdir(parents=True)
    (root / "cgroup" / folder / "cpu.stat").write_text(stat)


@pytest.mark.parametrize(
    ("cgroup", "folder", "stat"),
    [
        ("0::/kubepods.slice/pod1/cri-abc\n", "kubepods.slice/pod1/cri-abc", V2_STAT),
        ("0::/\n", "", V2_STAT),
        ("5:devices:/pod1\n1:cpu,cpuacct:/pod1\n0::/\n", "cpu/pod1", V1_STAT),
    ],
)
def test_a_containers_limit_is_read(tmp_path: Path, cgroup: str, folder: str, stat: str) -> None:
    tree(tmp_path, cgroup, folder, stat)
    clocks = read_clocks([7], tmp_path / "proc", tmp_path / "cgroup")
    assert clocks.throttled_s == pytest.approx(301.5) and clocks.machine_s == pytest.approx(7.0)


def test_without_a_limit_or_files_nothing_is_told(tmp_path: Path) -> None:
    tree(tmp_path, "0::/a\n", "a", "usage_usec 1\nnr_periods 0\nthrottled_usec 0\n")
    assert read_clocks([7], tmp_path / "proc", tmp_path / "cgroup").throttled_s is None
    nothing = read_clocks([8], tmp_path / "nowhere", tmp_path / "nowhere")
    assert (nothing.throttled_s, nothing.machine_s) == (None, None)
    assert wait_between(nothing, replace(nothing, time_s=nothing.time_s + 9)) is None


def test_shares_are_of_the_time_between() -> None:
    found = wait_between(WaitClocks(10.0, 1.0, 7.0), WaitClocks(20.0, 4.0, 8.0))
    assert found == CpuWait(throttled=pytest.approx(0.3), machine=pytest.approx(0.1))


def server(**changes: object) -> Situation:
    base = Situation(
        source="server", span_s=60.0, running=Gauge(8.0, 12.0, above_zero=0.97), waiting=Gauge(0.0, 0.0), n_finished=300,
        n_preemptions=0, cpu={"engine_core": CpuUse(0.5, 0.45), "worker": CpuUse(0.8, 0.6)},
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


def test_a_cpu_limit_that_throttles_is_named() -> None:
    answer = diagnose([server(cpu_wait=CpuWait(throttled=0.3))]).answers[1]
    assert (answer.verdict, answer.confidence) == ("cpu", "high") and "CPU limit" in answer.text
    assert any("30% of the time (cgroup" in line for line in answer.evidence)


def test_an_engine_without_its_core_is_named() -> None:
    delayed = {"engine_core": CpuUse(0.1, 0.1, delayed=0.02), "worker": CpuUse(0.5, 0.5, delayed=0.6)}
    answer = diagnose([server(cpu=delayed)]).answers[1]
    assert (answer.verdict, answer.confidence) == ("cpu", "high") and "something else runs on it" in answer.text
    filled = diagnose([server(cpu={**delayed, "other": CpuUse(1.3)}, n_cores=2)]).answers[1]
    assert "its own processes fill the 2 cores" in filled.text


@pytest.mark.parametrize("running", [Gauge(1.0, 12.0, above_zero=0.3), Gauge(0.0, 0.0, above_zero=0.0)])
def test_an_engine_that_was_often_idle_is_not_blamed_for_waiting(running: Gauge) -> None:
    delayed = {"worker": CpuUse(0.5, 0.5, delayed=0.6)}
    assert diagnose([server(cpu=delayed, running=running)]).answers[1].verdict != "cpu"
