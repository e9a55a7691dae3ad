"""Situations and what an expert would say of each: what binds, who waits for the CPU, what the load is, preemption."""

from __future__ import annotations

from optimizer.questions.peak import Breakage
from optimizer.questions.situation import CpuUse, Gauge, Interference, Lengths, Tail
from tests.questions.situations import (
    FITS,
    QUIET,
    Told,
    bare,
    cores,
    first_token,
    gap,
    kept_up,
    known,
    lengths,
    queue,
    tokens,
)

BOUND = (
    Told(
        "small batch, bandwidth",
        [known(**{**QUIET, **queue(4, 0), **gap(7.0, 9), **tokens(560, 1500)})],
        FITS | {"q1": "decode bandwidth", "q2": "gpu", "q5": "faster"},
    ),
    Told(
        "prefill is all it does",
        [known(**lengths(4000, 1), **queue(10, 1), **tokens(8, 32_000), **kept_up(8, 0.7), kv_usage=Gauge(0.1, 0.2))],
        FITS | {"q1": "prefill compute", "q2": "gpu"},
    ),
    Told(
        "prefill fills the card and a queue grows",
        [
            known(
                **lengths(6000, 20), **queue(12, 40, 0.6), **gap(250, 420), **tokens(100, 31_000),
                **first_token(8000, 7, 1), is_sustained=False, offered_per_s=6.0, kv_usage=Gauge(0.2, 0.3),
            )
        ],
        {"health": "degraded", "q1": "decode compute, prefill compute", "q2": "gpu", "q3": "overloaded",
         "q4": "workload"},
        never=("max_num_seqs",),
    ),
    Told(
        "decode fills the arithmetic and every seat is taken",
        [
            known(
                gpu="A100-80", **lengths(10, 150), **queue(512, 600, 5.0, most=512), **gap(50, 65),
                **tokens(10_000, 700), **first_token(8000, 7.9, 0.05), is_sustained=False, offered_per_s=90.0,
                kv_usage=Gauge(0.1, 0.12), config={"max_num_seqs": 512},
            )
        ],
        {"q1": "decode compute", "q4": "workload", "q5": "steadier"},
        never=("max_num_seqs",),
    ),
    Told(
        "experts are read in part only",
        [known(model="Qwen3-30B-A3B", **{**QUIET, **queue(8, 0), **gap(9, 20), **tokens(800, 2000)})],
        FITS | {"q1": "decode bandwidth|decode neither"},
    ),
    Told(
        "two cards, one replica",
        [known(model="Qwen3-32B", n_gpus=2, config={"tensor_parallel_size": 2}, **{**QUIET, **queue(16, 0), **gap(16.5)})],
        FITS | {"q1": "decode bandwidth", "q2": "gpu"},
    ),
    Told(
        "two cards, two replicas",
        [known(n_gpus=2, config={"tensor_parallel_size": 1, "data_parallel_size": 2}, kv_tokens=860_000,
               **{**QUIET, **queue(32, 0), **gap(7.2), **tokens(4300, 3000), "kv_usage": Gauge(0.03, 0.1)})],
        FITS | {"q1": "decode bandwidth", "q2": "gpu"},
    ),
    Told(
        "gaps a token though steps bring several: shorter than the card can",
        [known(config={"speculative_config": '{"method": "eagle3", "num_speculative_tokens": 4}'},
               **{**QUIET, **queue(4, 0), **gap(2.6)})],
        FITS | {"q1": "unknown"},
        words=("shorter than this card could make it",),
    ),
    Told(
        "an 8-bit cache is read at half the bytes",
        [known(config={"kv_cache_dtype": "fp8"}, kv_tokens=860_000, cached_share=0.9, **lengths(8000, 500),
               **{**QUIET, **queue(80, 0), **gap(22, 60), **tokens(3600, 1000), "kv_usage": Gauge(0.77, 0.85)})],
        {"health": "healthy", "q1": "decode bandwidth"},
        not_words=("MBU 1",),
    ),
)  # fmt: skip

