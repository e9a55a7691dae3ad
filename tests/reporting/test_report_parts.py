"""What the report works out by itself: intervals, words, importance against chance, interactions, thinning."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest

from objectives.comparison import compare
from objectives.objective import Objective
from optimizer.reporting.report import timeline_series
from optimizer.reporting.report.answer import answer_of
from optimizer.reporting.report.chart import Chart, log_ticks, thinned
from optimizer.reporting.report.commands import study_commands
from optimizer.reporting.report.importance import importance_of, importance_sentences
from optimizer.reporting.report.interactions import interaction_sentences, interactions_of, n_needed
from optimizer.reporting.report.picks import Pick, pick_of
from optimizer.reporting.report.source import Source, read_source
from optimizer.reporting.report.table import Knob, Table, knobs_of, table_of
from optimizer.reporting.report.words import (
    capital,
    duration,
    interval_of,
    limit_text,
    name_of,
    number,
    reading,
    span,
    with_names,
)
from optimizer.reporting.tenants import tenant_lines, tenant_texts
from tests.reporting.conftest import with_trials

UP, DOWN = Objective("saturation_output_tokens_per_s_per_gpu", "maximize"), Objective("steady_itl_p99_ms", "minimize")


@pytest.mark.parametrize("value", [60.0, 88.0, 95.0, 99.9, 100.0, 104.0, 105.5, 130.0, 250.0])
@pytest.mark.parametrize("floor", [0.005, 0.05, 0.17])
@pytest.mark.parametrize("objective", [UP, DOWN])
def test_an_interval_holds_nothing_exactly_where_the_difference_is_a_tie(
    value: float, floor: float, objective: Objective
) -> None:
    delta = compare([value], [100.0], [objective], [floor]).deltas[0]
    interval = interval_of(delta)
    assert interval is not None
    low, high = interval
    assert low <= value / 100 - 1 <= high
    assert (low <= 1e-12 and high >= -1e-12) == (delta.verdict == "tie")


def test_metrics_are_said_as_people_say_them() -> None:
    assert name_of("steady_stall_p99_ms") == "P99 longest gap (steady)"
    assert name_of("chat:steady_ttft_p99_ms") == "chat: P99 TTFT (steady)"
    assert reading("steady_ttft_p99_ms", 69977.0) == "70 s"
    assert reading("stress_min_free_memory_bytes", 2.0**31) == "2 GiB"
    assert reading("steady_worst_ttft_ratio", 1.013) == "1.01 × target"
    assert reading("steady_itl_p99_ms", None) == "not measured"
    assert limit_text("steady_ttft_p99_ms <= 2533.8") == "P99 TTFT (steady) at most 2,534 ms"
    assert limit_text("stress_min_free_memory_bytes >= 2.68435e+08").endswith("at least 0.25 GiB")
    assert limit_text("unsustained") == "keeps up with the rate R"
    assert with_names("the gain in steady_ttft_p99_ms is gone") == "the gain in P99 TTFT (steady) is gone"
    assert number(999.7) == "1,000"
    assert span(-0.494, -0.413) == "−49.4 to −41.3 %"
    assert capital("vLLM defaults") == "vLLM defaults"
    assert [duration(s) for s in (4.5, 600, 36000)] == ["4.5 s", "10 min", "10 h"]


def planted(n: int, *, product: float = 0.0, effect: float = 1.0) -> Table:
    """Six knobs of nine levels; the first one's effect is `effect`, that of the second times the third `product`."""
    rng = np.random.default_rng(7)
    levels = rng.integers(0, 9, (n, 6))
    x = (levels - 4) / 4
    logs = effect * x[:, 0] + product * x[:, 1] * x[:, 2] + rng.normal(0, 0.1, n)
    knobs = tuple(Knob(f"k{i}", tuple(map(str, range(9)))) for i in range(6))
    return Table(knobs, (DOWN,), levels, 100 * np.exp(logs)[:, None], np.ones(n, bool))


