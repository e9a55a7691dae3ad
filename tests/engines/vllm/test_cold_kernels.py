"""Kernels compiled while requests are measured, read off a growing log."""

from __future__ import annotations

from pathlib import Path

from optimizer.engines.vllm.cold_kernels import ColdKernels
from optimizer.engines.vllm.endpoint import Endpoint

LINE = (
    "(Worker_TP0 pid=74) WARNING 11-29 10:00:00 [jit_monitor.py:103] Triton kernel JIT compilation during inference:"
    " {}. This causes a latency spike; consider extending warmup to cover this shape/config.\n"
)


def endpoint(path: Path | None) -> Endpoint:
    return Endpoint("chat", "http://127.0.0.1:1", "m", ("default",), log_path=path)


def test_what_is_compiled_after_the_warm_up_disturbs(tmp_path: Path) -> None:  # case DIAG-04
    path = tmp_path / "server.log"
    path.write_text(LINE.format("_warmed_up"))
    cold = ColdKernels([endpoint(path)])
    cold.skip()
    assert list(cold.findings()) == []
    with path.open("a") as log:
        log.write(LINE.format("_gumbel_sample_kernel") * 2 + LINE.format("_topk_kernel"))
    [found] = cold.findings()
    assert (found.severity, found.kind) == ("disturbed", "cold")
    assert "(_gumbel_sample_kernel, _topk_kernel)" in found.text and "warm-up" in found.text
    assert list(cold.findings()) == []


def test_a_server_whose_log_is_not_ours_has_none(tmp_path: Path) -> None:
    for path in (None, tmp_path / "none.log"):
        cold = ColdKernels([endpoint(path)])
        cold.skip()
        assert list(cold.findings()) == []