HOST = (
    Told(
        "the engine's thread is full and kernels are absent",
        [known(model="Qwen2.5-0.5B", cpu=cores(api_server=0.45, engine_core=1.0), kernel_resident_share=0.3,
               **{**QUIET, **queue(64, 5), **gap(9)})],
        {"q2": "cpu high"},
        never=("gpu_memory_utilization", "kv_cache_memory_bytes"),
        words=("EngineCore is at a full core",),
    ),
    Told(
        "NVML says 100 %, the steps say ten times the floor",
        [known(model="Qwen2.5-0.5B", cpu=cores(api_server=0.4, engine_core=0.75), kernel_resident_share=1.0,
               **{**QUIET, **queue(32, 0), **gap(6)})],
        {"q1": "decode neither", "q2": "cpu"},
    ),
    Told(
        "the engine spins while the card is busy",
        [known(cpu=cores(api_server=0.25, engine_core=0.99), kernel_resident_share=1.0,
               **{**QUIET, **queue(32, 0), **gap(7.6), **tokens(4100, 4000)})],
        FITS | {"q2": "gpu"},
        words=("spins while it waits",),
    ),
    Told(
        "nothing known of the processes, kernels absent",
        [bare(**queue(64, 0), output_tokens_per_s=3000.0, n_preemptions=0, n_finished=99, kernel_resident_share=0.3)],
        {"health": "healthy", "q2": "cpu medium"},
    ),
    Told(
        "long prompts are tokenised by one front end at its core",
        [known(cpu=cores(api_server=1.0, engine_core=0.4), cached_share=0.7, **lengths(30_000, 50), config={"max_model_len": 131_072}, **queue(2, 0),
               **gap(8, 200), **tokens(100, 9000), **first_token(3200, 0.05, 0.5), kv_usage=Gauge(0.1, 0.2))],
        {"q2": "cpu"},
        changes={"api_server_count": (2, 4)},
    ),
    Told(
        "the same with only its times known",
        [known(cached_share=0.7, **lengths(30_000, 50), config={"max_model_len": 131_072}, **queue(2, 0), **gap(8, 200), **tokens(100, 9000),
               **first_token(3200, 0.05, 0.5), kv_usage=Gauge(0.1, 0.2))],
        {"q2": "cpu low"},
        words=("pass in the front end",),
    ),
    Told(
        "as many front ends as the space has, and full",
        [known(cpu={"api_server": CpuUse(0.98, 0.97, 4), "engine_core": CpuUse(0.6, 0.6)},
               **{**QUIET, **queue(128, 3), **gap(25), **tokens(4700)})],
        {"q2": "cpu"},
        never=("api_server_count",),
        words=("second replica",),
    ),
    Told(
        "the load generator is late, not the server",
        [known(client_fault="a client process was busy all the time (1.00 cores)", **queue(40, 0), **gap(12, 40),
               **tokens(2200), kv_usage=Gauge(0.1, 0.12), offered_per_s=20.0, finished_per_s=11.2, is_sustained=False)],
        {"health": "healthy", "q2": "client", "q3": "healthy", "q4": "unknown"},
        never=("*",),
    ),
    Told(
        "almost idle: steps far apart are no slow steps",
        [known(**{**QUIET, **queue(0.05, 0, most=1), **tokens(7, 20), "itl_ms": None}, n_steps=840)],
        FITS | {"q2": "unknown"},
    ),
    Told(
        "idle",
        [known(**queue(0, 0), **tokens(0, 0), kv_usage=Gauge(0, 0), n_finished=0, n_requests=0, n_steps=0,
               cpu=cores(api_server=0.01, engine_core=0.02), kernel_resident_share=0.0)],
        FITS | {"q1": "unknown", "q2": "neither"},
        never=("*",),
    ),
)  # fmt: skip

