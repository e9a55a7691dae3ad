"""optuna-dashboard on a study of ours: what its own API says of limits, notes and plots."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from objectives.hypervolume import Axes
from objectives.objective import Scorecard
from optimizer.study.board_labels import CENTRE, _seen, place_names
from optimizer.study.board_plots import MAX_POINTS, front_2d, front_3d
from optimizer.study.board_text import About, escape, launch_text, many_objectives, standing_of, study_note, trial_note
from optimizer.study.dashboard import MAX_SHARE, StudyBoard, dashboard_command
from optimizer.study.record import StudyRecord
from tests.study.recording import CONSTRAINTS, INFEASIBLE, LABELS, MEASURED, OBJECTIVES, PARAMETERS, STOPPED, card
from tests.study.served import get

ABOUT = About(
    "demo <study> | one",
    {"model": "Qwen3-8B", "GPU": "A100-80"},
    {CONSTRAINTS[0]: "peaks must not thrash"},
    ("python -m optimizer.export demo",),
    is_simulated=True,
    n_trials=6,
    axes=Axes(OBJECTIVES, (1000.0, 200.0, 20.0)),
)
FRONT = [0, 1]


@pytest.fixture
def filled(record: StudyRecord) -> StudyRecord:
    """Two on the front, one beaten, one that beats all but misses a limit, one that did not start, one stopped."""
    told: list[tuple[Any, Scorecard, str]] = [
        (MEASURED, card((1200.0, 250.0, 20.0)), ""),
        (MEASURED, card((1000.0, 150.0, 15.0)), ""),
        (MEASURED, card((900.0, 260.0, 21.0)), ""),
        (MEASURED, card((2000.0, 100.0, 10.0), preemptions=3.1), f"misses {CONSTRAINTS[0]} by 310%"),
        (INFEASIBLE, card(None, boot=0.4), "weights_do_not_fit at load: out of memory"),
        (STOPPED, card(None, unsustained=0.7), "serves 30 % of R"),
    ]
    for i, (outcome, scorecard, reason) in enumerate(told):
        number = record.open_trial({**PARAMETERS, "max_num_seqs": 64 + i}, stage="fast")
        record.close(number, outcome, scorecard, reason=reason, columns={"engine_s": 1.5})
    return record


def test_the_api_marks_infeasible_trials(filled: StudyRecord) -> None:
    study = get(filled, f"/api/studies/{filled.study._study_id}")
    constraints = [t["constraints"] for t in study["trials"]]
    assert all(len(c) == len(CONSTRAINTS) for c in constraints)
    assert [any(v > 0 for v in c) for c in constraints] == [False, False, False, True, True, True]
    assert [t["state"] for t in study["trials"]] == ["Complete"] * 4 + ["Pruned"] * 2
    assert study["objective_names"] == list(LABELS)
    shown = {p["name"] for p in study["trials"][0]["params"]}
    assert shown == set(PARAMETERS), "parameters under vLLM's names"
    attributes = {a["key"] for a in study["trials"][4]["user_attrs"]}
    assert {"outcome", "reason", "failure", "stage", "engine_s"} <= attributes


def test_both_readers_count_every_constraint_once(filled: StudyRecord) -> None:
    stored = filled.study.get_trials()[3]
    assert list(stored.constraints.values()) == [3.1, -0.5, -0.5]
    assert [t.number for t in filled.study.best_trials] == FRONT


def test_notes_and_plots_are_served(filled: StudyRecord) -> None:
    board = StudyBoard(filled, ABOUT)
    for number in range(6):
        board.after_trial(number)
    board.finish()
    study = get(filled, f"/api/studies/{filled.study._study_id}")
    assert "demo &lt;study> \\| one" in study["note"]["body"]
    assert {a["key"]: a["value"] for a in study["user_attrs"]} == ABOUT.facts
    notes = [t["note"]["body"] for t in study["trials"]]
    assert "On the front" in notes[0] and "On the front" in notes[1]
    assert not any("On the front" in note for note in notes[2:])
    assert "infeasible (weights_do_not_fit)" in notes[4] and "out of memory" in notes[4]
    assert CONSTRAINTS[0] in notes[3] and "310%" in notes[3]
    plots = {p["id"]: json.loads(p["graph_object"]) for p in study["plotly_graph_objects"]}
    assert set(plots) == {"front-3d", "front-2d-1", "front-2d-2"}
    front = {trace["name"]: trace for trace in plots["front-3d"]["data"]}["front"]
    assert front["type"] == "scatter3d"
    assert list(zip(front["x"], front["y"], front["z"], strict=True)) == [(1200.0, 250.0, 20.0), (1000.0, 150.0, 15.0)]


def test_the_note_shows_the_true_front_and_never_the_best_that_misses_a_limit(filled: StudyRecord) -> None:
    standing = standing_of(filled.trials(), filled.front(), filled.terms, ABOUT)
    note = study_note(standing, filled.terms, ABOUT)
    rows = [line for line in note.splitlines() if line.startswith("| **")]
    assert [row.split("**")[1] for row in rows] == ["0", "1"]
    assert "most throughput" in note and "knee" in note and "Simulated" in note
    assert "6 of 6 trials done: 3 keep every limit, 1 did not start or died, 2 are on the front" in note
    assert "peaks must not thrash" in note and "optimizer.export demo" in note
    failures = note[note.index("## Failures") : note.index("## Limits")]
    assert "`weights_do_not_fit`" in failures and "| 4\N{EM SPACE} |" in failures and "out of memory" in failures


def test_without_a_feasible_trial_the_note_says_what_stands_in_the_way(record: StudyRecord) -> None:
    # case OPT-01
    board = StudyBoard(record, ABOUT)
    board.refresh()
    for violation in (3.0, 0.5):
        number = record.open_trial(PARAMETERS)
        record.close(number, MEASURED, card(preemptions=violation))
        board.after_trial(number)
    board.finish()
    note = get(record, f"/api/studies/{record.study._study_id}")["note"]["body"]
    assert "No feasible configuration yet" in note
    assert note.index("**1**") < note.index("**0**") and "50%" in note


def test_a_front_that_moved_on_is_not_claimed_by_old_notes(filled: StudyRecord) -> None:
    StudyBoard(filled, ABOUT).finish()
    number = filled.open_trial(PARAMETERS)
    filled.close(number, MEASURED, card((1300.0, 140.0, 14.0)))
    StudyBoard(filled, ABOUT).finish()
    study = get(filled, f"/api/studies/{filled.study._study_id}")
    marked = [t["trial_id"] for t in study["trials"] if "On the front" in t["note"]["body"]]
    assert marked == [study["trials"][number]["trial_id"]]


def test_refreshes_take_a_small_share_of_the_time(filled: StudyRecord) -> None:
    board = StudyBoard(filled, ABOUT)
    board.refresh()
    cost_s = board.spent_s
    for _ in range(3):
        board.after_trial(0)
    assert board.spent_s < cost_s / MAX_SHARE
    assert board.spent_s - cost_s < 3 * cost_s + 0.5, "notes only: the next refresh is not due yet"


def test_launch_text_is_one_server_a_paragraph_in_vllm_flags() -> None:
    two = {"chat.max_num_seqs": 8, "batch.max_num_seqs": 16, "batch.enable_prefix_caching": False, "batch.x": "a b"}
    assert (
        launch_text(two)
        == "# chat\n--max-num-seqs 8\n\n# batch\n--max-num-seqs 16\n--no-enable-prefix-caching\n--x 'a b'"
    )


def test_the_command_names_the_files_and_no_password() -> None:
    typed = dashboard_command("postgresql+psycopg://me:secret@host/db", "studies/two words/artifacts")
    assert typed == (
        "optuna-dashboard 'postgresql+psycopg://me:***@host/db' --artifact-dir 'studies/two words/artifacts'"
    )


def test_many_objectives_are_warned_about() -> None:
    # case EDGE-17
    assert many_objectives(3) is None
    assert "most trials are on the front" in (many_objectives(6) or "")


def test_markdown_is_escaped() -> None:
    assert escape("a|b\n<script> x <= 1") == "a\\|b &lt;script> x <= 1"


def test_figures_stay_small(filled: StudyRecord) -> None:
    trials = filled.trials()[:1] * 3000
    standing = standing_of(trials, (filled.trial(1),), filled.terms, ABOUT)
    for figure in (front_3d(standing, filled.terms, "x"), front_2d(standing, filled.terms, "x", 1)):
        assert sum(len(trace.x) for trace in figure.data) <= MAX_POINTS + 1
        assert len(figure.to_json()) < 120_000


def test_trial_notes_speak_of_the_front_only_when_it_is_final(filled: StudyRecord) -> None:
    assert "front" not in trial_note(filled.trial(0), filled.terms)
    assert "running" in trial_note(filled.trial(filled.open_trial(PARAMETERS)), filled.terms)


def test_names_of_near_points_do_not_lie_on_each_other() -> None:
    ranges = [{"range": [0.0, 100.0]}, {"type": "log", "range": [0.0, 2.0]}]
    points = [(50.0, 10.0), (51.0, 10.5), (52.0, 9.5), (99.0, 99.0)]
    placed = place_names(["knee and more", "lowest TTFT", "lowest ITL", "corner"], points, ranges, {"x": 0, "y": 1})
    assert placed[0]["y"] == 1.0, "a logarithm on an axis by ratio"
    offsets = [(a["ax"], a["ay"]) for a in placed]
    assert len(set(offsets[:3])) == 3
    assert offsets[3][1] > 0, "not above the top"


def test_names_stand_where_the_camera_sees_their_points() -> None:
    ranges = [{"range": [0.0, 1.0]}] * 3
    axes = {"x": 0, "y": 1, "z": 2}
    seen = _seen((0.5, 0.5, 0.5 + CENTRE[2]))
    assert seen == pytest.approx((0.5, 0.5)), "it looks at its centre"
    assert _seen((0.9, 0.5, 0.5))[0] > seen[0] and _seen((0.5, 0.5, 0.9))[1] > seen[1]
    near = [(0.1, 0.2, 0.3), (0.1, 0.2, 0.31), (0.11, 0.2, 0.3)]
    placed = place_names(["most throughput, lowest ITL", "knee", "lowest TTFT"], near, ranges, axes)
    assert len({(a["ax"], a["ay"]) for a in placed}) == 3


def test_the_end_of_a_study_says_of_the_front_what_the_answer_says(filled: StudyRecord) -> None:
    about = replace(
        ABOUT, front=(0, 1, 2), picked={0: "knee"}, confirmed={0: "in part: the gain in X is gone", 1: "no", 2: "-"}
    )
    standing = standing_of(filled.trials(), filled.front(), filled.terms, about)
    note = study_note(standing, filled.terms, about)
    assert "3 are on the front" in note
    rows = {line.split("**")[1]: line for line in note.splitlines() if line.startswith("| **")}
    assert {trial: row.split("|")[-2].strip() for trial, row in rows.items()} == {
        "0": "in part: the gain in X is gone", "1": "no", "2": "-",
    }  # fmt: skip
    assert "Confirmed *-*: not measured again" in note
    notes = [trial_note(filled.trial(n), filled.terms, standing) for n in (0, 1)]
    assert "Confirmed in part: the gain in X is gone." in notes[0]
    assert "Not confirmed: did not hold when measured again." in notes[1]


def test_limits_are_in_words_and_count_measured_trials_only(filled: StudyRecord) -> None:
    note = study_note(standing_of(filled.trials(), filled.front(), filled.terms, ABOUT), filled.terms, ABOUT)
    limits = note[note.index("## Limits") :]
    counts = [line.split("|")[-2].strip() for line in limits.splitlines() if line.startswith("| 0")]
    assert counts == ["1"], "what did not start has missed nothing that was measured"


def test_few_trials_tell_no_importance_and_the_note_says_so(filled: StudyRecord) -> None:
    note = study_note(standing_of(filled.trials(), filled.front(), filled.terms, ABOUT), filled.terms, ABOUT)
    assert "rests on 4 measured trials here: with fewer than 20" in note
    many = standing_of(filled.trials() * 6, filled.front(), filled.terms, ABOUT)
    assert "Hyperparameter Importance" not in study_note(many, filled.terms, ABOUT)


def test_the_reference_is_marked_in_every_plot(record: StudyRecord) -> None:
    for values, attributes in (((1000.0, 200.0, 20.0), {"baseline": "current"}), ((1200.0, 250.0, 20.0), {})):
        record.close(record.open_trial(PARAMETERS, attributes=attributes), MEASURED, card(values))
    standing = standing_of(record.trials(), record.front(), record.terms, ABOUT)
    for figure in (front_3d(standing, record.terms, "x"), front_2d(standing, record.terms, "x", 1)):
        (mark,) = [trace for trace in figure.data if trace.name == "reference"]
        assert list(mark.x) == [1000.0] and "the reference" in mark.hovertext[0]