def test_the_knob_that_decides_is_found_and_the_others_are_called_chance() -> None:
    found = importance_of(planted(120))
    assert found is not None
    assert found.deciding["steady_itl_p99_ms"][0] == "k0"
    assert len(found.deciding["steady_itl_p99_ms"]) <= 2
    assert found.order[0] == "k0"


def test_where_nothing_decides_little_is_called_more_than_chance() -> None:
    found = importance_of(planted(120, effect=0.0))
    assert found is not None
    assert len(found.deciding["steady_itl_p99_ms"]) <= 2


def test_a_handful_of_trials_tells_nothing_and_that_is_said() -> None:
    few = planted(12)
    assert importance_of(few) is None
    assert "cannot be told with fewer than 20" in importance_sentences(None, few)[0]
    assert interactions_of(few) is None
    assert f"{n_needed(few)} are needed for 6 knobs" in interaction_sentences(None, few)[0]


def test_two_knobs_that_depend_on_each_other_are_found() -> None:
    (found,) = interactions_of(planted(120, product=0.8)) or ()
    assert found.knobs == ("k1", "k2")
    assert found.is_beyond_chance
    assert 0.1 < found.share < 0.6


def test_an_interaction_too_small_to_matter_is_not_called_one() -> None:
    assert not any(i.is_beyond_chance for i in interactions_of(planted(600, product=0.12)) or ())


def test_effects_that_add_up_are_no_interaction() -> None:
    (found,) = interactions_of(planted(120)) or ()
    assert not found.is_beyond_chance
    assert "add up" in interaction_sentences([found], planted(120))[0]


def test_a_knob_that_never_moved_is_no_reason_to_fail() -> None:
    table = planted(60)
    levels = table.levels.copy()
    levels[:, 3] = 5
    still = replace(table, levels=levels)
    assert importance_of(still) is not None
    assert interactions_of(still) is not None
    assert interactions_of(replace(still, values=np.full((60, 1), 5.0))) == []


def test_the_study_is_a_table_without_its_baselines(small_source: Source) -> None:
    table = table_of(small_source)
    assert len(table) <= sum(t.values is not None for t in small_source.trials)
    assert {k.name for k in knobs_of(small_source)} <= set(small_source.manifest.space)
    own = [t for t in small_source.trials if t.values is not None and "baseline" not in t.attributes]
    assert len(table) == len(own)


def test_a_chart_is_text_that_no_browser_leaves_early() -> None:
    figure = {"data": [{"type": "scatter", "x": [0.123456789], "y": [float("nan")], "name": "</script><!--&"}]}
    text = str(Chart("key", "", figure).json)
    assert not set("<>&") & set(text)
    body = json.loads(text)
    assert body["data"][0]["name"] == "</script><!--&"
    assert body["data"][0]["x"] == [0.12346] and body["data"][0]["y"] == [None]
    go.Figure(**body)


def test_thinning_keeps_both_ends_and_the_peak() -> None:
    kept = thinned(10_000, 50)
    assert (kept[0], kept[-1]) == (0, 9_999) and len(kept) <= 50
    assert thinned(3, 50) == [0, 1, 2]
    time = np.arange(5000.0)
    values = np.sin(time)
    values[2345] = 99.0
    _, shown = timeline_series._highest(time, values, 100)
    assert len(shown) <= 100 and max(v for v in shown if v is not None) == 99.0


@pytest.mark.parametrize(("low", "high"), [(70.0, 40_000.0), (30.0, 300.0), (12.0, 100.0), (0.5, 4.6)])
def test_an_axis_by_ratio_has_a_few_round_numbers(low: float, high: float) -> None:
    ticks = log_ticks(low, high)["tickvals"]
    assert 3 <= len(ticks) <= 9
    assert all(low <= t <= high for t in ticks)


def test_where_the_reference_is_as_good_nothing_else_is_recommended(small_source: Source) -> None:
    reference = small_source.front.reference
    assert reference is not None and reference.values is not None
    trials = [
        t if t.values is None or t.number == reference.trial
        else replace(t, values=tuple(v * 1.001 for v in reference.values), violations={})
        for t in small_source.trials
    ]  # fmt: skip
    answer = answer_of(with_trials(small_source, trials))
    assert answer.headline.startswith("Keep vLLM defaults")


