"""A log keeps its beginning and its end, whatever a server writes."""

from __future__ import annotations

from pathlib import Path

from optimizer.engines.vllm.log_file import LogFollower, LogWriter, read_log, remove_log


def test_a_short_log_is_kept_whole(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    writer = LogWriter(path)
    writer.write("first\nsecönd\nunfin".encode())
    assert read_log(path) == "first\nsecönd\nunfin"
    writer.close()
    assert read_log(path) == "first\nsecönd\nunfin" and list(tmp_path.iterdir()) == [path]
    assert read_log(tmp_path / "none.log") == ""


def test_of_a_long_log_the_ends_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    writer, follower = LogWriter(path, head_bytes=1000, piece_bytes=500), LogFollower(path)
    seen = []
    for number in range(2000):
        writer.write(f"line {number}\n".encode())
        if number % 7 == 0:
            seen += follower.new_lines()
        assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= 1000 + 2 * 500
    seen += follower.new_lines()
    assert seen == [f"line {number}" for number in range(2000)], "who reads along misses nothing"
    live = read_log(path)
    writer.close()
    text = read_log(path)
    assert text == live and list(tmp_path.iterdir()) == [path]
    assert text.startswith("line 0\nline 1\n") and text.endswith("line 1998\nline 1999\n")
    assert "are left out here" in text and len(text) < 2200


def test_a_follower_that_sleeps_goes_on_with_what_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    writer, follower = LogWriter(path, head_bytes=1000, piece_bytes=500), LogFollower(path)
    assert follower.new_lines() == []
    writer.write(b"\n".join(b"%d" % n for n in range(3000)) + b"\n")
    lines = follower.new_lines()
    assert lines[0] == "0" and lines[-1] == "2999" and follower.new_lines() == []
    writer.close()


def test_an_old_log_is_not_taken_for_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    writer = LogWriter(path, head_bytes=10, piece_bytes=10)
    writer.write(b"x" * 35)
    writer.close()
    (tmp_path / "server.log.4").write_text("of one that was killed before it could join them")
    (tmp_path / "server.log.txt").write_text("not a piece")
    remove_log(path)
    assert [p.name for p in tmp_path.iterdir()] == ["server.log.txt"]
    remove_log(path)
