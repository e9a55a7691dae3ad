"""Rates change by whole families, rows are used once before twice, and everything repeats from its seed."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from optimizer.errors import UserError
from optimizer.workload.arrivals import at_rate, batch_spacing_s, rotated, spread_batches
from optimizer.workload.character import gap_cv
from optimizer.workload.packaged import packaged
from optimizer.workload.prefix import families, reusable_tokens
from optimizer.workload.reader import open_trace
from optimizer.workload.trace import Trace


def trace_of(arrivals: list[float], **columns: object) -> Trace:
    n = len(arrivals)
    base = {"tenant": np.zeros(n, np.int16), **columns}
    lengths = np.arange(1, n + 1, dtype=np.int32)
    return Trace(np.array(arrivals, np.float64), lengths, lengths, **base)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def mooncake() -> Trace:
    return spread_batches(open_trace(packaged("mooncake-conversation")).trace, 0)[0]


@pytest.fixture(scope="module")
def conv() -> Trace:
    return open_trace(packaged("azure-conv")).trace


def test_the_recorded_rate_is_the_recording(conv: Trace) -> None:
    assert conv.rate_per_s is not None
    laid = at_rate(conv, conv.rate_per_s, n_requests=len(conv), seed=5)
    assert laid.trace.content_hash == conv.content_hash
    assert laid.repeated_share == 0


# case TOOL-06
@pytest.mark.parametrize("rate", [0.05, 0.21, 0.28, 0.35, 0.425, 1.7, 5.0, 12.3, 80.0])
def test_rates_are_continuous(conv: Trace, rate: float) -> None:
    laid = at_rate(conv, rate, n_requests=2000, seed=1)
    assert len(laid.trace) >= 2000
    assert laid.trace.rate_per_s == pytest.approx(rate, rel=0.02)
    assert laid.trace.arrival_s[0] >= 0


@pytest.mark.parametrize("rate", [0.3, 2.0, 9.0])
def test_every_row_is_used_before_any_is_used_twice(conv: Trace, rate: float) -> None:
    laid = at_rate(conv, rate, n_requests=len(conv), seed=1)
    first = laid.source_row[laid.copy == 0]
    assert np.unique(first).size == first.size
    if laid.repeated_share > 0:
        assert first.size == len(conv)


def test_thinning_keeps_the_pattern_in_time(conv: Trace) -> None:
    """Time is not squeezed: thinned rows stand at their recorded offsets in their pass."""
    assert conv.rate_per_s is not None
    laid = at_rate(conv, conv.rate_per_s / 2, n_requests=1000, seed=1)
    period = conv.span_s * len(conv) / (len(conv) - 1)
    offset = laid.trace.arrival_s - (conv.arrival_s[laid.source_row] - conv.arrival_s[0])
    np.testing.assert_allclose(offset, np.round(offset / period) * period, atol=1e-6)


def test_a_lower_rate_takes_a_subset_of_a_higher_ones_first_pass(conv: Trace) -> None:
    rows = {r: set(at_rate(conv, r, n_requests=200, seed=3).source_row[:150].tolist()) for r in (1.0, 2.0)}
    first_pass = at_rate(conv, 2.0, n_requests=200, seed=3).source_row
    assert rows[1.0] <= set(first_pass.tolist())


@pytest.mark.parametrize("rate", [0.5, 1.5, 7.0])
def test_families_stay_whole(mooncake: Trace, rate: float) -> None:
    laid = at_rate(mooncake, rate, n_requests=1500, seed=2)
    family, n_of = families(mooncake), np.bincount(families(mooncake))
    key = family[laid.source_row] * 10_000 + laid.copy
    found, counts = np.unique(key, return_counts=True)
    assert np.array_equal(counts, n_of[found // 10_000])


def test_a_familys_rows_keep_their_distances(mooncake: Trace) -> None:
    laid = at_rate(mooncake, 12.0, n_requests=4000, seed=2)
    key = families(mooncake)[laid.source_row] * 10_000 + laid.copy
    moved = laid.trace.arrival_s - mooncake.arrival_s[laid.source_row]
    order = np.argsort(key, kind="stable")
    same = np.diff(key[order]) == 0
    assert same.sum() > 500
    np.testing.assert_allclose(np.diff(moved[order])[same], 0, atol=1e-6)


def test_thinning_keeps_prefix_reuse(mooncake: Trace) -> None:
    def share(trace: Trace) -> float:
        reused = reusable_tokens(trace)
        assert reused is not None
        return float(reused.sum() / trace.prompt_tokens.sum())

    laid = at_rate(mooncake, 1.0, n_requests=2400, seed=2)
    assert laid.repeated_share < 0.2
    assert share(laid.trace) == pytest.approx(share(mooncake), rel=0.1)


def test_copies_share_only_common_blocks(mooncake: Trace) -> None:
    laid = at_rate(mooncake, 7.0, n_requests=4000, seed=2)
    ids, start = laid.trace.prefix_ids, laid.trace.prefix_start
    assert ids is not None and start is not None
    copy = np.repeat(laid.copy, np.diff(start))
    original, again = np.unique(ids[copy == 0]), np.unique(ids[copy == 1])
    assert np.intersect1d(original, again).size == 1  # the system prompt


def test_tenants_keep_their_shares(conv: Trace) -> None:
    tenant = (np.arange(len(conv)) % 4 == 0).astype(np.int16)
    both = Trace(conv.arrival_s, conv.prompt_tokens, conv.output_tokens, tenant, ("a", "b"))
    for rate in (0.7, 3.0, 11.0):
        assert at_rate(both, rate, n_requests=2000, seed=1).trace.tenant.mean() == pytest.approx(0.25, abs=0.01)


def test_sessions_stay_whole_and_copies_are_other_sessions() -> None:
    session = np.arange(400, dtype=np.int64) // 4
    trace = trace_of([0.5 * k for k in range(400)], session=session)
    laid = at_rate(trace, 6.0, n_requests=1000, seed=0)
    made = laid.trace.session
    assert made is not None
    assert np.unique(made, return_counts=True)[1].tolist() == [4] * np.unique(made).size


def test_squeezing_is_done_only_when_asked(conv: Trace) -> None:
    laid = at_rate(conv, 20.0, n_requests=1000, seed=0, squeeze=True)
    assert laid.repeated_share == 0
    assert laid.trace.rate_per_s == pytest.approx(20.0)
    assert laid.trace.span_s < conv.span_s / 3


# case EDGE-06
@pytest.mark.parametrize("arrivals", [[0.0], [3.0, 3.0, 3.0], [0.0, 1.0]])
def test_a_tiny_trace_is_repeated_without_division_by_zero(arrivals: list[float]) -> None:
    laid = at_rate(trace_of(arrivals), 2.0, n_requests=300, seed=0)
    assert len(laid.trace) >= 300
    assert laid.trace.rate_per_s == pytest.approx(2.0, rel=0.2)
    assert np.unique(laid.trace.arrival_s).size > 250  # with jitter, not in lock-step


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_impossible_rates_are_refused(conv: Trace, rate: float) -> None:
    with pytest.raises(UserError, match="rate"):
        at_rate(conv, rate, n_requests=10, seed=0)


def test_recorded_batches_are_found_and_spread(mooncake: Trace) -> None:
    raw = open_trace(packaged("mooncake-conversation")).trace
    assert batch_spacing_s(raw) == pytest.approx(3.0, abs=0.01)
    assert gap_cv(raw.arrival_s) == pytest.approx(3.03, abs=0.05)
    assert gap_cv(mooncake.arrival_s) == pytest.approx(1.0, abs=0.05)
    moved = mooncake.arrival_s - raw.arrival_s
    assert moved.min() >= 0 and moved.max() <= 3.01
    assert mooncake.prompt_tokens.tolist() == raw.prompt_tokens.tolist()  # file order kept
    assert batch_spacing_s(mooncake) is None


def test_whole_second_logs_are_batches_and_real_clocks_are_not(conv: Trace) -> None:
    assert batch_spacing_s(conv) is None
    assert batch_spacing_s(conv.at(np.floor(conv.arrival_s))) == pytest.approx(1.0)
    assert batch_spacing_s(trace_of([0.0, 0.0, 0.0])) is None
    same, notice = spread_batches(conv, 0)
    assert same is conv and notice is None


def test_rotation_keeps_every_row(conv: Trace) -> None:
    moved = rotated(conv, 100.0, conv.span_s + 1)
    assert sorted(moved.prompt_tokens.tolist()) == sorted(conv.prompt_tokens.tolist())
    assert moved.arrival_s.min() >= 0 and moved.arrival_s.max() <= conv.span_s + 1


def test_the_seed_decides_and_processes_agree(mooncake: Trace) -> None:
    code = (
        "from optimizer.workload.arrivals import at_rate, spread_batches\n"
        "from optimizer.workload.packaged import packaged\n"
        "from optimizer.workload.reader import open_trace\n"
        "t = spread_batches(open_trace(packaged('mooncake-conversation')).trace, 0)[0]\n"
        "print(at_rate(t, 5.0, n_requests=900, seed=4).trace.content_hash)"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = at_rate(mooncake, 5.0, n_requests=900, seed=4).trace.content_hash
    assert other.stdout.strip() == here
    assert at_rate(mooncake, 5.0, n_requests=900, seed=5).trace.content_hash != here
