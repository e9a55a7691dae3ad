"""Traffic: tenants' traces read, held to a context contract, cut into windows that share no row; loads at a rate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from objectives.measurement import LOADS
from optimizer.errors import UserError
from optimizer.profiles.loader import load_profile
from optimizer.profiles.profile import Profile
from optimizer.study.traffic import Traffic, TrafficOptions, prepare_traffic
from optimizer.workload.trace import Trace
from tests.small_study import azure_rows, mooncake_rows, traffic, write_profile


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    return load_profile(write_profile(tmp_path_factory.mktemp("small")))


@pytest.fixture(scope="module")
def shared() -> Profile:
    return load_profile("multitenant")


def prepared(profile: Profile, *, recorded: bool = False, seed: int = 0, **options: object) -> Traffic:
    return prepare_traffic(profile, TrafficOptions(**options), seed=seed, is_recorded_rate=recorded)  # type: ignore[arg-type]


def rows_of(trace: Trace) -> set[tuple[int, int, int]]:
    """Lengths and the gap before each row: enough to tell rows of a window apart."""
    gaps = np.diff(trace.arrival_s, prepend=0.0)
    return {(int(p), int(o), round(g * 1e6)) for p, o, g in zip(trace.prompt_tokens, trace.output_tokens, gaps, strict=True)}  # fmt: skip


def test_the_packaged_trace_of_the_profile_is_windowed_and_said(profile: Profile) -> None:
    found = prepared(profile)
    assert found.name == "azure-conv" and found.shares == {"users": 1.0}
    assert found.held_out is not None
    searched, held = found.search, found.held_out
    assert searched.stop_row <= held.first_row or held.stop_row <= searched.first_row
    assert len(rows_of(searched.trace) & rows_of(held.trace)) <= 3
    assert any(n.startswith("azure-conv: time unit: ") for n in found.notices)  # case EDGE-02
    assert any(n.startswith("searched window: rows ") for n in found.notices)
    assert found.longest_tokens == 14_089 and found.max_model_len >= found.longest_tokens
    assert found.peak_per_s is not None and found.recorded_per_s is not None
    assert found.peak_per_s > found.recorded_per_s > 1


def test_every_load_is_the_same_for_every_trial_and_other_for_another_seed(profile: Profile) -> None:
    one, same, other = (prepared(profile, seed=s) for s in (0, 0, 1))
    for name in LOADS:
        a, b, c = (t.loads(1.3, (name,))[0] for t in (one, same, other))
        assert a.load == name and np.array_equal(a.trace.arrival_s, b.trace.arrival_s)
        assert np.array_equal(a.trace.prompt_tokens, b.trace.prompt_tokens)
        assert name == "steady" or not np.array_equal(a.trace.prompt_tokens, c.trace.prompt_tokens)
    assert one.fingerprint == same.fingerprint


def test_the_steady_load_arrives_at_the_rate_asked_for(profile: Profile) -> None:
    found = prepared(profile)
    for rate in (0.05, 0.9, 5.2, 20.0):  # case TOOL-06
        plan = found.loads(rate, ("steady",))[0]
        assert plan.offered_per_s == pytest.approx(rate, rel=0.05)
        assert len(plan.trace) - plan.n_warmup == profile.load.measured_requests


def test_the_held_out_window_gives_other_rows(profile: Profile) -> None:
    found = prepared(profile)
    here, there = found.loads(2.0, ("steady",))[0], found.loads(2.0, ("steady",), is_held_out=True)[0]
    assert not np.array_equal(here.trace.prompt_tokens, there.trace.prompt_tokens)
    assert here.offered_per_s == pytest.approx(there.offered_per_s, rel=0.1)


def test_a_trace_too_short_for_a_held_out_window_says_that_nothing_can_be_confirmed_on_other_traffic(
    profile: Profile, tmp_path: Path
) -> None:
    file = tmp_path / "short.csv"
    file.write_text(azure_rows(*traffic(300)))
    found = prepared(profile, traces={"": str(file)})
    assert found.held_out is None
    assert any("nothing can be confirmed on other traffic" in n for n in found.notices)
    with pytest.raises(UserError, match="too short for a held-out window"):
        found.loads(1.0, ("steady",), is_held_out=True)


def test_too_few_requests_are_refused_unless_their_repetition_is_asked_for(profile: Profile, tmp_path: Path) -> None:
    file = tmp_path / "few.csv"
    file.write_text(azure_rows(*traffic(50)))
    with pytest.raises(UserError, match=r"few.csv: 50 usable requests, .*at least 200"):  # case EDGE-06
        prepared(profile, traces={"": str(file)})
    repeated = prepared(profile, traces={"": str(file)}, is_repeat_allowed=True)
    assert len(repeated.loads(1.0, ("steady",))[0].trace) == 400


def test_one_token_answers_leave_no_inter_token_latency(profile: Profile, tmp_path: Path) -> None:
    arrival, prompt, output = traffic(400)
    file = tmp_path / "one.csv"
    file.write_text(azure_rows(arrival, prompt, np.ones_like(output)))
    with pytest.raises(UserError, match=r"one.csv: every output is 1 token"):  # case EDGE-03
        prepared(profile, traces={"": str(file)})


def test_a_cap_on_the_context_drops_requests_and_says_which_share(profile: Profile) -> None:
    capped = prepared(profile, max_model_len=4096)
    assert capped.longest_tokens <= 4096 == capped.max_model_len
    dropped = next(n for n in capped.notices if "4,096" in n or "4096" in n)  # case EDGE-04
    assert "%" in dropped
    assert len(capped.recorded) < len(prepared(profile).recorded)


def test_turning_long_requests_away_shortens_every_window(profile: Profile) -> None:
    found = prepared(profile)
    shorter = found.without_longer(2000)
    assert shorter.longest_tokens <= 2000 < found.longest_tokens
    assert shorter.held_out is not None
    for load in (*shorter.loads(1.0, LOADS), *shorter.loads(1.0, LOADS, is_held_out=True)):
        assert load.max_context_tokens <= 2000


def test_tenants_are_mixed_at_their_shares_or_as_recorded(shared: Profile) -> None:
    mixed = prepared(shared)
    assert mixed.shares["chat"] == pytest.approx(0.6, abs=0.03)
    assert sum(mixed.shares.values()) == pytest.approx(1.0)
    assert mixed.mean_tokens_of["batch"] > mixed.mean_tokens_of["chat"] > 0
    recorded = prepared(shared, recorded=True)
    assert recorded.recorded_per_s == pytest.approx(mixed.recorded_per_s)
    assert recorded.shares != mixed.shares


def test_a_tenants_own_file_wins_over_the_one_for_all(shared: Profile, tmp_path: Path) -> None:
    for name, prompt in (("all", 400), ("own", 900)):
        (tmp_path / f"{name}.csv").write_text(azure_rows(*traffic(900, prompt=prompt, spread=0.1)))
    traces = {"": str(tmp_path / "all.csv"), "batch": str(tmp_path / "own.csv")}
    found = prepared(shared, traces=traces)
    assert found.mean_tokens_of["batch"] > found.mean_tokens_of["chat"] + 300


def test_an_unknown_tenant_is_named_with_those_there_are(shared: Profile) -> None:
    with pytest.raises(
        UserError, match=r"--trace bacth=…: profile multitenant has no tenant 'bacth'; it has chat, batch"
    ):
        prepared(shared, traces={"bacth": "x.csv"})


def test_mooncake_batches_are_spread_and_its_shared_block_is_kept(profile: Profile, tmp_path: Path) -> None:
    arrival, prompt, output = traffic(800, prompt=2000)
    file = tmp_path / "mc.jsonl"
    file.write_text(mooncake_rows(np.floor(arrival / 3) * 3, prompt, output))
    found = prepared(profile, traces={"": str(file)})
    notices = " | ".join(found.notices)
    assert "arrivals are recorded in batches every 3 s" in notices and "prefix blocks of 512 tokens" in notices
    assert found.search.trace.prefix_ids is not None
    assert np.unique(found.search.trace.arrival_s).size == len(found.search.trace)


def test_the_same_file_for_two_tenants_is_read_once(shared: Profile, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(azure_rows(*traffic(900)))
    notices = prepared(shared, traces={"": str(file)}).notices
    assert len([n for n in notices if "time unit" in n]) == 1
    assert len(set(notices)) == len(notices)


def test_what_decides_the_rows_decides_the_fingerprint(profile: Profile, tmp_path: Path) -> None:
    arrival, prompt, output = traffic(500)
    (tmp_path / "a.csv").write_text(azure_rows(arrival, prompt, output))
    (tmp_path / "copy.csv").write_text(azure_rows(arrival, prompt, output))
    prompt[3] += 1
    (tmp_path / "b.csv").write_text(azure_rows(arrival, prompt, output))
    prints = [prepared(profile, traces={"": str(tmp_path / f"{n}.csv")}).fingerprint for n in ("a", "copy", "b")]
    assert prints[0] == prints[1] != prints[2]


def test_a_load_that_cannot_be_laid_out_is_refused(profile: Profile) -> None:
    with pytest.raises(UserError, match="at most 10000 x"):
        prepared(profile).loads(1e9, ("steady",))
    huge = replace(prepared(profile), spec=replace(profile.load, measured_requests=30_000_000))
    with pytest.raises(UserError, match="at most 20,000,000 can be laid out"):
        huge.loads(1.0, ("steady",))
