from __future__ import annotations

from dataclasses import replace

import pytest

from optimizer.engines.vllm.watchdog import ProgressWatchdog, Sign

RUNNING = Sign(0.0, tokens_total=500.0, n_running=2.0)


def fed(signs: list[Sign], limit_s: float = 30.0) -> tuple[float, str] | None:
    """When the watchdog barks, and what."""
    watchdog = ProgressWatchdog(limit_s)
    for sign in signs:
        verdict = watchdog.look(sign)
        if verdict is not None:
            return sign.time_s, verdict
    return None


def seconds(until_s: int, sign: Sign = RUNNING, start_s: int = 0) -> list[Sign]:
    return [replace(sign, time_s=float(t)) for t in range(start_s, until_s)]


def test_no_token_with_requests_running_is_a_hang_whatever_health_says() -> None:  # case DIAG-16
    watchdog = ProgressWatchdog(30.0)
    verdicts = [watchdog.feed(float(t), 1000.0, 2.0) for t in range(0, 121, 10)]
    assert verdicts[:3] == [None, None, None]
    assert verdicts[3] == "2 request(s) running and no token for 30 s"
    assert all(verdicts[3:])


def test_a_hang_stays_one() -> None:
    watchdog = ProgressWatchdog(5.0)
    watchdog.feed(0.0, 1.0, 1.0)
    assert watchdog.feed(6.0, 1.0, 1.0) == watchdog.feed(7.0, 2.0, 1.0)


def test_tokens_are_progress() -> None:
    assert fed([replace(s, tokens_total=s.time_s // 25) for s in seconds(300)]) is None


def test_messages_at_the_client_are_progress() -> None:
    assert fed([replace(s, last_client_message_s=s.time_s // 25) for s in seconds(300)]) is None


def test_an_idle_server_is_not_hung() -> None:
    assert fed(seconds(300, replace(RUNNING, n_running=0.0, n_in_flight=0))) is None


def test_silence_is_counted_from_when_there_is_work() -> None:
    idle = seconds(100, replace(RUNNING, n_running=0.0))
    found = fed(idle + seconds(200, start_s=100))
    assert found is not None
    assert found[0] == pytest.approx(129, abs=1)


def test_a_long_prefill_that_takes_blocks_chunk_by_chunk_is_progress() -> None:
    assert fed([replace(s, state=(s.time_s // 10,)) for s in seconds(300)]) is None


def test_a_single_step_of_a_hundred_seconds_is_no_hang_while_it_computes() -> None:
    assert fed(seconds(101, replace(RUNNING, engine_cores=1.0))) is None


def test_computing_without_an_end_is_a_hang() -> None:  # case DIAG-16: the card said 96 %
    found = fed(seconds(200, replace(RUNNING, engine_cores=1.0)))
    assert found is not None
    assert found[0] == 120
    assert found[1] == "2 request(s) running and no token for 120 s; its processes use 1 cores"


def test_a_stopped_engine_is_a_hang_though_its_server_answers() -> None:
    busy, stopped = replace(RUNNING, engine_cores=1.0), replace(RUNNING, engine_cores=0.01)
    found = fed(seconds(20, busy) + seconds(100, stopped, 20))
    assert found is not None
    assert found[0] == pytest.approx(49, abs=1)


def test_a_server_that_does_not_answer_is_judged_by_what_the_client_waits_for() -> None:
    mute = Sign(0.0, tokens_total=None, n_running=None, n_in_flight=4)
    found = fed(seconds(100, mute))
    assert found is not None
    assert found[1].startswith("4 request(s) in flight (/metrics does not answer) and no token for 30 s")
    assert fed(seconds(100, replace(mute, n_in_flight=0))) is None


def test_a_request_that_the_engine_lost_is_a_hang() -> None:
    found = fed(seconds(100, replace(RUNNING, n_running=0.0, n_in_flight=1)))
    assert found is not None
    assert "1 request(s) in flight (none running)" in found[1]


def test_readings_that_fail_now_and_then_are_no_progress() -> None:
    signs = [replace(s, tokens_total=None, state=None) if s.time_s % 3 else replace(s, state=(1,)) for s in seconds(60)]
    assert fed(signs) is not None


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0 s, got 0"):
        ProgressWatchdog(0.0)
