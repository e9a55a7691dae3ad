"""From what the client processes bring back to records on the phase clock and a report on the client itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from objectives.measurement import ClientReport, RequestRecord
from optimizer.replay.failures import TIME_OUT, cancelled
from optimizer.replay.keeping_up import ClientFigures, burst_ms, client_fault, tail_of
from optimizer.replay.plan import ReplayPlan
from optimizer.replay.share import Exchange, ShareResult


def record_of(exchange: Exchange, plan: ReplayPlan, start_s: float) -> RequestRecord:
    row, trace = exchange.row, plan.trace
    n_tokens = exchange.times_s.size if exchange.counts is None else int(exchange.counts.sum())
    n_asked = int(trace.output_tokens[row]) * plan.target_of(row).n_choices
    is_chat_answer = plan.style == "chat" and exchange.failure is None
    sent_s = exchange.sent_s if exchange.sent_s is not None else exchange.end_s
    assert sent_s is not None
    return RequestRecord(
        request_id=row,
        tenant=plan.tenant_of(row),
        scheduled_s=float(trace.arrival_s[row]),
        sent_s=sent_s - start_s,
        prompt_tokens=exchange.prompt_tokens or int(trace.prompt_tokens[row]),
        asked_output_tokens=n_tokens if is_chat_answer else n_asked,
        token_times_s=exchange.times_s - start_s,
        tokens_per_message=exchange.counts,
        cached_prompt_tokens=exchange.cached_prompt_tokens,
        failure=exchange.failure,
    )


def first_failure(exchanges: Sequence[Exchange]) -> str | None:
    failed = [e for e in exchanges if e.failure is not None]
    own = [e for e in failed if not _is_cut(e)]
    earliest = min(own or failed, key=lambda e: e.end_s or 0.0, default=None)
    return earliest.failure if earliest is not None else None


def _is_cut(exchange: Exchange) -> bool:
    return exchange.failure is not None and exchange.failure.startswith((TIME_OUT, cancelled("")))


def client_report(
    shares: Sequence[ShareResult], measured: Sequence[Exchange], plan: ReplayPlan, start_s: float
) -> ClientReport:
    """Send lag of the measured rows; loop lag and CPU of the worst process over the whole replay."""
    send_lags_s = lateness_s(measured, plan, start_s)
    worst = max(shares, key=lambda share: _p99_ms(share.lags_s) or 0.0)
    cores = max(share.cores for share in shares)
    offered_per_s, sent_per_s = rates_per_s(measured, plan)
    figures = ClientFigures(
        offered_per_s=offered_per_s,
        sent_per_s=sent_per_s,
        send_lags=tail_of(send_lags_s),
        ttft_p99_ms=_p99_ms(_waits_s(measured, plan, start_s)),
        burst_ms=burst_ms(plan),
        read_lags=tail_of(worst.lags_s),
        gap_p99_ms=_p99_ms(np.concatenate([np.empty(0), *(np.diff(e.times_s) for e in measured)])),
        cores=cores,
        n_refused_sockets=sum(share.n_refused_sockets for share in shares),
    )
    return ClientReport(
        n_processes=len(shares),
        send_lag_p99_ms=_p99_ms(send_lags_s),
        read_lag_p99_ms=_p99_ms(worst.lags_s),
        cores=cores,
        n_messages=sum(e.times_s.size for e in measured),
        fault=client_fault(figures),
    )


def _waits_s(measured: Sequence[Exchange], plan: ReplayPlan, start_s: float) -> NDArray[np.float64]:
    """From scheduled arrival to first token, of the rows that got one."""
    answered = [e for e in measured if e.times_s.size]
    arrivals_s = start_s + plan.trace.arrival_s[[e.row for e in answered]]
    return np.array([e.times_s[0] for e in answered], np.float64) - arrivals_s


def lateness_s(measured: Sequence[Exchange], plan: ReplayPlan, start_s: float) -> NDArray[np.float64]:
    """Lateness of every measured row that was due, those that never got out until the cut included."""
    lags_s = []
    for exchange in measured:
        due_s = start_s + float(plan.trace.arrival_s[exchange.row])
        out_s = exchange.sent_s if exchange.sent_s is not None else exchange.end_s
        if out_s is not None and (exchange.sent_s is not None or out_s > due_s):
            lags_s.append(max(out_s - due_s, 0.0))
    return np.array(lags_s)


def rates_per_s(measured: Sequence[Exchange], plan: ReplayPlan) -> tuple[float | None, float | None]:
    """Offered and achieved over the rows that were sent; None where they do not spread over a second."""
    sent = [e for e in measured if e.sent_s is not None]
    if len(sent) < 20:
        return None, None
    due_s = plan.trace.arrival_s[[e.row for e in sent]]
    sent_s = np.array([e.sent_s for e in sent], np.float64)
    offered_span_s, sent_span_s = float(np.ptp(due_s)), float(np.ptp(sent_s))
    if offered_span_s < 1.0:
        return None, None
    return (len(sent) - 1) / offered_span_s, (len(sent) - 1) / sent_span_s


def _p99_ms(values_s: NDArray[np.float64]) -> float | None:
    return 1e3 * float(np.percentile(values_s, 99)) if values_s.size else None
