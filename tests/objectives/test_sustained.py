from __future__ import annotations

import numpy as np
import pytest

from objectives.measurement import EngineSample
from objectives.sustained import sustainment
from optimizer.diagnosis.sustained import unsustained
from tests.measured import failed, phase, record, served_by_slots

OUTPUT_TOKENS = 211
SERVICE_S = 0.05 + 0.02 * (OUTPUT_TOKENS - 1)


def even_load(share: float, n_slots: int, span_s: float) -> float:
    """Violation of evenly spaced equal requests at `share` of the slots' capacity."""
    rate = share * n_slots / SERVICE_S
    arrivals = np.arange(int(rate * span_s)) / rate
    return unsustained(phase(served_by_slots(arrivals, [OUTPUT_TOKENS] * arrivals.size, n_slots)))


@pytest.mark.parametrize(("n_slots", "span_s"), [(8, 60), (8, 600), (32, 120), (256, 60)])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.8, 0.95, 1.0])
def test_requests_in_flight_at_the_end_are_no_overload(share: float, n_slots: int, span_s: float) -> None:
    assert even_load(share, n_slots, span_s) <= 0


@pytest.mark.parametrize(("n_slots", "span_s"), [(8, 60), (8, 600), (32, 60), (32, 120), (256, 60)])
def test_ten_percent_too_much_is_seen_and_more_is_worse(n_slots: int, span_s: float) -> None:
    values = [even_load(share, n_slots, span_s) for share in (1.1, 1.5, 2.0, 4.0)]
    assert values[0] > 0
    assert values == sorted(values)
    assert 0.6 < values[-1] <= 1


def poisson(share: float, n_slots: int, seed: int, span_s: float = 120, burstiness: float = 1.0) -> float:
    rng = np.random.default_rng(seed)
    rate = share * n_slots / SERVICE_S
    gaps = rng.gamma(1 / burstiness, burstiness / rate, int(rate * span_s))
    outputs = np.maximum(1, rng.lognormal(np.log(OUTPUT_TOKENS) - 0.32, 0.8, gaps.size)).astype(int)
    return unsustained(phase(served_by_slots(np.cumsum(gaps), outputs, n_slots)))


@pytest.mark.parametrize("burstiness", [1.0, 4.0])
def test_random_arrivals_with_heavy_tails(burstiness: float) -> None:
    healthy = [poisson(0.6, 32, seed, burstiness=burstiness) > 0 for seed in range(20)]
    overloaded = [poisson(1.3, 32, seed, burstiness=burstiness) > 0 for seed in range(20)]
    assert sum(healthy) <= 1
    assert sum(overloaded) >= 18


def test_a_burst_that_is_worked_off_is_no_overload() -> None:
    arrivals = np.sort(np.concatenate([np.arange(0, 120, 2.0), np.full(25, 60.0)]))
    assert unsustained(phase(served_by_slots(arrivals, [OUTPUT_TOKENS] * arrivals.size, 8))) <= 0


def test_long_prompts_without_a_queue_are_no_overload() -> None:
    """Prefills of 12 s in a window of 60 s: served at once, each on its own slot."""
    records = [record(t, t + 12.0 if i % 3 else t + 0.2, [0.02] * 50, prompt_tokens=60_000 if i % 3 else 1000)
               for i, t in enumerate(np.arange(0, 60, 0.5))]  # fmt: skip
    assert unsustained(phase(records)) <= 0


def test_answers_longer_than_the_window_are_judged_by_their_start() -> None:
    arrivals = np.arange(0, 60, 0.5)
    fine = phase(served_by_slots(arrivals, [5000] * arrivals.size, 200))
    stuck = phase(served_by_slots(arrivals, [5000] * arrivals.size, 60))
    assert unsustained(fine) <= 0
    assert unsustained(stuck) > 0.1


def test_one_starved_tenant_is_not_hidden_by_the_others() -> None:
    chat = served_by_slots(np.arange(0, 60, 0.1), [20] * 600, 16, tenant="chat")
    batch = served_by_slots(np.arange(0, 60, 2.0), [OUTPUT_TOKENS] * 30, 1, tenant="batch")
    judged = sustainment(phase([*chat, *batch]))
    assert judged is not None and judged.value > 0.3
    assert judged.tenant == "batch" and judged.text.startswith("tenant batch: not sustainable")


def test_a_rising_gauge_counts_where_the_client_sees_nothing() -> None:
    """Preempted requests wait with their first token already sent."""
    arrivals = np.arange(0, 60, 0.25)
    records = served_by_slots(arrivals, [20] * arrivals.size, 64)
    rising = [EngineSample(t, "a", 10, 0.8 * t, 1.0) for t in np.arange(0, 60, 0.5)]
    flat = [EngineSample(t, "a", 10, 12.0, 1.0) for t in np.arange(0, 60, 0.5)]
    assert unsustained(phase(records, samples=tuple(rising))) > 0
    assert unsustained(phase(records, samples=tuple(flat))) <= 0


def test_an_unread_gauge_falls_back_to_the_client() -> None:
    arrivals = np.arange(0, 60, 0.25)
    records = served_by_slots(arrivals, [20] * arrivals.size, 64)
    unread = tuple(EngineSample(t, "a", None, None, None) for t in np.arange(0, 60, 0.5))
    assert unsustained(phase(records, samples=unread)) <= 0


def test_over_saturation_names_the_capacity() -> None:  # case TOOL-11
    n_slots, service_s = 13, 13 / 3.1
    arrivals = np.arange(0, 120, 1 / 5.0)
    token_s = (service_s - 0.05) / (OUTPUT_TOKENS - 1)
    judged = sustainment(phase(served_by_slots(arrivals, [OUTPUT_TOKENS] * arrivals.size, n_slots, token_s=token_s)))
    assert judged is not None and judged.value == pytest.approx(1 - 3.1 / 5.0, abs=0.06)
    assert judged.text.startswith("not sustainable at 5 req/s, capacity ~3.11 req/s")
    assert judged.waiting_slope_per_s == pytest.approx(1.9, abs=0.2)


def test_little_s_law_explains_what_is_in_flight() -> None:  # case TOOL-11
    arrivals = np.arange(0, 600, 2.0)
    judged = sustainment(phase(served_by_slots(arrivals, [1400] * arrivals.size, 64)))
    assert judged is not None and judged.is_sustained
    assert judged.mean_in_flight == pytest.approx(0.5 * (0.05 + 0.02 * 1399), rel=0.02)


def test_nothing_answered_is_the_worst() -> None:
    assert unsustained(phase([failed(t) for t in np.arange(0, 60, 1.0)])) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("arrivals", [[], [0.0], [0.0, 0.0, 0.0]])
def test_without_a_span_nothing_is_known_and_unknown_is_not_met(arrivals: list[float]) -> None:  # case EDGE-06
    one = phase([record(t, t + 0.1, [0.02] * 5) for t in arrivals])
    assert sustainment(one) is None
    assert unsustained(one) == 1.0
