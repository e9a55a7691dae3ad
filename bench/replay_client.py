"""How exactly the replay client measures, and what it costs, beside other clients on the same streams.

    python -m bench.replay_client [--vllm-python PYTHON --model DIR] [--streams 256] [--step-ms 20] [--repeats 3]

Claims, at 256 streams x 20 ms: P99 gap error at most 2 ms (the client's P99 gap less the server's own), at most 40 us
of CPU an event, P99 send lag at most 10 ms. The server (bench/streaming_server.py) runs on the first core, each client
on the last; `vllm bench serve` is run where --vllm-python and --model (a directory with a tokenizer) are given.
CPU an event counts while the server streams, so that starting up is not in it. Read lag is the client's stamp less the
server's, message by message. At last, what 1 and 2 processes of ours can take, as far as this server goes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable

from bench.stream_clients import TOKENS
from bench.stream_runs import Run, run_own, run_vllm

FIGURES = (
    "server gap P99 ms",
    "client gap P99 ms",
    "gap error ms",
    "read lag P99 ms",
    "send lag P99 ms",
    "CPU us/event",
    "fixed CPU s",
)
BARS = {"gap error ms": 2.0, "CPU us/event": 40.0, "send lag P99 ms": 10.0}
STEPS_MS = (20.0, 10.0, 7.0, 5.0, 3.5, 2.5)
KEEPS_UP_MS = 20.0
"""Median read lag over the last quarter of a run, above which a client fell behind: a backlog grows without end. (The
P99 of a busy machine is its scheduler's.)"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--vllm-python", help="a Python with vLLM 0.32")
    parser.add_argument("--model", help="a model directory; its tokenizer is all that is used")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args(argv)
    is_kept = compare(args)
    saturate(args.streams)
    return 0 if is_kept else 1


def compare(args: argparse.Namespace) -> bool:
    """The table; whether ours keeps its bars."""
    clients: dict[str, Callable[[], Run]] = {
        "ours": lambda: run_own("ours", args.streams, args.step_ms),
        "plain aiohttp, json.loads": lambda: run_own("plain", args.streams, args.step_ms),
    }
    if args.vllm_python and args.model:
        clients["vllm bench serve"] = lambda: run_vllm(args.vllm_python, args.model, args.streams, args.step_ms)
    else:
        print("vllm bench serve: skipped, needs --vllm-python and --model")
    print(f"{args.streams} streams x {args.step_ms:g} ms, {TOKENS} tokens, median of {args.repeats}; {machine()}")
    rounds = [{name: figures(run()) for name, run in clients.items()} for _ in range(args.repeats)]
    rows = {name: {k: median([r[name][k] for r in rounds]) for k in FIGURES} for name in clients}
    print(f"{'client':<27}" + "".join(f"{figure:>18}" for figure in FIGURES) + f"{'CPU x ours':>12}")
    for name, row in rows.items():
        ratio = (row["CPU us/event"] or 0.0) / (rows["ours"]["CPU us/event"] or 1.0)
        print(f"{name:<27}" + "".join(f"{shown(value):>18}" for value in row.values()) + f"{ratio:12.2f}")
    kept = {figure: (rows["ours"][figure] or 0.0) <= most for figure, most in BARS.items()}
    print("ours: " + "; ".join(f"{f} <= {BARS[f]:g} {'kept' if is_kept else 'MISSED'}" for f, is_kept in kept.items()))
    return all(kept.values())


def figures(run: Run) -> dict[str, float | None]:
    values = (
        run.server_gap_p99_ms,
        run.client_gap_p99_ms,
        run.client_gap_p99_ms - run.server_gap_p99_ms,
        run.read_lag_p99_ms,
        run.send_lag_p99_ms,
        run.cpu_us,
        run.fixed_cpu_s,
    )
    return dict(zip(FIGURES, values, strict=True))


def saturate(n_streams: int) -> None:
    """Faster and faster steps, until the read lag grows or the server cannot."""
    for n_processes in (1, 2):
        print(f"{n_processes} processes of ours: events/s offered, sent, read; lag ms P99, at the end; CPU us/event")
        best = 0.0
        for step_ms in STEPS_MS:
            run = run_own("ours", n_streams, step_ms, n_processes)
            best = max(best, run.read_per_s) if (run.backlog_ms or 0.0) <= KEEPS_UP_MS else best
            rates = f"{1e3 * n_streams / step_ms:9.0f}{run.sent_per_s:9.0f}{run.read_per_s:9.0f}"
            print(f"  {rates}{shown(run.read_lag_p99_ms):>9}{shown(run.backlog_ms):>9}{run.cpu_us:9.1f}")
        print(f"  keeps up to {best:.0f} events/s (lag at the end <= {KEEPS_UP_MS:g} ms)")


def median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def machine() -> str:
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}"


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
