"""Ctrl-C and the storage: a call to it is done whole before the interrupt takes effect."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from optuna.storages import BaseStorage, RDBStorage


@contextmanager
def interrupts_held() -> Iterator[None]:
    """SIGINT inside the block takes effect at its end, in the way it would have. Nothing changes outside the main
    thread, which is never interrupted, nor where somebody else's handler is not Python's."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            before(*held[0])


class WholeStorage(RDBStorage):
    """An interrupt in the midst of a transaction makes SQLAlchemy drop the connection and log the cursor it lost with
    a traceback; here every call ends first."""


def _whole(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **keywords: Any) -> Any:
        with interrupts_held():
            return method(*arguments, **keywords)

    return call


for _name, _method in vars(BaseStorage).items():
    if not _name.startswith("_") and callable(_method):
        setattr(WholeStorage, _name, _whole(getattr(RDBStorage, _name)))
