"""Whatever a file holds, it is a trace or one clear line, never a traceback."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from optimizer.errors import UserError
from optimizer.workload.character import characterize
from optimizer.workload.packaged import NAMES, packaged
from optimizer.workload.reader import open_trace
from optimizer.workload.reading import Reading

slow_is_fine = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
RAW = {name: packaged(name).read_bytes() for name in NAMES}
GOOD = {name: gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw for name, raw in RAW.items()}


def read(path: Path, content: bytes) -> Reading | None:
    path.write_bytes(content)
    try:
        reading = open_trace(path)
    except UserError as error:
        assert "\n" not in str(error) and str(path) in str(error)
        return None
    assert reading.n_rows == len(reading.trace) + reading.n_rejected
    assert reading.trace.arrival_s[0] == 0
    characterize(reading.trace)
    return reading


@slow_is_fine
@given(content=st.one_of(st.binary(max_size=300), st.text(max_size=200).map(lambda s: s.encode("utf-8", "replace"))))
def test_any_content(tmp_path: Path, content: bytes) -> None:
    read(tmp_path / "t", content)
    read(tmp_path / "t", b"timestamp,input_length,output_length\n" + content)
    read(tmp_path / "t", b'{"timestamp":0.5,"input_length":1,"output_length":2}\n' + content)


@slow_is_fine
@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
def test_damaged_traces(tmp_path: Path, name: str, data: st.DataObject) -> None:
    content = bytearray(GOOD[name][:4000])
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 30))] = data.draw(st.binary(max_size=12))
        content = content or bytearray(b"x")
    read(tmp_path / "t", bytes(content))
