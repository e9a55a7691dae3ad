"""Every trace reader keeps the same promises. A new format adds its reader to READERS and a writer to WRITERS."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from optimizer.errors import UserError
from optimizer.workload.lines import read_head
from optimizer.workload.reader import READERS, Reader, find_reader, open_trace

Row = tuple[float, object, object]
"""(seconds, prompt, output)"""


def azure(rows: list[Row]) -> list[str]:
    stamps = (np.datetime64("2026-01-01T10:00:00", "us") + np.timedelta64(round(t * 1e6), "us") for t, _, _ in rows)
    lines = [f"{str(s).replace('T', ' ')}0,{i},{o}" for s, (_, i, o) in zip(stamps, rows, strict=True)]
    return ["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]


def mooncake(rows: list[Row]) -> list[str]:
    return [
        json.dumps({"timestamp": round(t * 1000), "input_length": i, "output_length": o, "hash_ids": [0, k + 1]})
        for k, (t, i, o) in enumerate(rows)
    ]


def table(rows: list[Row]) -> list[str]:
    return ["arrival_time_s,prompt_tokens,completion_tokens", *(f"{t},{i},{o}" for t, i, o in rows)]


WRITERS: dict[str, Callable[[list[Row]], list[str]]] = {"azure": azure, "mooncake": mooncake, "csv": table}
ROWS: list[Row] = [(0.5 * k, 600 + k, 10 + k) for k in range(30)]


@pytest.fixture(params=READERS, ids=lambda r: r.name)
def reader(request: pytest.FixtureRequest) -> Reader:
    found: Reader = request.param
    return found


@pytest.fixture
def write(reader: Reader, tmp_path: Path) -> Callable[..., Path]:
    def _write(rows: list[Row], *, end: str = "\n", last: str = "\n", bom: bytes = b"", name: str = "t.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(bom + (end.join(WRITERS[reader.name](rows)) + last).encode())
        return path

    return _write


def test_every_reader_has_a_writer_here_and_a_name_of_its_own() -> None:
    assert {r.name for r in READERS} == set(WRITERS)
    assert all(r.looks_like for r in READERS)


def test_it_recognises_its_own_files_and_they_read_back_exactly(reader: Reader, write: Callable[..., Path]) -> None:
    path = write(ROWS)
    assert find_reader(read_head(path), path).name == reader.name
    reading = open_trace(path)
    assert reading.reader == reader.name
    assert reading.n_rows == len(reading.trace) == 30
    assert reading.n_rejected == 0
    np.testing.assert_allclose(reading.trace.arrival_s, [t for t, _, _ in ROWS], atol=1e-9)
    assert reading.trace.prompt_tokens.tolist() == [i for _, i, _ in ROWS]
    assert reading.trace.output_tokens.tolist() == [o for _, _, o in ROWS]


def test_it_tells_unit_span_and_rate(reader: Reader, write: Callable[..., Path]) -> None:
    reading = open_trace(write(ROWS))
    assert reading.time_unit_reason
    assert "time unit" in reading.notices[0] and "span 14.5 s" in reading.notices[0] and "2 req/s" in reading.notices[0]


@pytest.mark.parametrize(
    "style",
    [{"end": "\r\n"}, {"last": ""}, {"end": "\r\n", "last": ""}, {"end": "\n\n"}, {"bom": b"\xef\xbb\xbf"}],
    ids=str,
)
def test_line_ends_marks_and_blank_lines_do_not_matter(write: Callable[..., Path], style: dict[str, object]) -> None:
    plain = open_trace(write(ROWS)).trace.content_hash
    assert open_trace(write(ROWS, **style)).trace.content_hash == plain


def test_gzip_is_read_whatever_its_name(write: Callable[..., Path]) -> None:
    path = write(ROWS)
    zipped = path.with_name("named_wrongly.csv")
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    assert open_trace(zipped).trace.content_hash == open_trace(path).trace.content_hash


def test_utf16_is_read(write: Callable[..., Path]) -> None:
    path = write(ROWS)
    wide = path.with_name("wide")
    wide.write_bytes(path.read_text().encode("utf-16"))
    assert open_trace(wide).trace.content_hash == open_trace(path).trace.content_hash


def test_comments_are_skipped_and_lines_still_counted(reader: Reader, write: Callable[..., Path]) -> None:
    lines = WRITERS[reader.name]([*ROWS, (20.0, 700, -3)])
    path = write(ROWS)
    path.write_text("\n".join(["# a comment", *lines]))
    reading = open_trace(path)
    assert len(reading.trace) == 30
    assert [r.line for r in reading.rejected] == [len(lines) + 1]


def test_bad_lengths_are_rejected_with_line_and_reason(reader: Reader, write: Callable[..., Path]) -> None:
    bad: list[Row] = [(20.0, 0, 5), (21.0, -5, 5), (22.0, 600.7, 5), (23.0, 600, 0), (24.0, 600.0, 5), (25.0, "x", 5)]
    header = len(WRITERS[reader.name]([]))
    reading = open_trace(write([*ROWS, *bad]))
    assert len(reading.trace) == 31  # 600.0 is a whole number
    assert [r.line - header for r in reading.rejected] == [31, 32, 33, 34, 36]
    assert reading.n_rejected == sum(reading.rejected_counts.values()) == 5
    assert all(r.reason in reading.rejected_counts for r in reading.rejected)
    assert any("5 of 36 rows were rejected" in notice for notice in reading.notices)


def test_zero_outputs_count_as_one_token_only_when_asked(write: Callable[..., Path]) -> None:
    path = write([*ROWS, (20.0, 600, 0)])
    assert len(open_trace(path).trace) == 30
    assert open_trace(path, zero_output="one").trace.output_tokens[-1] == 1


def test_rows_out_of_order_are_sorted_stably_and_said(reader: Reader, write: Callable[..., Path]) -> None:
    swapped = [ROWS[1], ROWS[0], *ROWS[2:]]
    reading = open_trace(write(swapped))
    assert reading.trace.prompt_tokens[:3].tolist() == [600, 601, 602]
    assert reading.trace.arrival_s[0] == 0
    assert any("out of order" in notice for notice in reading.notices)
    if reading.trace.prefix_ids is not None:
        assert reading.trace.blocks_of(0).tolist() == [0, 2]


def test_strict_makes_any_oddity_an_error(write: Callable[..., Path]) -> None:
    open_trace(write(ROWS), strict=True)
    with pytest.raises(UserError, match="strict"):
        open_trace(write([*ROWS, (20.0, 0, 5)]), strict=True)
    with pytest.raises(UserError, match="strict"):
        open_trace(write([ROWS[1], ROWS[0], *ROWS[2:]]), strict=True)


def test_max_bad_rows_is_a_bound_not_a_default(write: Callable[..., Path]) -> None:
    path = write([*ROWS, (20.0, 0, 5), (21.0, 0, 5)])
    assert open_trace(path, max_bad_rows=2).n_rejected == 2
    with pytest.raises(UserError, match="more than 1 rows"):
        open_trace(path, max_bad_rows=1)


def test_nothing_usable_is_one_line_that_names_the_file(write: Callable[..., Path]) -> None:
    path = write([(0.0, 0, 5), (1.0, 0, 5)])
    with pytest.raises(UserError, match="0 usable requests") as caught:
        open_trace(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_garbage_between_rows_costs_only_those_rows(reader: Reader, write: Callable[..., Path]) -> None:
    lines = WRITERS[reader.name](ROWS)
    lines[10:10] = ["{]", "garbage", "\x01\x02", '"', "[1, 2]", "null", "7"]
    path = write(ROWS)
    path.write_text("\n".join(lines))
    reading = open_trace(path)
    assert len(reading.trace) == 30
    assert [r.line for r in reading.rejected] == list(range(11, 18))


def test_reading_twice_gives_the_same_trace(write: Callable[..., Path]) -> None:
    path = write(ROWS)
    before = path.read_bytes()
    assert open_trace(path).trace.content_hash == open_trace(path).trace.content_hash
    assert path.read_bytes() == before


def test_readers_do_not_claim_each_others_files(reader: Reader, write: Callable[..., Path]) -> None:
    head = read_head(write(ROWS))
    sure = {r.name: r.sniff(head, Path("x")) for r in READERS}
    assert max(sure, key=lambda name: sure[name]) == reader.name
    assert all(0 <= confidence <= 1 for confidence in sure.values())
