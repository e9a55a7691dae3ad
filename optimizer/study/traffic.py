"""Traffic: the study's frozen windows of real requests, and the loads that are made from them at a rate.

Every trial of a study replays the same rows. The held-out window shares no row with the one that is searched on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from objectives.measurement import Load
from optimizer.engines.engine import LoadPlan
from optimizer.errors import UserError
from optimizer.profiles.profile import LoadSpec, Profile, Tenant
from optimizer.workload.arrivals import spread_batches
from optimizer.workload.context import TooLong, fit_context
from optimizer.workload.loads import LoadTrace, saturation, steady, stress
from optimizer.workload.mix import mix, renamed
from optimizer.workload.packaged import NAMES, find_trace
from optimizer.workload.reader import open_trace
from optimizer.workload.reading import Reading, TimeUnit
from optimizer.workload.trace import Trace
from optimizer.workload.window import Window, check_enough, check_has_gaps, choose_windows, peak_over_mean

N_REJECTED_SHOWN = 5
WINDOW_FACTOR = 4
"""Windows hold this many times the requests a load replays, so that a lower rate can be reached by thinning."""


@dataclass(frozen=True)
class TrafficOptions:
    """What the command line says about traces."""

    traces: Mapping[str, str] = field(default_factory=dict)
    """tenant -> file; the key "" is for every tenant that has none of its own"""
    time_unit: TimeUnit | None = None
    is_strict: bool = False
    max_bad_rows: int | None = None
    max_model_len: int | None = None
    too_long: TooLong = "drop"
    is_repeat_allowed: bool = False


@dataclass(frozen=True)
class Traffic:
    """What is replayed. Times in seconds, rates in requests per second over all tenants."""

    name: str
    recorded: Trace
    """All of it; peaks and the longest prompts of the stress load are looked for here."""
    search: Window
    held_out: Window | None
    shares: Mapping[str, float]
    """tenant -> share of the requests, as it came out"""
    recorded_per_s: float | None
    """Rate of the recorded traffic, tenants summed; None where the trace spans no time."""
    max_model_len: int
    mean_tokens: float
    """Mean prompt + output tokens of a request."""
    mean_tokens_of: Mapping[str, float]
    spec: LoadSpec
    seed: int
    notices: tuple[str, ...]

    @property
    def peak_per_s(self) -> float | None:
        """Rate of the recorded traffic's busiest minute; None where the trace spans no time."""
        peak = peak_over_mean(self.recorded, 60.0)
        return None if peak is None or self.recorded_per_s is None else peak * self.recorded_per_s

    @property
    def longest_tokens(self) -> int:
        """Largest prompt + output of any request that may be replayed."""
        return int((self.recorded.prompt_tokens.astype(np.int64) + self.recorded.output_tokens).max())

    @property
    def fingerprint(self) -> str:
        """Identity of everything replayed, held-out window included."""
        held_out = self.held_out.content_hash if self.held_out else "none"
        return f"{self.search.content_hash}-{held_out}"

    def loads(self, rate_per_s: float, names: Sequence[Load], *, is_held_out: bool = False) -> tuple[LoadPlan, ...]:
        """The named loads at a rate. Raises UserError when a held-out window is asked for and there is none."""
        window = self.held_out if is_held_out else self.search
        if window is None:
            raise UserError(f"{self.name}: the trace is too short for a held-out window")
        return tuple(self._plan(self._load(window.trace, rate_per_s, name)) for name in names)

    def without_longer(self, max_tokens: int) -> Traffic:
        """The same traffic with every request above `max_tokens` (prompt + output) turned away."""
        held_out = None if self.held_out is None else _cut(self.held_out, max_tokens)
        return replace(
            self, recorded=_shorter(self.recorded, max_tokens), search=_cut(self.search, max_tokens), held_out=held_out
        )

    def _load(self, window: Trace, rate_per_s: float, name: Load) -> LoadTrace:
        s = self.spec
        if name == "steady":
            return steady(
                window, rate_per_s, n_requests=s.measured_requests, n_warmup=s.warmup_requests, seed=self.seed
            )
        if name == "saturation":
            return saturation(window, n_requests=s.saturation_requests, seed=self.seed)
        return stress(
            window,
            rate_per_s,
            n_requests=s.stress_requests,
            n_warmup=min(s.warmup_requests, 50),
            seed=self.seed,
            recorded=self.recorded,
        )

    def _plan(self, load: LoadTrace) -> LoadPlan:
        last = max(float(load.trace.arrival_s[-1]), 0.0)
        return LoadPlan(
            load.load,
            load.trace,
            load.n_warmup,
            load.offered_per_s,
            last + self.spec.time_limit_s,
            load.max_context_tokens,
        )


