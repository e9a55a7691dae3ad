"""Vidur's event loop alone, on the same requests and budgets: run by `bench.simulator_speed` under another Python.

    PYTHON_WITH_VIDUR -O bench/speed/vidur_loop.py CASE.json        (pip install vidur==0.0.26, Python 3.10 to 3.12)

CASE.json: arrivals, prompts, outputs, max_num_batched_tokens, max_num_seqs, n_blocks, block_size and the three
coefficients of a step (s, s per new token, s per token of context). The wheel has no profiles, so its predictor of step
times (a random forest) is replaced by these three numbers: what is timed costs less than a real run of Vidur.
Its scheduler is Sarathi's, chunked prefill under one token budget; prefix caching, metrics and plots are off. Without
`-O` an assertion of its own ends it at the first preemption (entities/request.py:300).
Prints one JSON line: walls_s, rss_mb, virtual_s, n_steps.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def main(path: str) -> None:
    case = json.loads(Path(path).read_text("utf-8"))
    walls, end = [], (0.0, 0)
    for _ in range(case["repeats"]):
        simulator, batches = _simulator(case)
        begin = time.perf_counter()
        simulator.run()
        walls.append(time.perf_counter() - begin)
        end = (simulator._time, len(batches))
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"walls_s": walls, "rss_mb": rss_mb, "virtual_s": end[0], "n_steps": end[1]}))


def _simulator(case: dict[str, Any]) -> tuple[Any, list[int]]:
    from vidur import config as c
    from vidur.scheduler.global_scheduler import base_global_scheduler
    from vidur.simulator import Simulator

    batches: list[int] = []
    base_global_scheduler.ExecutionTimePredictorRegistry = _Predictors(case["step"], batches)
    folder = tempfile.mkdtemp()
    longest = max(p + o for p, o in zip(case["prompts"], case["outputs"], strict=True))
    trace = Path(folder, "trace.csv")
    rows = zip(case["arrivals"], case["prompts"], case["outputs"], strict=True)
    head = "Date,Time,PromptTokenCount,CompletionTokenCount\n"
    trace.write_text(head + "".join(f"d,{a!r},{p},{o}\n" for a, p, o in rows), "utf-8")
    simulator = Simulator(
        c.SimulationConfig(
            time_limit=0,
            log_level="error",
            cluster_config=c.ClusterConfig(
                num_replicas=1,
                replica_config=c.ReplicaConfig(
                    model_name="meta-llama/Llama-3-8B", num_pipeline_stages=1, tensor_parallel_size=1
                ),
                cache_config=c.CacheConfig(
                    block_size=case["block_size"],
                    num_blocks=case["n_blocks"],
                    watermark_blocks_fraction=0.0,
                    enable_prefix_caching=False,
                ),
                replica_scheduler_config=c.SarathiSchedulerConfig(
                    batch_size_cap=case["max_num_seqs"], chunk_size=case["max_num_batched_tokens"]
                ),
            ),
            request_generator_config=c.TraceRequestGeneratorConfig(
                trace_file=str(trace),
                date="d",
                prefill_scale_factor=1.0,
                decode_scale_factor=1.0,
                time_scale_factor=1.0,
                max_tokens=longest,
            ),
            metrics_config=c.MetricsConfig(
                write_metrics=False,
                write_json_trace=False,
                enable_chrome_trace=False,
                store_plots=False,
                output_dir=folder,
            ),
        )
    )
    return simulator, batches


class _Predictors:
    """Stands for Vidur's registry of predictors: whatever is asked for, the same three numbers."""

    def __init__(self, step: list[float], batches: list[int]) -> None:
        self._step, self._batches = step, batches

    def get(self, *_: Any, **__: Any) -> _Predictors:
        return self

    def get_execution_time(self, batch: Any, _: int) -> Any:
        from vidur._native.entities import ExecutionTime

        self._batches.append(len(batch.requests))
        fixed_s, token_s, context_s = self._step
        seconds = fixed_s + token_s * sum(batch.num_q_tokens) + context_s * sum(batch.num_kv_tokens)
        return ExecutionTime(1, seconds * 1e3, *[0.0] * 13)


if __name__ == "__main__":
    main(sys.argv[1])
