"""A front configuration measured again: on the study's own rows, on other traffic, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from optimizer import validate
from optimizer.cli import run_main
from tests.integration.conftest import Run

Validate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def again(small: Run, capsys: pytest.CaptureFixture[str]) -> Validate:
    """optimizer.validate of a finished study."""
    assert small("--n-trials", "6").code == 0

    def call(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_main(validate.main, ["small-1", *argv])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_the_studys_own_window(again: Validate, folder: Path) -> None:
    code, out, err = again("--repeats", "2")
    assert code in (0, 1), err
    assert ("every value is inside the noise" in out) is (code == 0)
    assert "then" in out and "now" in out and "±" in out
    assert err.count("validation:") == 2
    stored = json.loads((folder / "studies/small-1/validations/000.json").read_text())
    assert stored["again"]["n_repeats"] == 2 and stored["gain_persists"] is None


def test_other_traffic_is_held_against_the_reference_there(again: Validate, folder: Path) -> None:
    code, out, err = again("--pick", "throughput", "--repeats", "1", "--trace", "held-out", "--json")
    body = json.loads(out)
    assert code == (0 if body["is_inside_noise"] and body["gain_persists"] is not False else 1), err
    assert body["other_reference"]["values"] and body["other_member"]["values"] and body["gain"]
    code, out, _ = again("--pick", "throughput", "--repeats", "1", "--trace", "azure-code")
    assert "against the reference there" in out
    assert {p.name for p in (folder / "studies/small-1/validations").iterdir()} == {"000.json", "001.json"}
    assert len(list((folder / "studies/small-1/runs").glob("validation-*"))) == 6, "no run is overwritten"


def test_the_same_rows_or_none(again: Validate, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = folder / "studies/small-1/manifest.json"
    body = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**body, "workload": {**body["workload"], "traffic": "other"}}))
    code, _, err = again()
    assert code == 2 and "its rows are not those of the study" in err and err.count("\n") == 1
    manifest.write_text(json.dumps({**body, "engine": "vLLM 9.9.9"}))
    code, _, err = again()
    assert code == 2 and "vLLM 9.9.9" in err and "use the same engine" in err
    manifest.write_text(json.dumps({**body, "calibration": {"values": [1]}}))
    code, _, err = again()
    assert code == 2 and "its calibration is damaged" in err and err.count("\n") == 1
    manifest.write_text(json.dumps({**body, "command": []}))
    code, _, err = again()
    assert code == 2 and "recorded no command" in err
    manifest.write_text(json.dumps({**body, "directory": str(folder / "gone")}))
    code, _, err = again()
    assert code == 2 and "which is gone" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--repeats", "0"], "--repeats 0: give 1 to 50"),
        (["--trial", "99"], "--trial 99"),
        (["--trace", "nothing.csv"], "nothing.csv"),
        (["--trace", "nobody=azure-code"], "no tenant 'nobody'"),
    ],
)
def test_bad_input_is_one_line(again: Validate, arguments: list[str], said: str) -> None:
    code, _, err = again(*arguments)
    assert code == 2 and said in err and err.count("\n") == 1
