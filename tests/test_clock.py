from __future__ import annotations

import pytest

from optimizer.clock import REAL_CLOCK, Clock, VirtualClock


@pytest.mark.parametrize("clock", [REAL_CLOCK, VirtualClock()])
def test_time_passes_by_sleeping_and_never_goes_back(clock: Clock) -> None:
    begin = clock.now_s()
    clock.sleep_s(0.01)
    assert clock.now_s() - begin >= 0.01
    clock.sleep_s(-5)
    clock.sleep_s(0)
    assert clock.now_s() - begin >= 0.01


def test_virtual_time_is_exact_and_refuses_the_past() -> None:
    clock = VirtualClock(10.0)
    clock.sleep_s(3600.0)
    assert clock.now_s() == 3610.0
    clock.advance_to(4000.0)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance_to(3999.0)
