"""LoadSamples: one load's raw records as the samples that metrics are computed from.

Several runs of the same load pool here, sample by sample; percentiles are never averaged. A duration that was due
and never came (a failed request) is counted as missing, so that failing cannot shorten a tail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from objectives.measurement import PhaseMeasurement, RequestRecord
from objectives.statistics import Sample, sample
from objectives.sustained import Sustainment, sustainment

SEVERAL_TOKENS_SHARE = 0.01
"""Above this share of messages with other than one token, gaps between messages are no longer per-token figures."""


@dataclass(frozen=True, eq=False)
class LoadSamples:
    """The runs of one load, at least one."""

    phases: tuple[PhaseMeasurement, ...]

    @cached_property
    def records(self) -> tuple[RequestRecord, ...]:
        return tuple(r for phase in self.phases for r in phase.records)

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(r.tenant for r in self.records))

    @property
    def n_requests(self) -> int:
        return len(self.records)

    @cached_property
    def judged(self) -> tuple[RequestRecord, ...]:
        """Requests whose end says something about the engine: in saturation, not those that the phase's end cut."""
        return tuple(r for p in self.phases for r in p.records if not (p.load == "saturation" and r.is_timed_out))

    @cached_property
    def n_finished(self) -> int:
        return sum(r.is_finished for r in self.records)

    def of_tenant(self, tenant: str) -> LoadSamples:
        """The same runs with only this tenant's requests.

        Engine counters and gauges are left out: they cannot be split by tenant."""
        if tenant not in self._views:
            self._views[tenant] = LoadSamples(tuple(tenant_phase(phase, tenant) for phase in self.phases))
        return self._views[tenant]

    @cached_property
    def _views(self) -> dict[str, LoadSamples]:
        return {}

    @cached_property
    def ttft_ms(self) -> Sample:
        """Scheduled arrival to first token."""
        return sample((1e3 * (r.token_times_s[0] - r.scheduled_s) for r in self._answered), self._n_unanswered)

    @cached_property
    def ttft_from_send_ms(self) -> Sample:
        return sample((1e3 * (r.token_times_s[0] - r.sent_s) for r in self._answered), self._n_unanswered)

    @cached_property
    def send_lag_ms(self) -> Sample:
        """How late the client sent; a request sent early counts as on time."""
        return sample(1e3 * max(r.sent_s - r.scheduled_s, 0.0) for r in self.records)

    @cached_property
    def itl_ms(self) -> Sample:
        """Gaps between consecutive token-bearing messages; one gap is missing for every stream that broke off."""
        n_broken = sum(r.failure is not None and r.token_times_s.size > 0 and _is_short(r) for r in self.judged)
        return sample(1e3 * _joined(r.gaps_s for r in self._answered), n_broken)

    @cached_property
    def itl_per_token_ms(self) -> Sample:
        """Every gap spread evenly over the tokens of the message that ended it: one sample a token."""
        if all(r.tokens_per_message is None for r in self._answered):
            return self.itl_ms
        return sample(1e3 * _joined(_gaps_per_token(r) for r in self._answered), self.itl_ms.n_missing)

    @cached_property
    def tpot_ms(self) -> Sample:
        """Per request: (last - first token time) / tokens after the first message."""
        return _per_request(self.judged, _tpot_ms)

    @cached_property
    def stall_ms(self) -> Sample:
        """Per request: its longest gap. A request that failed with tokens still due stalled for ever."""
        return _per_request(self.judged, _stall_ms)

    @cached_property
    def e2e_ms(self) -> Sample:
        """Scheduled arrival to last token."""
        done = [1e3 * (r.token_times_s[-1] - r.scheduled_s) for r in self.judged if r.is_finished]
        return sample(done, len(self.judged) - len(done))

    @cached_property
    def tokens_per_message(self) -> NDArray[np.int64]:
        return np.concatenate([np.empty(0, np.int64), *(_message_tokens(r) for r in self._answered)])

    @property
    def several_tokens_share(self) -> float | None:
        """Share of messages that carried other than one token."""
        tokens = self.tokens_per_message
        return float((tokens != 1).mean()) if tokens.size else None

    @property
    def has_several_tokens(self) -> bool:
        return (self.several_tokens_share or 0.0) > SEVERAL_TOKENS_SHARE

    @cached_property
    def prefill_touched_share(self) -> float | None:
        """Share of gaps in which another request's prefill ended (its first token came): the least share of gaps that
        a prefill can have stretched, since the earlier chunks of a long prompt leave no trace at the client."""
        touched = [_touched(phase) for phase in self.phases]
        n_gaps = sum(n for _, n in touched)
        return sum(t for t, _ in touched) / n_gaps if n_gaps else None

    @cached_property
    def sustainments(self) -> tuple[Sustainment | None, ...]:
        """One a run; None where it cannot be judged."""
        return tuple(sustainment(phase) for phase in self.phases)

    @cached_property
    def _answered(self) -> tuple[RequestRecord, ...]:
        return tuple(r for r in self.records if r.token_times_s.size)

    @property
    def _n_unanswered(self) -> int:
        return self.n_requests - len(self._answered)


def tenant_phase(phase: PhaseMeasurement, tenant: str) -> PhaseMeasurement:
    """One tenant's records of a phase, without what belongs to whole engines."""
    records = tuple(r for r in phase.records if r.tenant == tenant)
    return replace(phase, records=records, counters={}, samples=(), offered_per_s=None)


def _is_short(record: RequestRecord) -> bool:
    return record.output_tokens < record.asked_output_tokens


def _joined(parts: Iterable[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate([np.empty(0), *parts])


def _message_tokens(record: RequestRecord) -> NDArray[np.int64]:
    if record.tokens_per_message is None:
        return np.ones(record.token_times_s.size, np.int64)
    return record.tokens_per_message.astype(np.int64)


def _gaps_per_token(record: RequestRecord) -> NDArray[np.float64]:
    if record.tokens_per_message is None:
        return record.gaps_s
    tokens = np.maximum(_message_tokens(record)[1:], 1)
    return np.repeat(record.gaps_s / tokens, tokens)


def _per_request(records: Sequence[RequestRecord], figure: Callable[[RequestRecord], float | None]) -> Sample:
    """One figure a request that asked for at least two tokens; missing where the request failed."""
    due = [r for r in records if r.asked_output_tokens > 1]
    finished = [r for r in due if r.is_finished]
    found = [figure(r) for r in finished]
    return sample([v for v in found if v is not None], len(due) - len(finished))


def _tpot_ms(record: RequestRecord) -> float | None:
    later = record.output_tokens - int(_message_tokens(record)[0])
    return 1e3 * float(record.token_times_s[-1] - record.token_times_s[0]) / later if later > 0 else None


def _stall_ms(record: RequestRecord) -> float | None:
    return 1e3 * float(record.gaps_s.max()) if record.token_times_s.size > 1 else None


def _touched(phase: PhaseMeasurement) -> tuple[int, int]:
    """(gaps that contain another request's first token, all gaps)"""
    answered = [r.token_times_s for r in phase.records if r.token_times_s.size]
    first = np.sort([t[0] for t in answered])
    n_before = [np.searchsorted(first, t, side="right") for t in answered]
    return sum(int((np.diff(n) > 0).sum()) for n in n_before), sum(t.size - 1 for t in answered)
