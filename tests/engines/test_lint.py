"""Roofline lint: what a card cannot have done is named with its reason; what it can have done is left alone."""

from __future__ import annotations

import pytest

from optimizer.engines.simulator.lint import Reported, faster_than_physics
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model

LLAMA, H100 = find_model("Llama-3.1-8B"), find_gpu("H100-80")


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (Reported(tpot_ms=3.0), "reading the weights alone takes 4.48 ms"),  # half of 6: chunks counted twice
        (Reported(ttft_ms=20.0, prompt_tokens=4000), "prompts were in the prefix cache"),
        (Reported(output_tokens_per_s=9000, prompt_tokens=3000, output_tokens=100), "times the peak FLOPs"),
        (Reported(tp=2, tpot_ms=1.9), "2 x H100-80"),
    ],
)
def test_what_is_faster_than_physics_is_named(seen: Reported, said: str) -> None:
    (found,) = faster_than_physics(LLAMA, H100, seen)
    assert said in found


@pytest.mark.parametrize(
    "seen",
    [
        Reported(),
        Reported(tpot_ms=6.5, ttft_ms=120.0, prompt_tokens=4000, output_tokens=100, output_tokens_per_s=1000.0),
        Reported(tp=2, tpot_ms=3.5),
        Reported(output_tokens_per_s=9000, prompt_tokens=30, output_tokens=100),
    ],
)
def test_what_is_possible_is_left_alone(seen: Reported) -> None:
    assert faster_than_physics(LLAMA, H100, seen) == ()


def test_a_mixture_of_experts_reads_only_what_a_token_chooses() -> None:
    model = find_model("Mixtral-8x7B")
    assert faster_than_physics(model, H100, Reported(tp=2, tpot_ms=5.0)) == ()
    assert faster_than_physics(model, H100, Reported(tp=2, tpot_ms=1.0))
