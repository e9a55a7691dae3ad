"""Windows are chosen by offered load, held-out rows are unseen rows, caps are told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from optimizer.errors import UserError
from optimizer.workload.context import fit_context
from optimizer.workload.packaged import NAMES, packaged
from optimizer.workload.reader import open_trace
from optimizer.workload.trace import Trace
from optimizer.workload.window import (
    busiest,
    choose_window,
    choose_windows,
    densest_rows,
    longest_rows,
    offered_load_per_s,
    peak_over_mean,
    window_loads,
)


def made(arrivals: object, prompt: object, output: object = 1) -> Trace:
    at = np.asarray(arrivals, np.float64)
    n = at.size
    return Trace(
        at,
        np.broadcast_to(prompt, n).astype(np.int32),
        np.broadcast_to(output, n).astype(np.int32),
        np.zeros(n, np.int16),
    )


@pytest.mark.parametrize("name", NAMES)
def test_packaged_traces_hold_a_window_and_a_held_out_one(name: str) -> None:
    trace = open_trace(packaged(name)).trace
    search, held = choose_windows(trace, 1000, n_warmup=200)
    assert held is not None
    assert len(search.trace) == len(held.trace) == 1200 and search.n_warmup == held.n_warmup == 200
    assert search.stop_row <= held.first_row or held.stop_row <= search.first_row
    assert search.content_hash != held.content_hash
    assert search.trace.arrival_s[0] == 0


def test_the_window_has_the_traces_mean_load() -> None:
    trace = open_trace(packaged("azure-conv")).trace
    window = choose_window(trace, 300, n_warmup=50)
    assert window.load_per_s == pytest.approx(offered_load_per_s(trace), rel=0.01)
    assert window.trace.prompt_tokens.tolist() == trace.prompt_tokens[window.first_row : window.stop_row].tolist()


def test_windows_by_quantile_go_from_quiet_to_busy() -> None:
    trace = open_trace(packaged("azure-code")).trace
    loads = [choose_window(trace, 300, quantile=q).load_per_s or 0 for q in (0.05, 0.5, 0.95)]
    assert loads[0] < loads[1] < loads[2]


def test_load_counts_not_the_clock() -> None:
    """Ten minutes of silence, then traffic: half of all clock windows are empty, the chosen one is not."""
    arrivals = np.concatenate([np.arange(50) * 20.0, 1000 + np.arange(1000) * 0.5])
    window = choose_window(made(arrivals, 100), span_s=60, n_warmup=10)
    assert len(window.trace) - window.n_warmup == pytest.approx(42, abs=3)  # the whole trace's mean rate x 60 s
    assert window.trace.span_s >= 55


def test_short_traces_give_smaller_windows_and_never_shared_rows() -> None:
    small = made(np.arange(800.0), 100)
    search, held = choose_windows(small, 1000, n_warmup=200)
    assert held is not None and len(search.trace) + len(held.trace) == 800
    search, held = choose_windows(made(np.arange(300.0), 100), 1000, n_warmup=200)
    assert held is None and len(search.trace) == 300
    only, nothing = choose_windows(made([0.0], 100), 1000)
    assert len(only.trace) == 1 and only.n_warmup == 0 and nothing is None


def test_ties_and_spanless_traces_are_decided_by_row() -> None:
    assert choose_window(made(np.arange(500.0), 100), 100, n_warmup=0).first_row == 0
    assert choose_window(made(np.zeros(500), 100), 100, n_warmup=0).first_row == 0
    assert np.isinf(window_loads(made(np.zeros(5), 1), 3)).all()


def test_an_empty_trace_has_no_window() -> None:
    with pytest.raises(UserError):
        choose_window(made([], 1), 10)


def test_peaks() -> None:
    trace = made([0, 10, 20, 20.1, 20.2, 29, 40, 50], [1, 1, 1, 9, 1, 1, 7, 1])
    assert busiest(trace, 1.0) == (20.0, 3)
    assert peak_over_mean(trace, 10.0) == pytest.approx(4 / (8 / 50 * 10))
    assert peak_over_mean(trace, 100.0) is None
    assert densest_rows(trace, 3) == slice(2, 5)
    assert longest_rows(trace, 2).tolist() == [3, 6]


CASE = next(
    case["inputs"]
    for case in map(json.loads, (Path(__file__).parents[1] / "cases" / "open.jsonl").read_text().splitlines())
    if case["id"] == "EDGE-04"
)


# case EDGE-04
def test_too_long_requests_are_counted_before_anything_starts() -> None:
    trace = made(np.arange(4.0), [r["in"] for r in CASE["rows"]], [r["out"] for r in CASE["rows"]])
    with pytest.raises(UserError, match=r"3 of 4 .* 8,192.*needs 200,010.*drop or truncate"):
        fit_context(trace, CASE["max_model_len"])
    dropped = fit_context(trace, 8192, too_long="drop")
    assert len(dropped.trace) == 1 and dropped.n_too_long == 3 and dropped.too_long_share == 0.75
    assert "3 of 4" in dropped.text and "75.00%" in dropped.text
    cut = fit_context(trace, 8192, too_long="truncate")
    assert (cut.trace.prompt_tokens + cut.trace.output_tokens).max() == 8192 and len(cut.trace) == 4
    assert cut.too_long_share == 0.75
    assert len({trace.content_hash, dropped.trace.content_hash, cut.trace.content_hash}) == 3


def test_without_a_cap_the_context_is_the_workloads_own_with_a_margin() -> None:
    contract = fit_context(made([0.0, 1.0], [900, 100], [100, 100]))
    assert contract.needed_tokens == 1000
    assert contract.max_model_len == 1280  # 1000 + 64, rounded up to 256
    assert contract.trace.prompt_tokens.tolist() == [900, 100]


def test_truncation_cuts_prefix_blocks_with_the_prompt() -> None:
    trace = open_trace(packaged("mooncake-conversation")).trace
    cut = fit_context(trace, 4096, too_long="truncate").trace
    assert cut.prefix_start is not None
    assert np.array_equal(np.diff(cut.prefix_start), -(-cut.prompt_tokens // 512))
    assert cut.blocks_of(0).tolist() == trace.blocks_of(0)[: cut.blocks_of(0).size].tolist()


@pytest.mark.parametrize(("cap", "policy"), [(1, "drop"), (10, "drop")])
def test_a_cap_that_leaves_nothing_is_refused(cap: int, policy: str) -> None:
    with pytest.raises(UserError):
        fit_context(made([0.0], 900, 100), cap, too_long=policy)  # type: ignore[arg-type]
