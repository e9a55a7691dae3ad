"""Whether the client kept up; see also `test_client.py`."""

import numpy as np
import pytest

from optimizer.replay.keeping_up import ClientFigures, Lags, burst_ms, client_fault, processes_for, tail_of
from tests.replay.traces import plan_of, target_of, trace_of


def test_a_client_that_kept_up_has_no_fault() -> None:
    figures = ClientFigures(
        offered_per_s=20.0,
        sent_per_s=19.9,
        send_lags=Lags(4.0, 9.0),
        read_lags=Lags(6.0, 14.0),
        cores=0.4,
        n_open=40,
        n_known=38,
    )
    assert client_fault(figures) is None
    assert client_fault(ClientFigures()) is None


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        (ClientFigures(offered_per_s=20.0, sent_per_s=11.2), "sent 11.2 requests per second of the 20"),
        (ClientFigures(cores=1.0), "busy all the time"),
        (ClientFigures(n_open=128, n_known=40), "knew of 40 requests when the client had 128 open"),
        (ClientFigures(send_lags=Lags(230.0)), "sent late: P90 230 ms"),
        (ClientFigures(read_lags=Lags(9.0, 99.0)), "read late: P99 99 ms"),
        (ClientFigures(n_refused_sockets=3), "limit on open files refused 3 connections"),
    ],
)
def test_each_way_to_fall_behind_has_its_sentence(figures: ClientFigures, words: str) -> None:  # case DIAG-14
    fault = client_fault(figures)
    assert fault is not None and words in fault


def test_the_case_as_reported() -> None:  # case DIAG-14
    assert client_fault(ClientFigures(offered_per_s=20, sent_per_s=11.2, cores=1.0, n_open=128, n_known=40)) is not None


def test_a_burst_may_take_its_time() -> None:
    target = target_of("http://127.0.0.1:1")
    assert burst_ms(plan_of(trace_of(np.zeros(1000)), target)) == pytest.approx(1002.0)
    assert burst_ms(plan_of(trace_of(np.zeros(1000)), target, n_processes=2)) == pytest.approx(501.0)
    assert burst_ms(plan_of(trace_of(np.arange(100.0)), target)) == pytest.approx(1.002)
    assert client_fault(ClientFigures(send_lags=Lags(600.0), burst_ms=1000.0)) is None


@pytest.mark.parametrize(
    ("per_s", "n_cores", "n"), [(0.0, 4, 1), (-1.0, 4, 1), (1_000.0, 4, 1), (40_000.0, 4, 3), (1e6, 4, 4), (1e6, 0, 1)]
)
def test_processes_follow_the_rate_and_the_cores(per_s: float, n_cores: int, n: int) -> None:
    assert processes_for(per_s, n_cores) == n


@pytest.mark.parametrize(
    ("figures", "fault"),
    [
        (ClientFigures(send_lags=Lags(60.0, 200.0), ttft_p99_ms=900.0), None),
        (ClientFigures(send_lags=Lags(60.0, 200.0), ttft_p99_ms=200.0), "sent late: P90 60 ms, at most 50 ms"),
        (ClientFigures(send_lags=Lags(20.0, 200.0), ttft_p99_ms=300.0), "sent late: P99 200 ms, at most 150 ms"),
        (ClientFigures(read_lags=Lags(9.0, 60.0), gap_p99_ms=74.0), None),
        (ClientFigures(read_lags=Lags(9.0, 60.0), gap_p99_ms=30.0), "read late: P99 60 ms, at most 30 ms"),
        (ClientFigures(read_lags=Lags(20.0, 22.0), gap_p99_ms=25.0), "read late: P90 20 ms, at most 15 ms"),
    ],
)
def test_a_lag_is_held_against_what_it_falsifies(figures: ClientFigures, fault: str | None) -> None:
    found = client_fault(figures)
    assert (found is None) if fault is None else (found is not None and fault in found)


@pytest.mark.parametrize(("n", "has_p90", "has_p99"), [(19, False, False), (20, True, False), (100, True, True)])
def test_few_lags_have_no_far_tail(n: int, has_p90: bool, has_p99: bool) -> None:
    lags = tail_of(np.full(n, 0.01))
    assert (lags is not None, lags is not None and lags.p99_ms is not None) == (has_p90, has_p99)
    assert lags is None or lags.p90_ms == pytest.approx(10.0)