LOAD = (
    Told(
        "seats bind, the cache has room",
        [known(**queue(16, 150, 2.0, most=16), **gap(7.5, 30), **tokens(1700, 6500), **first_token(20_000, 19.5, 0.2),
               kv_usage=Gauge(0.04, 0.06), offered_per_s=12.0, is_sustained=False, config={"max_num_seqs": 16})],
        {"health": "degraded", "q3": "overloaded", "q4": "parameters", "q5": "steadier"},
        changes={"max_num_seqs": (17, 64)},
    ),
    Told(
        "the cache is small because a third of the card was given",
        [known(**queue(68, 60, 0.5), **gap(15, 90), **tokens(4300), kv_usage=Gauge(0.97, 1.0), n_preemptions=300,
               kv_tokens=70_000, offered_per_s=12.0, is_sustained=False, config={"gpu_memory_utilization": 0.35})],
        {"health": "degraded", "q4": "parameters", "q5": "steadier", "line 1": "cause"},
        changes={"gpu_memory_utilization": (0.4, 0.95)},
    ),
    Told(
        "the cache is small because the card is",
        [known(gpu="RTX-4090-24", **queue(27, 80, 1.0), **gap(24, 120), **tokens(1000), kv_usage=Gauge(0.98, 1.0),
               n_preemptions=400, kv_tokens=28_000, offered_per_s=6.0, is_sustained=False,
               config={"max_num_batched_tokens": 2048})],
        {"q4": "workload", "line 1": "cause", "line 2": "cause"},
        changes={"max_num_seqs": (20, 30)},
        words=("cap admission at about 28",),
    ),
    Told(
        "a burst fills the cache though the mean fits",
        [known(**queue(60, 2, most=95), **gap(10, 60), **tokens(800), **kept_up(4, 15), kv_usage=Gauge(0.55, 1.0),
               n_preemptions=30, kv_tokens=100_000)],
        {"health": "degraded", "q4": "parameters", "line 1": "cause"},
        not_words=("requests wait while",),
    ),
    Told(
        "the steady load is well, the peak is not",
        [known("steady", **QUIET),
         known("stress", **queue(60, 20, 1.0), kv_usage=Gauge(0.9, 1.0), n_failed=40, n_requests=60, n_finished=20,
               n_preemptions=90)],
        {"health": "broken", "q3": "peak high", "q4": "fits"},
        breakage=Breakage(12.0, "the KV cache was full", ((11.0, "a", 30_000, 500),)),
        words=("11.0 s a: 30000 + 500 tokens",),
    ),
    Told(
        "memory creeps and nothing else is wrong",
        [known(**QUIET, memory_trend="not steady: about +0.2 GiB/min, OOM in ~42 min at this rate")],
        {"health": "degraded", "q3": "creeping", "q4": "unknown"},
        not_words=("requests wait",),
    ),
    Told(
        "few requests with very long prompts: their own prefill, no queue",
        [known(**lengths(60_000, 300), **queue(0.6, 0, most=2), **gap(8, 300), **tokens(15, 3000), **kept_up(0.05, 9),
               **first_token(6200, 0.05, 6.0), kv_usage=Gauge(0.1, 0.3), n_finished=6, n_requests=6,
               config={"max_model_len": 131_072})],
        FITS | {"q2": "gpu|neither|unknown"},
        words=("the prefill of its own long prompts",),
    ),
    Told(
        "a queue that stands, seen from outside",
        [bare(running=Gauge(72, 76), waiting=Gauge(184, 190, 0.0), output_tokens_per_s=900.0, n_finished=200)],
        {"health": "degraded", "q3": "overloaded"},
    ),
    Told("only the queue's time", [bare(queue_mean_s=12.0, running=Gauge(10, 20))], {"health": "degraded"}),
    Told("only the time to first token", [bare(ttft_ms=Tail(30_000, 60_000, 31_000))], {"health": "unknown", "q3": "unknown"}),
    Told("nothing", [bare()], {"health": "unknown"} | {f"q{n}": "unknown" for n in range(1, 6)}, never=("*",)),
    Told(
        "a queue that wavers",
        [known(**{**QUIET, "running": Gauge(100, 120), "waiting": Gauge(3, 9, 0.05), "is_sustained": None}, span_s=60)],
        FITS,
    ),
    Told(
        "a first token takes a minute: no hang while prompts are computed",
        [known(**queue(1, 0), **tokens(0, 9000), n_finished=0, n_requests=1, totals=None, prompts=Lengths(500_000))],
        {"health": "healthy"},
    ),
    Told("a hang", [known(**queue(2, 3), **tokens(0, 0), n_finished=0)], {"health": "broken", "q3": "broken at once"}),
    Told(
        "a hang with nothing admitted",
        [known(**queue(0, 5), **tokens(0, 0), kv_usage=Gauge(0, 0), n_finished=0)],
        {"health": "broken"},
    ),
    Told(
        "they preempt each other and none ends",
        [known(**queue(30, 10, 0.1), **tokens(300), kv_usage=Gauge(0.97, 1.0), n_preemptions=80, n_finished=0)],
        {"health": "degraded"},
    ),
    Told("one of 12,000 failed", [known(**QUIET, n_failed=1, n_requests=12_000)],
         {"health": "degraded"}),
    Told(
        "full but well",
        [known(**queue(220, 0.5), **gap(24, 70), **tokens(8500, 9000), **kept_up(42, 5.2), kv_usage=Gauge(0.6, 0.75))],
        FITS,
    ),
    Told(
        "everybody shares a prefix: lengths overstate what the cache holds",
        [known(**lengths(4200, 150), **queue(180, 0, most=220), **gap(16, 50), **tokens(10_000, 14_000), **kept_up(66, 2.8),
               cached_share=0.95, kv_tokens=200_000, kv_usage=Gauge(0.28, 0.4))],
        FITS,
        never=("max_num_seqs",),
    ),
    Told(
        "the same with too few seats",
        [known(**lengths(4200, 150), **queue(128, 160, 2.0, most=128), **gap(14, 50), **tokens(8000, 11_000),
               cached_share=0.95, kv_tokens=200_000, kv_usage=Gauge(0.2, 0.25), is_sustained=False, offered_per_s=66.0,
               config={"max_num_seqs": 128})],
        {"q4": "parameters"},
        changes={"max_num_seqs": (129, 512)},
    ),
    Told(
        "a request beyond the whole cache",
        [known(**{**QUIET, "totals": Lengths(1000, 3000, 600_000)}, config={"max_model_len": 1_000_000})],
        {"q4": "extreme requests"},
    ),
)  # fmt: skip

