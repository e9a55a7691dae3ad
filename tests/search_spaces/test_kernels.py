"""Kernel entries as functions: they interpolate between what was measured and grow where they must."""

from __future__ import annotations

import pytest

from search_spaces.hardware import find_gpu
from search_spaces.kernels import AllReduce, Gemm


def test_a_gemm_is_bound_by_the_slower_of_two() -> None:
    gemm = Gemm(mfu=0.5, mbu=0.8, q=4.0, t0_s=1e-6, source="here", error=0.0)
    assert gemm.seconds(1e-3, 1e-6) == pytest.approx(1e-6 + 2e-3, rel=1e-3)
    assert gemm.seconds(1e-7, 8e-4) == pytest.approx(1e-6 + 1e-3, rel=1e-3)
    assert gemm.seconds(1e-3, 1e-3) > 1e-6 + 2e-3


def test_an_all_reduce_passes_through_its_points() -> None:
    row = AllReduce(n_gpus=2, points=((1e3, 4e-6), (1e5, 8e-6), (1e7, 8e-5)), source="here", error=0.01)
    assert row.seconds(10) == 4e-6
    assert [row.seconds(n) for n, _ in row.points] == pytest.approx([4e-6, 8e-6, 8e-5])
    assert row.seconds(1e4) == pytest.approx((4e-6 * 8e-6) ** 0.5)
    assert row.seconds(1e9) == pytest.approx(8e-3)


def test_a_size_between_two_counts_takes_the_larger() -> None:
    kernels = find_gpu("H100").kernels
    found = [kernels.all_reduce_of(n) for n in (2, 3, 16)]
    assert [row.n_gpus for row in found if row is not None] == [2, 4, 8]
    assert find_gpu("H100 PCIe").all_reduce_of(2).error is None


def test_what_is_assumed_says_why() -> None:
    kernels = find_gpu("H100").kernels.assumed("as a whole H100")
    assert not kernels.is_measured
    assert {kernels.gemm.source, *(row.source for row in kernels.all_reduce)} == {"as a whole H100"}