def prepare_traffic(
    profile: Profile,
    options: TrafficOptions,
    *,
    seed: int,
    is_recorded_rate: bool,
    model_takes: tuple[str, int] | None = None,
) -> Traffic:
    """Read the tenants' traces, hold them to the context contract, cut the windows. Raises UserError in one line.

    `model_takes`: (model, most tokens of a request). What is longer in a packaged trace is left out and said, since
    nobody's own traffic is in it; in a trace of the user's it stays, for the setup to refuse."""
    _check_names(profile, options)
    notices: list[str] = []
    readings: dict[str, Reading] = {}
    parts: dict[str, Trace] = {}
    for tenant in profile.tenants:
        source = _source(tenant, options)
        if source not in readings:
            readings[source] = _read(source, options)
            own = Path(source).name if source not in NAMES else source
            notices += [f"{own}: {t}" for t in (*readings[source].notices, *_rejected_lines(readings[source]))]
        parts[tenant.name] = _spread(readings[source].trace, seed, notices)
    recorded = sum(p.rate_per_s or 0.0 for p in parts.values()) or None
    whole = _mixed(profile, parts, seed, is_recorded_rate, notices)
    if model_takes is not None and options.max_model_len is None:
        packaged = {t.name for t in profile.tenants if _source(t, options) in NAMES}
        whole, left_out = _takable(whole, packaged, *model_takes)
        notices += left_out
    contract = fit_context(whole, options.max_model_len, too_long=options.too_long)
    if model_takes is not None and contract.needed_tokens <= model_takes[1] < contract.max_model_len:
        longest = f"max_model_len {model_takes[1]:,}, all that the model takes (longest request"
        contract = replace(contract, max_model_len=model_takes[1], text=f"{longest} {contract.needed_tokens:,})")
    notices.append(contract.text)
    check_has_gaps(contract.trace, name := ", ".join(readings))
    spec = profile.load
    need = spec.measured_requests + spec.warmup_requests
    search, held_out = choose_windows(contract.trace, WINDOW_FACTOR * need, n_warmup=spec.warmup_requests)
    check_enough(len(search.trace), is_repeat_allowed=options.is_repeat_allowed, name=name)
    notices += _window_notices(search, held_out)
    return Traffic(
        name=name,
        recorded=contract.trace,
        search=search,
        held_out=held_out,
        shares=_shares(search.trace),
        recorded_per_s=recorded,
        max_model_len=contract.max_model_len,
        mean_tokens=_mean_tokens(search.trace),
        mean_tokens_of={t: _mean_tokens(_of(search.trace, i)) for i, t in enumerate(search.trace.tenants)},
        spec=spec,
        seed=seed,
        notices=tuple(notices),
    )


def _check_names(profile: Profile, options: TrafficOptions) -> None:
    known = [t.name for t in profile.tenants]
    for name in options.traces:
        if name and name not in known:
            raise UserError(
                f"--trace {name}=…: profile {profile.name} has no tenant {name!r}; it has {', '.join(known)}"
            )


def _source(tenant: Tenant, options: TrafficOptions) -> str:
    return options.traces.get(tenant.name) or options.traces.get("") or tenant.trace


def _takable(whole: Trace, packaged: Set[str], model: str, most_tokens: int) -> tuple[Trace, list[str]]:
    """Without the packaged requests that the model cannot take, and a line that names their share.

    Raises UserError when the traffic of a tenant is all of that kind."""
    tokens = whole.prompt_tokens.astype(np.int64) + whole.output_tokens
    is_packaged = np.isin(whole.tenant, [i for i, name in enumerate(whole.tenants) if name in packaged])
    is_out = is_packaged & (tokens > most_tokens)
    if not is_out.any():
        return whole, []
    for i, name in enumerate(whole.tenants):
        if is_out[whole.tenant == i].all():
            raise UserError(
                f"workload: every request of {name} is longer than the {most_tokens:,} tokens {model} takes"
            )
    share, n = float(is_out.mean()), int(is_out.sum())
    line = (
        f"{n:,} of {len(whole):,} requests of the packaged traffic ({share:.1%}) are longer than the {most_tokens:,}"
        f" tokens that {model} takes: dropped, so the figures are about the others"
    )
    return whole.take(np.flatnonzero(~is_out)), [line]


def _read(source: str, options: TrafficOptions) -> Reading:
    return open_trace(
        find_trace(source),
        time_unit=options.time_unit,
        strict=options.is_strict,
        max_bad_rows=options.max_bad_rows,
    )


def _rejected_lines(reading: Reading) -> list[str]:
    """Where the first rejected rows stand, so that they can be looked at."""
    shown = [f"line {r.line} ({r.reason})" for r in reading.rejected[:N_REJECTED_SHOWN]]
    more = f" and {reading.n_rejected - len(shown):,} more" if reading.n_rejected > len(shown) else ""
    return [f"rejected: {', '.join(shown)}{more}"] if shown else []


def _spread(trace: Trace, seed: int, notices: list[str]) -> Trace:
    spread, notice = spread_batches(trace, seed)
    if notice and notice not in notices:
        notices.append(notice)
    return spread


def _mixed(
    profile: Profile, parts: Mapping[str, Trace], seed: int, is_recorded_rate: bool, notices: list[str]
) -> Trace:
    if len(parts) == 1:
        name, trace = next(iter(parts.items()))
        return renamed(trace, name)
    shares = None if is_recorded_rate else {t.name: t.share for t in profile.tenants}
    mixed = mix(parts, shares, seed=seed)
    notices += mixed.notices
    return mixed.trace


def _window_notices(search: Window, held_out: Window | None) -> list[str]:
    held = held_out.text if held_out else "none: the trace is too short, so nothing can be confirmed on other traffic"
    return [f"searched window: {search.text}", f"held-out window: {held}"]


def _shorter(trace: Trace, max_tokens: int) -> Trace:
    return trace.take(np.flatnonzero(trace.prompt_tokens.astype(np.int64) + trace.output_tokens <= max_tokens))


def _cut(window: Window, max_tokens: int) -> Window:
    return replace(window, trace=_shorter(window.trace, max_tokens))


def _of(trace: Trace, tenant: int) -> Trace:
    return trace.take(np.flatnonzero(trace.tenant == tenant))


def _mean_tokens(trace: Trace) -> float:
    return float((trace.prompt_tokens.astype(np.int64) + trace.output_tokens).mean()) if len(trace) else 0.0


def _shares(trace: Trace) -> dict[str, float]:
    counts = np.bincount(trace.tenant, minlength=len(trace.tenants))
    return {name: float(n) / len(trace) for name, n in zip(trace.tenants, counts, strict=True) if n}
