"""Statistics against figures computed by hand and against those published for the whole traces."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer import characterize as command
from optimizer.cli import run_main
from optimizer.errors import UserError
from optimizer.workload.advice import advise
from optimizer.workload.character import ServiceTime, characterize
from optimizer.workload.packaged import NAMES, find_trace, packaged
from optimizer.workload.prefix import common_ids, families, reusable_tokens
from optimizer.workload.reader import open_trace
from optimizer.workload.trace import Trace


def main(arguments: list[str]) -> int:
    """The command as a person runs it: errors are one line and an exit code."""
    return run_main(command.main, list(arguments))


def small(blocks: list[list[int]], prompt: list[int] | None = None) -> Trace:
    n = len(blocks)
    ids = np.array([x for row in blocks for x in row], np.int64)
    start = np.concatenate([[0], np.cumsum([len(row) for row in blocks])]).astype(np.int64)
    lengths = np.array(prompt or [10 * max(1, len(row)) for row in blocks], np.int32)
    return Trace(
        np.arange(n, dtype=np.float64), lengths, np.ones(n, np.int32), np.zeros(n, np.int16), ("d",), ids, start, 10
    )


def test_reuse_is_the_leading_run_of_blocks_seen_before() -> None:
    trace = small([[1, 2, 3], [1, 2, 9], [2, 3], [1, 2, 3], []], [30, 25, 15, 25, 7])
    reused = reusable_tokens(trace)
    assert reused is not None
    assert reused.tolist() == [0, 20, 15, 25, 0]  # a partial last block counts with its tokens


def test_a_small_cache_forgets_the_least_recently_used() -> None:
    trace = small([[1, 2], [3, 4], [1, 2], [3]])
    assert reusable_tokens(trace, 20) is not None
    for cache, expected in ((40, [0, 0, 20, 10]), (30, [0, 0, 0, 0]), (0, [0, 0, 0, 0])):
        reused = reusable_tokens(trace, cache)
        assert reused is not None and reused.tolist() == expected


def test_families_are_sessions_or_conversations() -> None:
    blocks = [[0, k // 2 + 1, 100 + k] for k in range(40)]
    trace = small(blocks)
    assert common_ids(trace).tolist() == [0]
    assert families(trace).tolist() == [k // 2 for k in range(40)]
    assert families(small([[], []])).tolist() == [0, 1]


def test_figures_by_hand() -> None:
    trace = Trace(
        np.array([0.0, 1.0, 1.5, 4.5]),
        np.full(4, 800, np.int32),
        np.array([1, 40, 40, 79], np.int32),
        np.zeros(4, np.int16),
    )
    c = characterize(trace, ServiceTime(prompt_tokens_per_s=8000, itl_ms=25))
    assert c.rate_per_s == pytest.approx(3 / 4.5)
    assert c.gap_cv == pytest.approx(np.std([1, 0.5, 3]) / 1.5)
    assert (c.output_tokens.mean, c.output_tokens.max, c.n_gaps, c.one_token_share) == (40, 79, 156, 0.25)
    assert c.prompt_tokens_per_s == pytest.approx(3200 / 4.5)
    assert c.concurrency is not None
    assert c.concurrency.mean == pytest.approx(3 / 4.5 * (0.1 + 1.0))  # rate x (800 / 8000 + 40 x 25 ms)
    assert c.peak_over_mean["10 s"] is None and c.gap_cv_60s_median is None
    assert c.longest_silence_s == 3


# case EDGE-06
@pytest.mark.parametrize("arrivals", [[0.0], [0.0, 0.0, 0.0], [0.0, 1.0]])
def test_undefined_is_none_and_never_zero(arrivals: list[float]) -> None:
    n = len(arrivals)
    c = characterize(Trace(np.array(arrivals), np.ones(n, np.int32), np.ones(n, np.int32), np.zeros(n, np.int16)))
    assert c.gap_cv is None and (c.rate_per_s is None) == (arrivals[-1] == 0)
    json.dumps(c.to_json(), allow_nan=False)
    assert "1 token" in advise(c)[0]


PUBLISHED: dict[str, dict[str, Any]] = {
    # of the whole published files, computed by another program; where it left a definition open (fewest requests in a
    # 60 s window, M = 2^20 tokens of cache) ours was chosen to agree with it
    "azure2023/AzureLLMInferenceTrace_code.csv": {
        "span": 3436, "rate": 2.57, "cv": 13.2, "minute": 3.2, "minute90": 6.5, "peak": 12.8,
        "prompt": (2048, 1469, 5188, 7436, 7437), "output": (28, 13, 55, 251, 1899), "tokens_per_s": (5256, 72),
    },
    "azure2023/AzureLLMInferenceTrace_conv.csv": {
        "span": 3502, "rate": 5.53, "cv": 1.09, "minute": 1.02, "minute90": None, "peak": 1.8,
        "prompt": (1155, 1020, 2735, 4142, 14050), "output": (211, 129, 424, 601, 1000), "tokens_per_s": (6386, 1168),
    },
    "mooncake/conversation_trace.jsonl": {
        "span": 3537, "rate": 3.40, "cv": 3.03, "minute": None, "minute90": None, "peak": 2.0,
        "prompt": (12035, 6909, 27367, 85400, 126195), "output": (343, 350, 597, 1119, 2000),
        "tokens_per_s": (40937, 1165),
    },
}  # fmt: skip


@pytest.mark.skipif("TRACES_DIR" not in os.environ, reason="TRACES_DIR names a folder with the whole published traces")
@pytest.mark.parametrize("name", PUBLISHED)
def test_whole_traces_have_the_published_figures(name: str) -> None:
    c = characterize(open_trace(Path(os.environ["TRACES_DIR"]) / name).trace)
    want = PUBLISHED[name]
    assert c.span_s == pytest.approx(want["span"], abs=1)
    assert c.rate_per_s == pytest.approx(want["rate"], abs=0.01)
    assert c.gap_cv == pytest.approx(want["cv"], rel=0.01)
    for key, value in (("minute", c.gap_cv_60s_median), ("minute90", c.gap_cv_60s_p90)):
        if want[key] is not None:
            assert value == pytest.approx(want[key], rel=0.02)
    assert c.binned_peak_over_mean["10 s"] == pytest.approx(want["peak"], rel=0.02)
    for spread, expected in ((c.prompt_tokens, want["prompt"]), (c.output_tokens, want["output"])):
        assert (spread.mean, spread.p50, spread.p90, spread.p99, spread.max) == pytest.approx(expected, abs=0.6)
    assert (c.prompt_tokens_per_s, c.output_tokens_per_s) == pytest.approx(want["tokens_per_s"], abs=0.6)


@pytest.mark.skipif("TRACES_DIR" not in os.environ, reason="TRACES_DIR names a folder with the whole published traces")
def test_the_whole_mooncake_trace_reuses_what_was_published() -> None:
    reuse = characterize(
        open_trace(Path(os.environ["TRACES_DIR"]) / "mooncake/conversation_trace.jsonl").trace
    ).prefix_reuse
    assert reuse is not None
    assert reuse.endless == pytest.approx(0.374, abs=0.0005)
    assert list(reuse.by_cache.values()) == pytest.approx([0.056, 0.144, 0.296], abs=0.0006)
    assert reuse.median_request == pytest.approx(0.36, abs=0.005)


@pytest.mark.parametrize(
    ("name", "rate", "cv", "prompt", "output"),
    [
        ("azure-conv", 5.11, 1.00, 1150, 253),
        ("azure-code", 2.89, 14.5, 1957, 28),
        ("mooncake-conversation", 3.40, 3.03, 12052, 340),
    ],
)
def test_packaged_windows_look_like_their_traces(
    name: str, rate: float, cv: float, prompt: float, output: float
) -> None:
    c = characterize(open_trace(packaged(name), strict=True).trace)
    assert c.n_requests == 2500
    assert (c.rate_per_s, c.gap_cv) == pytest.approx((rate, cv), rel=0.01)
    assert (c.prompt_tokens.mean, c.output_tokens.mean) == pytest.approx((prompt, output), rel=0.01)


def test_packaged_files_are_the_ones_the_source_note_describes() -> None:
    note = packaged("azure-conv").with_name("SOURCE.txt").read_text()
    for name in NAMES:
        assert hashlib.sha256(packaged(name).read_bytes()).hexdigest() in note
    with pytest.raises(UserError, match="azure-conv"):
        packaged("nope")
    assert find_trace("./x.csv") == Path("x.csv")


@pytest.mark.parametrize("name", NAMES)
def test_the_command_prints_what_tuning_needs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name]) == 0
    out = capsys.readouterr().out
    for word in (
        "P50",
        "P99",
        "req/s",
        "CV of gaps",
        "busiest",
        "Little's law",
        "Prefix reuse",
        "What it means",
        "time unit",
    ):
        assert word in out
    assert 3 <= out.split("What it means for tuning\n")[1].count("  - ") <= 6
    assert max(map(len, out.splitlines())) <= 200


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mooncake-conversation", "--json", "--window", "500", "--max-model-len", "32768"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["character"]["n_requests"] == 500 and found["time_unit"] == "ms" and found["n_rows"] == 2500
    assert found["character"]["prefix_reuse"]["block_tokens"] == 512
    assert any("cannot be served at max_model_len 32,768" in n for n in found["notices"])


@pytest.mark.parametrize(
    "argv",
    [
        ["missing.csv"],
        ["azure-conv", "--window", "0"],
        ["azure-conv", "--itl-ms", "0"],
        ["azure-conv", "--reader", "x"],
    ],
)
def test_bad_input_is_one_line_and_exit_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1


def test_the_command_loads_nothing_heavy() -> None:
    code = (
        "import sys; from optimizer.characterize import main; main(['mooncake-conversation'])\n"
        "heavy = {'pandas', 'optuna', 'ray', 'rich', 'torch', 'plotly'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