def test_a_reference_that_misses_a_limit_is_called_out(small_source: Source) -> None:
    reference = small_source.front.reference
    assert reference is not None
    missed = {"stress_preemptions_per_request <= 0.3": 2.0}
    trials = [replace(t, violations=missed) if t.number == reference.trial else t for t in small_source.trials]
    answer = answer_of(with_trials(small_source, trials))
    if answer.picks:
        assert answer.headline.startswith("Start with trial")
        assert any("misses a limit" in s for s in answer.sentences)


def test_commands_hold_what_was_typed(small_source: Source) -> None:
    texts = [c.text for c in study_commands(small_source)]
    assert any("optimizer.run" in t and "-again'" in t for t in texts)
    assert all(str(small_source.folder.path) in t for t in texts[1:])


def test_trials_behind_a_password_are_named_not_read(small_source: Source) -> None:
    manifest = json.loads((small_source.folder.path / "manifest.json").read_text())
    stored = small_source.folder.path / "manifest.json"
    before = stored.read_text()
    stored.write_text(json.dumps(manifest | {"storage": "postgresql://me:***@db/optuna"}))
    try:
        source = read_source(small_source.folder)
    finally:
        stored.write_text(before)
    assert "give --storage" in source.remarks[0]
    assert source.storage is None
    assert {t.number for t in source.trials} == {t.number for t in small_source.trials}


def reported_pick(source: Source, verdicts: str) -> Pick:
    """The first pick, as if it were better in everything and `verdicts` said how each objective compared again."""
    reference = source.front.reference
    assert reference is not None and reference.values is not None
    objectives = source.terms.objectives
    better = tuple(
        v * (1.5 if o.direction == "maximize" else 0.5) for v, o in zip(reference.values, objectives, strict=True)
    )
    again = dict(zip((o.metric for o in objectives), verdicts.split(), strict=True))
    member = replace(source.picked[0], values=better, is_confirmed=True, note="held", again=again)  # type: ignore[arg-type]
    others = [m for m in source.front.trials if m.trial != member.trial]
    return pick_of(member, replace(source, front=replace(source.front, trials=(*others, member))))


def test_a_gain_is_called_confirmed_only_where_it_was_seen_again(small_source: Source) -> None:
    whole, part = (reported_pick(small_source, text) for text in ("better better better", "better tie better"))
    assert whole.unseen == "" and not any(f.is_unseen for f in whole.figures)
    assert part.unseen == f"the gain in {name_of(small_source.terms.objectives[1].metric)} was not seen again"
    assert [f.is_unseen for f in part.figures] == [False, True, False]


def test_a_pick_whose_figure_another_member_betters_does_not_claim_the_most(small_source: Source) -> None:
    pick = next(m for m in small_source.front.members if m.picks and m.values is not None)
    rival = replace(pick, trial=99, picks=(), values=tuple(v * 1.001 for v in pick.values or ()))
    named = replace(pick, picks=("throughput",))
    others = [m for m in small_source.front.trials if not m.is_on_front and m.trial != pick.trial]
    found = pick_of(named, replace(small_source, front=replace(small_source.front, trials=(*others, named, rival))))
    assert "≈ most throughput" in found.title.lower() and found.meaning.startswith("is among those that serve the most")


def test_every_tenant_has_its_own_figures_beside_its_targets(shared_source: Source) -> None:
    assert shared_source.calibration is not None
    texts = dict(tenant_texts(
        shared_source.front.reference or shared_source.shown[0], shared_source.terms.objectives,
        shared_source.calibration.targets,
    ))  # fmt: skip
    assert set(texts) == {t.name for t in shared_source.profile.tenants} and len(texts) == 2
    assert all("TTFT" in t and "ITL" in t and "(target " in t for t in texts.values())
    (line,) = tenant_lines(replace(shared_source.front, trials=(shared_source.front.trials[0],)), shared_source.calibration.targets)  # fmt: skip
    assert line.startswith("tenants of trial 0 (")
