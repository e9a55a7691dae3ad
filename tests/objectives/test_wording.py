"""Figures, limits and sentences as people read them."""

from __future__ import annotations

import pytest

from objectives.wording import limit_text, name_of, with_names


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ("stress_min_free_memory_bytes >= 2.68435e+08", "least free memory (stress) at least 0.25 GiB"),
        ("steady_ttft_p99_ms <= 20720", "P99 TTFT (steady) at most 20.7 s"),
        ("steady_worst_ttft_ratio <= 2", "worst tenant's P99 TTFT (steady) at most 2 \N{MULTIPLICATION SIGN} target"),
        ("chat:steady_stall_p99_ms <= 776.871", "chat: P99 longest gap (steady) at most 777 ms"),
        ("unsustained", "keeps up with the rate R"),
        ("a word", "a word"),
    ],
)  # fmt: skip
def test_a_limit_is_said_with_its_unit(limit: str, text: str) -> None:
    assert limit_text(limit) == text


def test_a_sentence_has_no_metric_names_left() -> None:
    text = "misses stress_min_free_memory_bytes >= 2.68435e+08 by 3 %; the gain in chat:steady_ttft_p99_ms is gone"
    assert with_names(text) == (
        "misses least free memory (stress) at least 0.25 GiB by 3 %; the gain in chat:P99 TTFT (steady) is gone"
    )
    assert name_of("steady_ttft_p99_ms") == "P99 TTFT (steady)"
