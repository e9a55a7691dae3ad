"""The step-time model's shape: what must grow, what must not, and where the cliffs are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from optimizer.engines.simulator.step_time import SCHEDULER_S, SYNC_STEP_S, Roofline, StepShape, graph_sizes
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model


def roofline(model: str = "Llama-3.1-8B", gpu: str = "H100-80", **shape: Any) -> Roofline:
    fields = {"max_num_batched_tokens": 8192, "max_num_seqs": 256} | shape
    return Roofline(find_model(model), find_gpu(gpu), StepShape(**fields))


def decode_s(model: Roofline, n: int, context: int) -> float:
    base, slopes = model.decode_line(n)
    return base + sum(slope * context for slope in slopes)


def test_graph_sizes_are_vllms() -> None:
    sizes = graph_sizes(2048, 256)
    assert sizes[:6] == (1, 2, 4, 8, 16, 24)
    assert sizes[-2:] == (496, 512)
    assert len(sizes) == 51
    assert graph_sizes(2048, 5) == (1, 2, 4, 5, 8)
    assert graph_sizes(64, 64)[-1] == 64


def test_decode_at_batch_one_is_bound_by_weights() -> None:
    """Llama-3.1-8B on an H100: 15 GB of weights at 3.35 TB/s are 5.2 ms at 0.87; hosts and kernels come on top."""
    assert 0.0055 < decode_s(roofline(), 1, 500) < 0.0085


def test_batching_decodes_is_nearly_free_until_the_graphs_end() -> None:
    model = roofline()
    assert decode_s(model, 64, 64 * 500) < 1.6 * decode_s(model, 1, 500)
    assert decode_s(model, 9, 0) == pytest.approx(decode_s(model, 16, 0), rel=0.02)  # padded to 16


def test_longer_contexts_cost_bandwidth() -> None:
    model = roofline()
    extra = decode_s(model, 32, 32 * 4000) - decode_s(model, 32, 32 * 1000)
    assert extra == pytest.approx(32 * 3000 * 131072 / (3350e9 * find_gpu("H100-80").kernels.decode.mbu), rel=0.01)


def test_prefill_is_bound_by_compute() -> None:
    model = roofline()
    once, twice = (model.mixed_s([(n, 0)], 1, 0, ()) for n in (4096, 8192))
    assert 1.8 < twice / once < 2.4
    assert model.mixed_s([(2048, 30000)], 1, 0, ()) > model.mixed_s([(2048, 0)], 1, 0, ())


def test_decodes_beside_a_prefill_are_slower_on_flash_attention_2_cards() -> None:
    for gpu, is_slower in (("A100-80", True), ("H100-80", False)):
        model = roofline(gpu=gpu)
        prefill = model.mixed_s([(512, 0)], 1, 0, ())
        beside = model.mixed_s([(512, 0)], 65, 64, (64 * 4000,)) - prefill
        read = 64 * 4000 * model.decode_line(64)[1][0]
        assert (beside > 1.5 * read) == is_slower


def test_eager_is_bound_by_launches() -> None:
    """Qwen2-1.5B-like layers on an A100-40: published 4.35 ms a token with graphs, 20 ms eager."""
    with_graphs = decode_s(roofline("Qwen2.5-1.5B", "A100-40"), 1, 300)
    eager = decode_s(roofline("Qwen2.5-1.5B", "A100-40", is_eager=True), 1, 300)
    assert 0.003 < with_graphs < 0.006
    assert 0.015 < eager < 0.025


def test_a_batch_beyond_the_captured_sizes_is_never_cheaper() -> None:
    small = roofline("Qwen2.5-1.5B", "H100-80", max_num_seqs=8)
    wide = roofline("Qwen2.5-1.5B", "H100-80", max_num_seqs=256)
    assert decode_s(small, 24, 0) >= decode_s(wide, 24, 0)


def test_experts_are_read_as_they_are_chosen() -> None:
    model = roofline("Qwen3-30B-A3B")
    dense = roofline("Qwen3-32B")
    assert decode_s(model, 1, 0) < 0.3 * decode_s(dense, 1, 0)
    growth = decode_s(model, 64, 0) / decode_s(model, 1, 0)
    assert growth > 2.0  # a batch touches most experts


def test_windows_are_context_groups_of_their_own() -> None:
    model = roofline("gpt-oss-20b")
    assert model.windows == (0, 128)
    assert len(model.decode_line(4)[1]) == 2
    assert roofline().windows == (0,)


def test_latent_attention_reads_little() -> None:
    per_token = roofline("DeepSeek-V2-Lite").decode_line(1)[1][0]
    assert per_token < 0.4 * roofline().decode_line(1)[1][0]


def test_tensor_parallel_divides_weights_and_pays_for_messages() -> None:
    one, two = roofline("Qwen3-32B"), roofline("Qwen3-32B", tp=2)
    assert 0.5 * decode_s(one, 8, 4000) < decode_s(two, 8, 4000) < 0.75 * decode_s(one, 8, 4000)


def test_synchronous_scheduling_shows_the_scheduler() -> None:
    slower = decode_s(roofline(is_async=False), 100, 0) - decode_s(roofline(), 100, 0)
    assert slower == pytest.approx(SYNC_STEP_S + 100 * SCHEDULER_S)


def test_fp8_weights_halve_the_traffic() -> None:
    model = find_model("Llama-3.1-8B")
    fp8 = replace(model, weight_bytes_per_parameter=1.0, is_quantized=True)
    shape = StepShape(max_num_batched_tokens=8192, max_num_seqs=256)
    bf16_s, fp8_s = (decode_s(Roofline(m, find_gpu("H100-80"), shape), 1, 0) for m in (model, fp8))
    assert 0.5 < fp8_s / bf16_s < 0.8


def test_demand_tells_prefill_from_decode() -> None:
    model = roofline()
    decode = model.demand(32, 0, decode_s(model, 32, 32 * 1000))
    prefill = model.demand(4096, 4096, model.mixed_s([(4096, 0)], 1, 0, ()))
    assert decode[1] > 0.7 > decode[0]
    assert prefill[0] > 0.7 > prefill[1]
