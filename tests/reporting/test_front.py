import json
from pathlib import Path

import pytest

from objectives.hypervolume import Axes
from objectives.objective import Objective
from optimizer.deployment.deployment import Deployment
from optimizer.errors import UserError
from optimizer.reporting.front import Front, FrontMember, FrontMeta, load_front, name_picks, save_front
from search_spaces.config import Config

OBJECTIVES = (
    Objective("saturation_output_tokens_per_s_per_gpu", "maximize"),
    Objective("steady_ttft_p99_ms", "minimize"),
    Objective("steady_itl_p99_ms", "minimize"),
)
META = FrontMeta(
    study="s",
    model="org/m",
    gpu="A100-80",
    engine="simulator 0.1.0",
    is_simulated=True,
    objectives=OBJECTIVES,
    workload_hash="0123456789abcdef",
    rate_per_s=2.5,
    versions={"vllm": "0.32.0"},
    noise={"saturation_output_tokens_per_s_per_gpu": 0.03},
    reference=0,
    kept=Deployment(model="org/m", config=Config({}), other={"port": 9000}, order=("port",), withheld=("api-key",)),
)


def member(trial: int, *values: float, **fields: object) -> FrontMember:
    config = Config({"max_num_batched_tokens": 2048, "max_num_seqs": 64 + trial, "watermark": 0.05})
    return FrontMember(trial=trial, configs={"server": config}, values=values or None, **fields)  # type: ignore[arg-type]


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    members = [
        member(0, 2400.0, 800.0, 40.0, label="current", metrics={"steady_ttft_p99_ms": 800.0, "x": None}),
        member(1, cause="weights do not fit", violations={"boot": 0.4}),
        member(7, 2500.0, 0.1 + 0.2, 41.0, is_on_front=True, is_confirmed=True, note="held", picks=("knee",)),
    ]
    path = tmp_path / "front" / "front.json"
    save_front(path, reversed(members), META)
    assert load_front(path) == Front(META, tuple(members))
    assert [p.name for p in path.parent.iterdir()] == ["front.json"]


def test_the_file_is_versioned_and_self_explaining(tmp_path: Path) -> None:
    path = tmp_path / "front.json"
    save_front(path, [member(3, violations={"a <= 1": 0.5, "b <= 2": 0.1})], META)
    data = json.loads(path.read_text())
    assert (data["format"], data["version"]) == ("vllm-config-optimizer/front", 1)
    assert data["nearest_misses"] == [{"trial": 3, "total_violation": 0.6, "blocking": {"a <= 1": 0.5, "b <= 2": 0.1}}]


def test_unread_figures_are_null_not_nan(tmp_path: Path) -> None:
    path = tmp_path / "front.json"
    save_front(path, [member(0, 1.0, 2.0, 3.0, metrics={"a": float("nan"), "b": float("inf"), "c": 0.5})], META)
    assert load_front(path).trials[0].metrics == {"a": None, "b": None, "c": 0.5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "is not a study's front"),
        ('{"format": "vllm-config-optimizer/front", "version": 2}', "schema version 2, this program reads 1"),
        ('{"format": "vllm-config-optimizer/front", "version": 1, "meta": {}}', "is damaged"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "front.json"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        load_front(path)
    with pytest.raises(UserError, match="no trial has ended yet"):
        load_front(tmp_path / "none.json")


def test_nearest_misses_come_least_first_and_count_missed_limits_only() -> None:
    members = (
        member(0, 1.0, 1.0, 1.0, violations={"a": 0.3, "b": -0.9}),
        member(1, violations={"a": 0.1, "b": 0.1}),
        member(2, 1.0, 1.0, 1.0, violations={"a": -0.1}),
        member(3, 1.0, 1.0, 1.0, violations={"a": 0.1, "b": 0.1}),
    )
    assert [m.trial for m in Front(META, members).nearest_misses()] == [3, 0, 1]


def test_picks_are_taken_from_the_front_only() -> None:
    members = [
        member(0, 9999.0, 1.0, 1.0),
        member(1, 2600.0, 900.0, 45.0, is_on_front=True),
        member(2, 2400.0, 700.0, 40.0, is_on_front=True),
        member(3, 2200.0, 690.0, 30.0, is_on_front=True),
    ]
    named = name_picks(members, META, Axes(OBJECTIVES, (2400.0, 800.0, 40.0)))
    picks = {m.trial: m.picks for m in named}
    assert picks[0] == ()
    assert "throughput" in picks[1] and "itl" in picks[3] and "ttft" in picks[3]
    assert sum("knee" in p for p in picks.values()) == 1
    assert name_picks([member(0)], META, Axes(OBJECTIVES, (1.0, 1.0, 1.0))) == [member(0)]


def test_unknown_trials_and_picks_say_what_there_is() -> None:
    front = Front(META, (member(0, 1.0, 1.0, 1.0, is_on_front=True, picks=("knee",)),))
    with pytest.raises(UserError, match=r"--trial 5: .*0 to 0"):
        front.trial(5)
    with pytest.raises(UserError, match=r"--pick itl: .*there is knee"):
        front.pick("itl")