STANDING = {"running": Gauge(16, 16, 0.0, 1.0), "kv_usage": Gauge(0.1, 0.13)}

QUEUED = (
    Told(
        "some wait all the time, the cache has room, and nobody knows the seats",
        [bare(**STANDING, waiting=Gauge(6, 7, 0.0, 1.0), queue_mean_s=0.4, n_preemptions=0, n_finished=300,
              **tokens(1900))],
        {"health": "healthy", "q4": "fits low|unknown", "q5": "unknown"},
        words=("probably for seats", "max_num_seqs is not known"),
        not_words=("more load would still fit",),
    ),
    Told(
        "far more wait than run, though those that were answered waited a moment only",
        [bare(**STANDING, waiting=Gauge(500, 500, 0.4, 1.0), queue_mean_s=0.4, n_preemptions=0, n_finished=300,
              finished_per_s=2.5, **tokens(1900))],
        {"health": "degraded", "q3": "overloaded", "q5": "steadier"},
        words=("500 requests wait on average beside 16 that run",),
        not_words=("queue grows",),
    ),
    Told(
        "a queue of other requests than the first tokens",
        [known("steady", **{**QUIET, "waiting": Gauge(20, 90), **first_token(5000, 5.2, 0.2)})],
        {"health": "degraded", "q3": "overloaded"},
        words=("requests wait 5.2 s in the queue",),
        not_words=("104%",),
    ),
    Told(
        "the same with every limit of its study kept",
        [known("steady", keeps_limits=True, **{**QUIET, "waiting": Gauge(20, 90), **first_token(5000, 5.2, 0.2)})],
        FITS | {"q5": "balanced low"},
        words=("every limit of the study is kept with it",),
    ),
    Told(
        "limits that are kept excuse no load that is not sustained",
        [known("steady", keeps_limits=True,
               **{**QUIET, "waiting": Gauge(20, 90), **first_token(5000, 5.2, 0.2), "is_sustained": False})],
        {"health": "degraded", "q3": "overloaded"},
    ),
    Told(
        "starved of its core, with room in every budget",
        [known(cpu={"engine_core": CpuUse(0.5, 0.5, 1, 0.4)}, **{**QUIET, **gap(20, 40)})],
        {"q2": "cpu high", "q5": "balanced medium"},
        words=("question 2 comes first",),
        not_words=("more load would still fit",),
    ),
    Told(
        "steps far above the floor beside a neighbour",
        [known("steady", is_alone=False, **{**QUIET, **gap(40, 80)})],
        FITS | {"q1": "decode shared", "q2": "gpu shared low"},
        not_words=("the host", "GPU is not the limit", "hardware"),
    ),
    Told(
        "the same beside a neighbour, with its engine at a full core",
        [known("steady", is_alone=False, cpu=cores(engine_core=1.0), **{**QUIET, **gap(40, 80)})],
        FITS | {"q2": "cpu"},
    ),
    Told(
        "a queue under saturation is no demand",
        [known("saturation", **queue(250, 3000, most=256), **gap(25), **tokens(9500), kv_usage=Gauge(0.6, 0.7),
               n_preemptions=4)],
        {"line 2": "not the cause"},
        words=("what ran holds in full 250000 of 430000",),
        not_words=("(756%)",),
    ),
)  # fmt: skip

