"""Servers of which several loads or several concurrencies are known, and cards that others use, too."""

from __future__ import annotations

from optimizer.questions.situation import Gauge, Interference, Lengths, Situation, Tail
from tests.questions.situations import FITS, QUIET, Told, bare, cores, first_token, gap, known, lengths, queue, tokens


def sweep(*rows: tuple[float, float], **known_of_each: object) -> list[Situation]:
    """(requests at once, tokens/s) of each load."""
    return [
        bare(source=f"c={c}", running=Gauge(c, c), waiting=Gauge(0, 0), output_tokens_per_s=t, n_preemptions=0,
             n_finished=99, **known_of_each) for c, t in rows
    ]  # fmt: skip


STEADY = known("steady", **QUIET)
SEVERAL = (
    Told(
        "throughput grows with the batch",
        sweep((1, 50), (2, 97), (4, 187), (8, 360), (16, 690)),
        {"health": "healthy", "q1": "decode bandwidth"},
    ),
    Told(
        "flat because the engine has no more of its core",
        sweep((8, 900), (16, 1000), (32, 1010), (64, 1005), cpu=cores(engine_core=1.0), kernel_resident_share=0.4),
        {"q1": "neither", "q2": "cpu high"},
        not_words=("compute above",),
    ),
    Told(
        "flat from four requests on, and the rest waits",
        [
            bare(source=f"c={c}", running=Gauge(c, c), waiting=Gauge(0, 0), output_tokens_per_s=t, n_preemptions=0,
                 n_finished=50, ttft_ms=Tail(1e3 * s, 1e3 * s, 1e3 * s), queue_mean_s=max(s - 0.1, 0.0),
                 config={"max_num_seqs": 256, "max_num_batched_tokens": 8192}, kernel_resident_share=0.99)
            for c, t, s in ((1, 137, 0.03), (4, 520, 0.2), (8, 522, 3.9), (16, 519, 11.8))
        ],
        {"q1": "bandwidth up to 4, compute above", "q4": "workload"},
        never=("max_num_seqs", "max_num_batched_tokens"),
        words=("cap admission near 4",),
    ),  # case DIAG-01
    Told(
        "only the saturation load preempts, which it is made to",
        [STEADY, known("saturation", **queue(250, 300, most=256), **gap(25), **tokens(9500), kv_usage=Gauge(0.95, 1.0),
                       n_preemptions=400),
         known("stress", **queue(60, 0), kv_usage=Gauge(0.3, 0.5))],
        FITS | {"q3": "healthy high"},
    ),
    Told(
        "the peak preempts",
        [STEADY, known("stress", **queue(60, 20, 1.0), kv_usage=Gauge(0.9, 1.0), n_preemptions=90, n_finished=100)],
        {"health": "degraded", "q3": "peak"},
        words=("preemptions under the stress load",),
    ),
    Told(
        "of the peak neither failures nor preemptions were read",
        [STEADY, known("stress", **queue(60, 2), n_failed=None, n_preemptions=None)],
        {"q3": "healthy low"},
    ),
    Told(
        "a cache that cannot grow, because the card is shared",
        [known(**queue(60, 80, 0.8), **gap(14, 90), **tokens(4000), kv_usage=Gauge(0.97, 1.0), n_preemptions=200,
               kv_tokens=65_536, is_alone=False, is_sustained=False, offered_per_s=10.0,
               config={"kv_cache_memory_bytes": 8 * 2**30})],
        {"q4": "workload"},
        never=("kv_cache_memory_bytes", "gpu_memory_utilization"),
    ),
    Told(
        "the same alone on its card",
        [known(**queue(60, 80, 0.8), **gap(14, 90), **tokens(4000), kv_usage=Gauge(0.97, 1.0), n_preemptions=200,
               kv_tokens=65_536, is_sustained=False, offered_per_s=10.0, config={"kv_cache_memory_bytes": 8 * 2**30})],
        {"q4": "parameters"},
    ),
    Told(
        "a few very long requests fill the cache, and none is preempted",
        [known(model="Llama-3.1-70B", n_gpus=4, config={"tensor_parallel_size": 4, "max_model_len": 131_072},
               kv_tokens=300_000, **lengths(60_000, 800), **queue(4.6, 12, 0.02), **gap(30, 900), **tokens(100, 5000),
               **first_token(100_000, 90, 5), kv_usage=Gauge(0.93, 0.99), offered_per_s=0.12, finished_per_s=0.085,
               is_sustained=False, n_finished=40)],
        {"health": "degraded", "q4": "workload", "line 1": "not the cause"},
        words=("cap admission at about 4",),
    ),
    Told(
        "spikes that no prefill makes",
        [known(**QUIET, interference=Interference(50, 5, 0.15, 0.008))],
        {"spikes": "other"},
        never=("max_num_batched_tokens",),
    ),
    Told(
        "messages of several tokens",
        [known(**{**QUIET, **queue(8, 0), **gap(9, 20)}, tokens_per_message=3.1, itl_per_token_ms=Tail(2.9, 9),
               config={"speculative_config": '{"method": "eagle3", "num_speculative_tokens": 4}'})],
        FITS | {"q1": "decode bandwidth"},
        words=("ITL is per message of 3.1 tokens",),
    ),  # case DIAG-08
    Told(
        "the prompts are short and the answers one token, of nothing else",
        [known(**{**QUIET, "prompts": Lengths(0), "outputs": Lengths(0), "totals": Lengths(0)})],
        {"health": "healthy"},
    ),
)  # fmt: skip
