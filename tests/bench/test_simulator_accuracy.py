"""The accuracy page: made from the data, equal to what is committed, and unmoved by rows that cannot be scored."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.simulator_accuracy import DATA, main, page
from optimizer.cli import run_main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "accuracy.md"
HEADER = (DATA / "measured_points.csv").read_text().splitlines()[0]


@pytest.fixture(scope="module")
def made() -> tuple[str, bool]:
    return page(DATA)


def test_the_page_is_what_the_data_say(made: tuple[str, bool]) -> None:
    """Regenerate it: python -m bench.simulator_accuracy --output docs/accuracy.md"""
    assert PAGE.read_text() == made[0] + "\n"


def test_the_bars_out_of_the_box_are_reached(made: tuple[str, bool]) -> None:
    bars = [line for line in made[0].splitlines() if line.endswith("| reached |")]
    for what in (
        "TPOT, median error out of the box", "throughput, median error out of the box", "TPOT, after one scalar",
        "llmservingsim_rtx4090", "order of pairs that differ by more than 5 %, throughput", "called impossible",
    ):  # fmt: skip
        assert any(what in line for line in bars), what


def row(**cells: str) -> str:
    known = {"id": "x", "tier": "A", "model": "Qwen/Qwen3-8B", "arch": "dense", "dtype": "bf16", "gpu": "H100-SXM-80",
             "tp": "1", "load_kind": "concurrency", "load_value": "4", "input_len": "500", "output_len": "50",
             "tpot_mean_ms": "8.0", "out_tok_s": "400"}  # fmt: skip
    return ",".join({**known, **cells}.get(name, "") for name in HEADER.split(","))


def write(folder: Path, *lines: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "measured_points.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    return folder


def test_other_rows_are_scored_or_named(tmp_path: Path) -> None:
    text, _ = page(
        write(
            tmp_path / "data",
            row(id="good"),
            row(id="gpu", gpu="Voodoo-2"),
            row(id="model", model="nobody/nothing"),
            row(id="tp", tp="many"),
            row(id="length", input_len="short"),
            row(id="load", load_kind="somehow"),
            row(id="fast", tpot_mean_ms="0.8"),
            "broken,row",
        )
    )
    assert "| H100-80 | Qwen/Qwen3-8B | 1 | 2 |" in text
    for name in ("gpu", "model", "tp", "length", "load", "broken"):
        assert f"* {name}: " in text, name
    assert "* fast: TPOT 0.8 ms: reading the weights alone takes" in text


def test_a_folder_of_runs_alone_is_scored(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    name = "llmservingsim_rtxpro6000_llama-3.1-8b"
    shutil.copytree(DATA / name, tmp_path / "data" / name)
    shutil.copytree(DATA / name, tmp_path / "data" / "damaged")
    (tmp_path / "data" / "damaged" / "requests.jsonl").write_text('{"input_toks": 5}\n')
    text, _ = page(tmp_path / "data")
    assert f"{name} (block count predicted):" in text and "| makespan_s | 65.9" in text
    assert "* damaged/requests.jsonl, line 1: no request" in text


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "measured_points.csv").write_text("a,b\n1,2\n")
    for folder in ("none", "empty", "other"):
        assert run_main(main, ["--data", str(tmp_path / folder)]) == 2
        error = capsys.readouterr().err
        assert folder in error and len(error.strip().splitlines()) == 1, error
