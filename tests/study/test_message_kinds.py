"""ITL is compared per token where trials send different numbers of tokens a message."""  # case DIAG-08

from __future__ import annotations

from dataclasses import replace

import pytest

from objectives.metric import METRICS
from objectives.objective import Limit
from optimizer.errors import UserError
from optimizer.profiles.loader import load_profile
from optimizer.study.message_kinds import per_token


def test_speculation_is_compared_per_token() -> None:  # case DIAG-08
    profile = load_profile("chat")
    changed, notes = per_token(profile, {"max_num_seqs", "speculative_config"})
    names = [o.metric for o in changed.objectives]
    assert "steady_itl_per_token_p99_ms" in names and "steady_itl_p99_ms" not in names
    assert all(name in METRICS for name in names)
    assert "speculative_config is searched" in notes[0] and "steady_itl_per_token_p99_ms is compared" in notes[0]


def test_without_it_nothing_changes() -> None:
    profile = load_profile("chat")
    assert per_token(profile, {"max_num_seqs"}) == (profile, ())


@pytest.mark.parametrize("metric", ["steady_worst_itl_ratio", "saturation_itl_p99_ms", "chat:stress_itl_mean_ms"])
def test_a_figure_that_is_counted_between_messages_is_refused(metric: str) -> None:
    profile = replace(load_profile("chat"), limits=(Limit(metric, at_most=1.0),))
    with pytest.raises(UserError, match="leave the one or the other out"):
        per_token(profile, {"stream_interval"})