PREEMPTION = (
    Told(
        "nobody counted: no line is acquitted that would be a cause",
        [known(**queue(60, 30, 0.3), **tokens(2000), kv_tokens=60_000, kv_usage=Gauge(0.98, 1.0), n_preemptions=None,
               is_sustained=False, offered_per_s=10.0)],
        {"health": "degraded", "line 1": "unknown"},
    ),
    Told(
        "one request nearly fills the cache",
        [known(**queue(10, 6, 0.1), kv_tokens=40_000, kv_usage=Gauge(0.9, 1.0), totals=Lengths(3000, 25_000, 31_000),
               n_preemptions=50)],
        {"line 3": "cause", "line 5": "cause"},
    ),
    Told(
        "one step may take half the cache",
        [known(**queue(14, 2, most=16), kv_tokens=30_000, kv_usage=Gauge(0.8, 1.0), **lengths(1300, 200),
               n_preemptions=60, config={"max_num_batched_tokens": 16_384, "max_num_seqs": 16})],
        {"line 4": "cause", "line 5": "not the cause"},
        changes={"max_num_batched_tokens": (256, 4096)},
        words=("ruled out by mechanism",),
    ),
    Told(
        "a few long prompts among many short ones hold the streams up",
        [known(**{**QUIET, "prompts": Lengths(1500, 20_000, 72_000), "totals": Lengths(1800, 20_300, 72_500)},
               interference=Interference(60, 55, 0.9, 0.009), config={"max_model_len": 131_072})],
        {"spikes": "prefill", "q5": "balanced"},
        changes={"max_num_batched_tokens": (1024, 2048), "long_prefill_token_threshold": (1024, 2048)},
        words=("a chunk of 8192 tokens",),
    ),
    Told(
        "no smaller budget than seats",
        [known(**{**QUIET, **lengths(20_000, 100)}, interference=Interference(60, 55, 0.45, 0.009),
               config={"max_num_seqs": 1024, "max_num_batched_tokens": 4096, "max_model_len": 131_072})],
        {"spikes": "prefill"},
        changes={"max_num_batched_tokens": (1024, 1024)},
    ),
)  # fmt: skip

TOLD = (*BOUND, *HOST, *LOAD, *QUEUED, *PREEMPTION)
