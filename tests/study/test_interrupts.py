"""Ctrl-C in the midst of a call to the storage."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import optuna
import pytest
from sqlalchemy import event

from optimizer.study.interrupts import interrupts_held
from optimizer.study.storage import close_connections, open_storage


def interrupt_me(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_transaction_is_done_whole_before_the_interrupt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage = open_storage(f"sqlite:///{tmp_path}/study.db")
    study = optuna.create_study(storage=storage, study_name="s")
    caplog.clear()
    event.listen(storage.engine, "before_cursor_execute", interrupt_me)
    with pytest.raises(KeyboardInterrupt):
        storage.set_study_user_attr(study._study_id, "kept", 1)
    event.remove(storage.engine, "before_cursor_execute", interrupt_me)
    assert storage.get_study_user_attrs(study._study_id) == {"kept": 1}
    assert not caplog.records
    close_connections(storage)


def test_an_interrupt_takes_effect_once_at_the_end_of_the_outermost_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_held():
        with interrupts_held():
            interrupt_me()
            done.append("inner")
        interrupt_me()
        done.append("outer")
    assert done == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_failure_inside_gives_way_to_the_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts_held():
        interrupt_me()
        raise ValueError("lost")


def test_other_threads_hold_nothing() -> None:
    seen = []

    def work() -> None:
        with interrupts_held():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
