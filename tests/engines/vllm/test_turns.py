"""Starts take turns: one at a time on a device, and as many on a host as its memory holds."""

from __future__ import annotations

import tempfile
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from optimizer.engines.vllm.turns import (
    BOOT_BYTES,
    free_host_bytes,
    start_lock,
    start_need_bytes,
    start_room,
)


@pytest.fixture(autouse=True)
def own_host_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


class Waiting(threading.Thread):
    """Someone who wants a turn; `has_it` once it is theirs."""

    def __init__(self, turn: AbstractContextManager[None]) -> None:
        super().__init__(daemon=True)
        self._turn = turn
        self.has_it = threading.Event()
        self.may_go = threading.Event()
        self.start()

    def run(self) -> None:
        with self._turn:
            self.has_it.set()
            self.may_go.wait(10)


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (["GPU-1"], ["GPU-1"], False),
        (["GPU-1"], ["GPU-2"], True),
        (["GPU-1", "GPU-2"], ["GPU-2", "GPU-1"], False),
        (["MIG-1/2"], ["GPU-1"], True),
        ([], [], False),
    ],
)
def test_one_at_a_time_on_a_device(first: list[str], second: list[str], together: bool) -> None:  # case MULTI-01
    small = 2**20
    with start_lock(first, small):
        other = Waiting(start_lock(second, small))
        assert other.has_it.wait(0.5) is together
    assert other.has_it.wait(5)
    other.may_go.set()
    other.join()


def test_starts_wait_for_free_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:  # case OOM-18
    need_bytes = free_host_bytes() * 2 // 5
    first = Waiting(start_room(need_bytes))
    assert first.has_it.wait(5), "the only one never waits"
    second = Waiting(start_room(need_bytes))
    assert second.has_it.wait(5), "two fit"
    third = Waiting(start_room(need_bytes))
    assert not third.has_it.wait(0.7), "three do not"
    first.may_go.set()
    assert third.has_it.wait(5)
    for one in (second, third):
        one.may_go.set()
        one.join()


def test_one_start_that_cannot_fit_is_let_try() -> None:
    begin_s = time.monotonic()
    with start_room(free_host_bytes() * 10):
        assert time.monotonic() - begin_s < 2


def test_what_a_start_needs(tmp_path: Path) -> None:
    (tmp_path / "model-1.safetensors").write_bytes(b"x" * 1000)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 500)
    (tmp_path / "tokenizer.json").write_bytes(b"x" * 5000)
    assert start_need_bytes(str(tmp_path), kv_bytes=7) == BOOT_BYTES + 1507
    assert start_need_bytes("org/on-the-hub") == BOOT_BYTES
