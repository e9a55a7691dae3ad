"""The open cases about traces, as files: times, units, lengths, empty files, JSON lines, ids."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optimizer.errors import UserError
from optimizer.workload.reader import open_trace
from optimizer.workload.window import check_enough, check_has_gaps

CASES = {
    case["id"]: case["inputs"]
    for case in map(json.loads, (Path(__file__).parents[1] / "cases" / "open.jsonl").read_text().splitlines())
}


def save(tmp_path: Path, content: str | bytes | list[Any], name: str = "t.jsonl") -> Path:
    path = tmp_path / name
    if isinstance(content, list):
        content = "\n".join(json.dumps(row) for row in content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def timed(times: list[Any]) -> list[dict[str, Any]]:
    return [{"timestamp": t, "input_length": 10, "output_length": 5} for t in times]


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        open_trace(path, **options)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 700
    return message


# case EDGE-01
def test_odd_timestamps(tmp_path: Path) -> None:
    path = save(tmp_path, CASES["EDGE-01"]["rows"])
    reading = open_trace(path)
    assert reading.trace.arrival_s.tolist() == [0, 4, 4, 8, 10.5]
    assert [r.line for r in reading.rejected] == [5, 6]
    assert any("negative" in n for n in reading.notices) and any("sorted" in n for n in reading.notices)
    assert "line 5" in refused(path, strict=True)


@pytest.mark.parametrize("bad", [True, [1], {}, "", "soon", "2026-13-01 10:00:00", float("inf"), 10**400])
def test_a_timestamp_that_is_no_time_is_rejected(tmp_path: Path, bad: Any) -> None:
    reading = open_trace(save(tmp_path, timed([0.5, bad, 1.5])))
    assert len(reading.trace) == 2 and [r.line for r in reading.rejected] == [2]


def test_dates_among_numbers_are_rejected_not_mixed(tmp_path: Path) -> None:
    reading = open_trace(save(tmp_path, timed([0.5, "2026-01-01 10:00:00", 1.5])))
    assert list(reading.rejected_counts) == ["timestamp is a date where other rows have a number"]


# case EDGE-02
@pytest.mark.parametrize("key", ["a", "b"])
def test_an_ambiguous_unit_is_asked_for_with_both_readings(tmp_path: Path, key: str) -> None:
    path = save(tmp_path, timed(CASES["EDGE-02"]["traces"][key]))
    message = refused(path)
    assert "--time-unit" in message and "as s: span" in message and "as ms: span" in message and "req/s" in message
    assert open_trace(path, time_unit="ms").time_unit == "ms"


# case EDGE-02
@pytest.mark.parametrize(("key", "unit"), [("c", "s"), ("d", "ms")])
def test_epoch_values_tell_their_unit(tmp_path: Path, key: str, unit: str) -> None:
    reading = open_trace(save(tmp_path, timed(CASES["EDGE-02"]["traces"][key])))
    assert reading.time_unit == unit
    assert reading.trace.arrival_s.tolist() == [0, 1]
    assert "span 1 s, mean 1 req/s" in reading.notices[0]


def test_epoch_microseconds_and_nanoseconds(tmp_path: Path) -> None:
    for unit, scale in (("us", 10**6), ("ns", 10**9)):
        reading = open_trace(save(tmp_path, timed([1764410400 * scale, 1764410401 * scale])))
        assert (reading.time_unit, reading.trace.span_s) == (unit, 1.0)


@pytest.mark.parametrize(("name", "unit"), [("timestamp_ms", "ms"), ("arrival_time_s", "s"), ("time (us)", "us")])
def test_the_columns_name_tells_the_unit(tmp_path: Path, name: str, unit: str) -> None:
    path = save(tmp_path, f"{name},input_length,output_length\n0,10,5\n3000,10,5\n3536999,10,5\n", "t.csv")
    assert open_trace(path).time_unit == unit


@pytest.mark.parametrize(
    ("times", "unit"),
    [
        (list(range(0, 60_000, 250)), "ms"),  # 4 req/s as ms, one in four minutes as s
        ([k * 0.25 for k in range(200)], "s"),
        (list(range(0, 60_000_000, 250_000)), "us"),
        (list(range(100)), "s"),  # as ms it would be 1,000 req/s
    ],
)
def test_a_plausible_mean_rate_tells_the_unit(tmp_path: Path, times: list[float], unit: str) -> None:
    assert open_trace(save(tmp_path, timed(times))).time_unit == unit


def test_whole_seconds_at_a_rate_that_fits_both_are_asked_for(tmp_path: Path) -> None:
    assert "ambiguous" in refused(save(tmp_path, timed(list(range(0, 4000, 5)))))  # 0.2/s, or 200/s
    assert "ambiguous" in refused(save(tmp_path, timed(list(range(3000)))))  # 1/s, or a service of 1,000/s


def test_block_ids_do_not_force_milliseconds_on_an_impossible_rate(tmp_path: Path) -> None:
    rows = [{**row, "input_length": 600, "hash_ids": [0, k + 1]} for k, row in enumerate(timed(list(range(600))))]
    assert open_trace(save(tmp_path, rows)).time_unit == "s"


# case EDGE-03
def test_odd_lengths(tmp_path: Path) -> None:
    path = save(tmp_path, [{"timestamp": k, **row} for k, row in enumerate(CASES["EDGE-03"]["rows"])])
    reading = open_trace(path)
    assert reading.trace.prompt_tokens.tolist() == [100, 50]
    assert reading.trace.output_tokens.tolist() == [20, 1]
    assert [r.line for r in reading.rejected] == [1, 2, 3, 5]
    assert open_trace(path, zero_output="one").trace.output_tokens.tolist() == [1, 20, 1]


# case EDGE-03
def test_a_trace_of_one_token_answers_has_no_itl(tmp_path: Path) -> None:
    trace = open_trace(save(tmp_path, [{"timestamp": k, "in": 50, "out": 1} for k in range(3)])).trace
    with pytest.raises(UserError, match="no inter-token latency"):
        check_has_gaps(trace)


# case EDGE-05
@pytest.mark.parametrize(("name", "content"), CASES["EDGE-05"]["files"].items())
def test_empty_files(tmp_path: Path, name: str, content: str) -> None:
    message = refused(save(tmp_path, content, name))
    assert name in message and "0 usable requests" in message


# case EDGE-05
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"  \n# only a comment\n\t\n",
        gzip.compress(b"", mtime=0),
        gzip.compress(b"timestamp,in,out\n1,2,3\n" * 5000, mtime=0)[:-20],
        b"\x1f\x8b\x08\x00garbage",
        b"PK\x03\x04....",
        b"PAR1....",
        bytes(range(256)) * 8,
        b"\xff\xfe\x00",
        b"hello world\n",
        b"[]",
        b"{}",
        b"<html><body>404</body></html>\n",
    ],
    ids=repr,
)
def test_what_is_no_trace_is_one_clear_line(tmp_path: Path, content: bytes) -> None:
    path = save(tmp_path, content, "trace")
    message = refused(path)
    assert str(path) in message and "0 usable requests" in message


# case EDGE-05
def test_a_directory_a_missing_file_and_a_locked_one(tmp_path: Path) -> None:
    assert "directory" in refused(tmp_path)
    assert "no such file" in refused(tmp_path / "missing.csv")
    locked = save(tmp_path, "x", "locked.csv")
    locked.chmod(0)
    if not os.access(locked, os.R_OK):
        assert "cannot be read" in refused(locked)


# case EDGE-06
def test_one_request_is_read_but_too_few_to_study(tmp_path: Path) -> None:
    reading = open_trace(save(tmp_path, CASES["EDGE-06"]["rows"]))
    assert len(reading.trace) == 1 and reading.trace.rate_per_s is None
    with pytest.raises(UserError, match="at least 200"):
        check_enough(len(reading.trace), name="t.jsonl")
    check_enough(len(reading.trace), is_repeat_allowed=True)


# case EDGE-10
def test_broken_json_lines(tmp_path: Path) -> None:
    path = save(tmp_path, CASES["EDGE-10"]["files"]["a.jsonl"])
    reading = open_trace(path)
    assert len(reading.trace) == 1 and reading.n_rows == 3
    assert [r.line for r in reading.rejected] == [3, 4]
    assert open_trace(path, max_bad_rows=2).n_rejected == 2
    assert "more than 1 rows" in refused(path, max_bad_rows=1)


# case EDGE-10
@pytest.mark.parametrize(
    "line",
    [
        '{"timestamp":NaN,"input_length":16,"output_length":5}',
        '{"timestamp":1.5,"input_length":Infinity,"output_length":5}',
        '{"timestamp":1.5,"input_length":16,"input_length":17,"output_length":5}',
        '{"timestamp":1.5,"input_length":16}',
        '{"a":1}',
        "null",
        "3",
        '"text"',
        "[" * 100_000,
        '{"timestamp":' + "9" * 5000 + ',"input_length":1,"output_length":1}',
        '{"timestamp":1.5,"input_length":16,"output_length":5',
        '{"timestamp":1.5,"input_length":true,"output_length":5}',
    ],
    ids=lambda line: line[:40],
)
def test_a_bad_line_costs_itself_only(tmp_path: Path, line: str) -> None:
    good = '{"timestamp":%s,"input_length":16,"output_length":5}'
    reading = open_trace(save(tmp_path, "\n".join([good % 0.5, line, good % 2.5])))
    assert len(reading.trace) == 2 and [r.line for r in reading.rejected] == [2]
    assert len(reading.rejected[0].excerpt) <= 81


# case EDGE-10
@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_array_is_read_and_said(tmp_path: Path, indent: int | None) -> None:
    reading = open_trace(save(tmp_path, json.dumps([*timed([0.5, 1.5]), 3], indent=indent), "a.json"))
    assert len(reading.trace) == 2 and [r.line for r in reading.rejected] == [3]
    assert any("JSON array" in n for n in reading.notices)


# case EDGE-10
def test_a_huge_line_is_read_and_one_beyond_reason_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optimizer.workload.lines.MAX_LINE_CHARS", 4 << 20)
    row = '{"timestamp":%s,"prompt":"%s","input_length":16,"output_length":5}'
    lines = [row % (0.5, "x" * (3 << 20)), row % (1.5, "y" * (6 << 20)), row % (2.5, "z")]
    reading = open_trace(save(tmp_path, "\n".join(lines)))
    assert reading.trace.arrival_s.tolist() == [0, 2]
    assert [(r.line, r.reason) for r in reading.rejected] == [(2, "line is too long")]


# case EDGE-10
def test_rows_of_different_schemas_in_one_file(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0.5, "input_length": 16, "output_length": 5},
        {"arrival_time": 1.5, "prompt_tokens": 17, "completion_tokens": 6},
        {"timestamp_ms": 2500, "input_length": 18, "output_length": 7},
    ]
    reading = open_trace(save(tmp_path, rows))
    assert reading.trace.prompt_tokens.tolist() == [16, 17]
    assert "another unit" in reading.rejected[0].reason


# case EDGE-11
def test_ids_are_labels_and_never_merged(tmp_path: Path) -> None:
    ids = CASES["EDGE-11"]["ids"]
    rows = [
        {"request_id": x, "session_id": x, **row}
        for x, row in zip(ids, timed([0.5 * k for k in range(6)]), strict=True)
    ]
    reading = open_trace(save(tmp_path, rows))
    assert reading.request_labels == ("a", "a", "", "é", "e\u0301", "")
    assert reading.session_labels == ("a", "é", "e\u0301")
    session = reading.trace.session
    assert session is not None and session.tolist() == [0, 0, 3, 1, 2, 4]  # missing names are sessions of their own
    assert any("occur again" in n for n in reading.notices)


# case EDGE-11
def test_labels_follow_their_rows_when_sorted_and_long_ones_stay_apart(tmp_path: Path) -> None:
    long = "x" * 10_000
    rows = [{"id": x, **row} for x, row in zip([long + "1", long + "2", "c"], timed([2.5, 1.5, 0.5]), strict=True)]
    labels = open_trace(save(tmp_path, rows)).request_labels
    assert labels is not None and labels[0] == "c" and labels[1] != labels[2] and all(len(x) < 300 for x in labels)


# case FMT-10
@pytest.mark.parametrize("name", ["az.csv", "az.csv.gz"])
def test_azure_dates_with_seven_decimals(tmp_path: Path, name: str) -> None:
    content = CASES["FMT-10"]["files"]["az.csv"].encode()
    reading = open_trace(save(tmp_path, gzip.compress(content, mtime=0) if name.endswith("gz") else content, name))
    assert reading.reader == "azure"
    assert reading.trace.span_s == pytest.approx(0.8765441, abs=1e-9)
    assert reading.trace.prompt_tokens.tolist() == [374, 396]
    assert reading.trace.output_tokens.tolist() == [44, 109]


# case FMT-10
@pytest.mark.parametrize(
    "stamps",
    [
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01.009930+00:00"),
        ("2024-05-10T00:00:00Z", "2024-05-10T00:00:01Z"),
        ("2024-05-10T02:00:00+02:00", "2024-05-10T00:00:01Z"),
        ("2024-05-10 00:00:00", "2024-05-10 00:00:01.000000000999"),
        ("2024-05-09 23:30:00,5 -0030", "2024-05-10 00:00:01.5Z"),
    ],
)
def test_zones_and_decimals_of_dates(tmp_path: Path, stamps: tuple[str, str]) -> None:
    quoted = [f'"{s}"' if "," in s else s for s in stamps]
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(f"{s},1,2" for s in quoted)
    assert open_trace(save(tmp_path, text, "t.csv")).trace.span_s == pytest.approx(1.0, abs=1e-7)


# case FMT-12
def test_mooncake_units_and_blocks(tmp_path: Path) -> None:
    reading = open_trace(save(tmp_path, CASES["FMT-12"]["files"]["mc.jsonl"]))
    trace = reading.trace
    assert (reading.time_unit, reading.block_tokens) == ("ms", 512)
    assert trace.arrival_s.tolist() == [0, 0, 3]
    assert trace.prompt_tokens.tolist() == [6758, 600, 300]
    assert np.intersect1d(trace.blocks_of(0), trace.blocks_of(1)).tolist() == [0]
    assert trace.blocks_of(2).size == 0
    assert any("483..519" in n for n in reading.notices) and any("count as unique" in n for n in reading.notices)


# case FMT-12
def test_sixteen_token_blocks_in_seconds(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0.35 * k, "input_length": 40, "output_length": 5, "hash_ids": [7, 8 + k, 10**20 + k]}
        for k in range(9)
    ]
    reading = open_trace(save(tmp_path, rows))
    assert (reading.time_unit, reading.block_tokens) == ("s", 16)
    ids = reading.trace.prefix_ids
    assert ids is not None and np.unique(ids).size == 1 + 9 + 9


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters_quotes_and_extra_columns(tmp_path: Path, delimiter: str) -> None:
    rows = [
        ["model", "timestamp", "input_length", "output_length"],
        ['"a b"', "0.5", "10", "5"],
        ["c", "1.5", '"11"', "6", ""],
    ]
    reading = open_trace(save(tmp_path, "\n".join(delimiter.join(row) for row in rows), "t.csv"))
    assert reading.trace.prompt_tokens.tolist() == [10, 11] and reading.n_rejected == 0


def test_a_table_names_tenants_and_sessions(tmp_path: Path) -> None:
    text = "timestamp,in,out,tenant,session_id\n0.5,10,5,chat,s1\n1.5,10,5,batch,s1\n2.5,10,5,,s2\n"
    trace = open_trace(save(tmp_path, text, "t.csv")).trace
    assert trace.tenants == ("chat", "batch", "default") and trace.tenant.tolist() == [0, 1, 2]
    assert trace.session is not None and trace.session.tolist() == [0, 0, 1]


def test_a_header_that_lacks_a_column_lists_the_columns(tmp_path: Path) -> None:
    path = save(tmp_path, "timestamp,tokens\n1,2\n", "t.csv")
    assert "formats read" in refused(path)
    message = refused(path, reader="csv")
    assert "prompt length and output length" in message and "timestamp, tokens" in message


@pytest.mark.parametrize(
    ("option", "said"),
    [({"time_unit": "h"}, "--time-unit h"), ({"max_bad_rows": -1}, "-1"), ({"reader": "x"}, "--reader x")],
)
def test_bad_options_are_named(tmp_path: Path, option: dict[str, Any], said: str) -> None:
    assert said in refused(save(tmp_path, timed([0.5, 1.5])), **option)


# case EDGE-17 (scaled down; 5.3 million rows took 12 s and 490 MB as CSV, 25 to 47 s and 480 MB as JSON lines)
def test_long_files_stream(tmp_path: Path) -> None:
    peaks = []
    for n in (70_000, 140_000):
        body = "\n".join(f"{k * 0.5},{k % 4000 + 1},{k % 300 + 1}" for k in range(n))
        path = save(tmp_path, "timestamp,input_length,output_length\n" + body, "t.csv")
        del body
        tracemalloc.start()
        trace = open_trace(path).trace
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(trace) == n and trace.rate_per_s == pytest.approx(2.0)
    assert (peaks[1] - peaks[0]) / 70_000 < 120  # bytes a row; as Python rows it would be about 300


# case EDGE-17
def test_too_many_names_are_dropped_and_the_grouping_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optimizer.workload.labels.MAX_LABELLED_ROWS", 50)
    rows = [
        {"request_id": k, "session_id": f"s{k // 2}", **row}
        for k, row in enumerate(timed([0.5 * k for k in range(200)]))
    ]
    reading = open_trace(save(tmp_path, rows))
    assert reading.request_labels is None and reading.session_labels is None
    assert reading.trace.session is not None and reading.trace.session.tolist() == [k // 2 for k in range(200)]
    assert any("request ids were not kept" in n for n in reading.notices)
