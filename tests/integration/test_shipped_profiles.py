"""Each shipped profile, a few trials, as a child process in an empty folder: exit 0, a front, files to deploy."""

from __future__ import annotations

import csv
import io
import re

import pytest
import yaml

from optimizer.profiles.loader import SHIPPED
from search_spaces.constraint import check_config
from tests.integration.conftest import Ran, child

N_TRIALS = 8


@pytest.fixture(scope="module", params=SHIPPED)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp(request.param)
    return child(folder, "--profile", request.param, "--workers", "0", "--n-trials", str(N_TRIALS))


def study(ran: Ran) -> str:
    return next(p.name for p in (ran.folder / "studies").iterdir())


def test_it_ends_well_and_says_what_it_is(ran: Ran) -> None:
    assert (ran.code, ran.err) == (0, "")
    assert "(SIMULATED)" in ran.out.splitlines()[0] and "no GPU found, simulating" in ran.out  # case EDGE-18
    for part in ("memory: ", "plan: 8 trials", "== calibration: ", "== baseline: ", "== confirmation: ", "== rates: ",
                 "R = ", "smallest differences", "finished: 8 trials, ", "picked as", "take one away: ", "read why: ", "watch: ",
                 "compared with vLLM defaults (trial 0)"):  # fmt: skip
        assert part in ran.out, part
    assert "Traceback" not in ran.out and not re.search(r"\b(nan|inf|None)\b", ran.out)


def test_notices_are_said_once(ran: Ran) -> None:
    before = ran.out.split("== calibration")[0].splitlines()
    assert len(before) == len(set(before))


def test_the_study_folder_is_complete(ran: Ran) -> None:
    root = ran.path(study(ran))
    assert not (root / "driver.lock").exists()
    assert {p.name for p in root.iterdir()} >= {"study.db", "manifest.json", "events.jsonl", "trials", "runs", "front"}
    assert sorted(p.name for p in (root / "trials").iterdir()) == [f"{k:04d}" for k in range(N_TRIALS)]
    for trial in (root / "trials").iterdir():
        assert (trial / "run-0" / "outcome.json").is_file()


def test_trials_are_numbered_distinct_and_begin_with_the_baselines(ran: Ran) -> None:
    members = ran.members(study(ran))
    assert [m["trial"] for m in members] == list(range(N_TRIALS))
    assert [m["label"] for m in members[:2]] == ["vLLM defaults", "safe"]
    configs = [str(m["configs"]) for m in members]
    assert len(configs) == len(set(configs))


def test_the_front_is_confirmed_or_labelled_and_picked(ran: Ran) -> None:
    body = ran.front(study(ran))
    assert body["meta"]["is_simulated"] is True and body["members"]
    assert {p for m in body["members"] for p in m["picks"]} == {"throughput", "ttft", "itl", "knee"}
    assert all(m["note"] for m in body["members"]), "every member was measured again"
    picked = [m for m in body["members"] if m["picks"]]
    if any(m["is_confirmed"] for m in body["members"]):
        assert all(m["is_confirmed"] for m in picked)
    for member in body["members"]:
        assert all(v <= 0 for v in member["violations"].values())
        assert all(v is not None and v > 0 for v in member["objectives"].values())


def test_every_member_is_exported_with_its_figures_and_the_label(ran: Ran) -> None:
    root = ran.path(study(ran)) / "front"
    body = ran.front(study(ran))
    files = sorted((root / "vllm").rglob("*.yaml"))
    n_servers = len(body["members"][0]["configs"])
    assert len(files) == len(body["members"]) * n_servers
    for file in files:
        text = file.read_text()
        assert "simulated" in text.lower() and body["meta"]["workload_hash"] in text and body["meta"]["study"] in text
        flags = {k.replace("-", "_"): v for k, v in yaml.safe_load(text).items()}
        assert flags.pop("model") == body["meta"]["model"]
        assert check_config({k: v for k, v in flags.items() if not isinstance(v, list | dict)}) == []
    rows = list(csv.DictReader(io.StringIO((root / "front.csv").read_text())))
    assert {int(r["trial"]) for r in rows} == {m["trial"] for m in body["members"]}
    assert "SIMULATED" in (root / "answer.txt").read_text()


def test_events_are_json_and_count_up(ran: Ran) -> None:
    events = ran.events(study(ran))
    done = [e["n_done"] for e in events if e["event"] == "TrialFinished"]
    assert done == list(range(1, N_TRIALS + 1))
    assert events[-1]["event"] == "StudyFinished" and events[-1]["n_trials"] == N_TRIALS


def test_nothing_outside_the_studies_folder_is_written(ran: Ran) -> None:
    assert [p.name for p in ran.folder.iterdir()] == ["studies"]
