"""python -m optimizer.run: search, show, export. Thin: parses the command line and hands over."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from optimizer.cli import Parser, run_main

ENGINES = ("auto", "simulator", "vllm")


def parser() -> argparse.ArgumentParser:
    """The command line; every value is checked where it is used, with the flag's name in the message."""
    p = Parser(
        prog="optimizer.run",
        description="Find the vLLM configurations nobody can beat on throughput, P99 TTFT and P99 ITL at once,"
        " among those that are safe. Without a GPU the search runs on a simulated one.",
    )
    _what(p.add_argument_group("what is tuned"))
    _space(p.add_argument_group("what may be changed"))
    _study(p.add_argument_group("the study"))
    _promises(p.add_argument_group("what you promise and pay"))
    return p


def _what(g: argparse._ArgumentGroup) -> None:
    g.add_argument(
        "--profile",
        default="chat",
        metavar="NAME|FILE",
        help="chat, throughput, long-context, multitenant, or a YAML file (default chat)",
    )
    g.add_argument(
        "--trace",
        action="append",
        metavar="[TENANT=]FILE",
        help="real traffic: Azure 2023 CSV, Mooncake/timed_trace JSONL or plain CSV (default: a packaged window)",
    )
    g.add_argument(
        "--time-unit", choices=("s", "ms", "us"), help="unit of the trace's timestamps where they are ambiguous"
    )
    g.add_argument("--strict", action="store_true", help="any unusable row of the trace is an error")
    g.add_argument("--max-bad-rows", type=int, metavar="N", help="stop reading after N unusable rows")
    g.add_argument("--repeat-trace", action="store_true", help="let a trace that is too short be repeated with jitter")
    g.add_argument("--model", metavar="NAME|DIR", help="last part of the Hugging Face id, or a local directory")
    g.add_argument(
        "--model-variant",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="another checkpoint of the model to compare (changes the model's answers: opt-in)",
    )
    g.add_argument("--gpu", metavar="NAME", help="A100-80, H100-80, L40S-48, ... (default: the profile's)")
    g.add_argument(
        "--engine",
        choices=ENGINES,
        default="auto",
        help="auto takes vLLM where a GPU and vLLM are found; vllm also runs its CPU build",
    )
    g.add_argument("--vllm-python", metavar="PATH", help="the Python that has vLLM (default: this one)")
    g.add_argument(
        "--attach",
        action="append",
        metavar="[INSTANCE=]URL",
        help="measure a server that is running; nothing of it is started, stopped or changed",
    )
    g.add_argument(
        "--attach-key-variable", metavar="NAME", help="environment variable that holds the running server's API key"
    )
    g.add_argument("--attach-anyway", action="store_true", help="measure it although requests of others run there")
    g.add_argument(
        "--gpus-per-server",
        type=int,
        default=1,
        metavar="N",
        help="GPUs one server may use: bounds tensor_parallel_size (--advanced), throughput stays per GPU",
    )
    g.add_argument(
        "--gpu-sharing",
        choices=("time-slice", "mps", "mig"),
        help="how instances on one card share its compute; on a real card it is detected and must agree",
    )
    g.add_argument(
        "--current",
        action="append",
        metavar="[INSTANCE=]FILE",
        help="your current configuration: a vLLM YAML or a file with a `vllm serve ...` line; becomes trial 0",
    )
    g.add_argument(
        "--max-model-len",
        type=int,
        metavar="N",
        help="cap on prompt + output tokens; the share of requests it rejects is printed",
    )
    g.add_argument(
        "--too-long",
        choices=("drop", "truncate"),
        default="drop",
        help="what becomes of requests above --max-model-len (default drop); part of the workload's hash",
    )
    g.add_argument("--rate", metavar="R|recorded", help="requests per second of the steady load (default: found)")
    g.add_argument(
        "--noise", type=float, default=1.0, metavar="X", help="scale of the simulator's noise; 0 turns it off"
    )
    g.add_argument(
        "--simulator-calibration",
        type=Path,
        metavar="FILE",
        help="what a real study taught (`optimizer.calibrate` writes it): the simulator's step times, memory",
    )


def _space(g: argparse._ArgumentGroup) -> None:
    g.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="fix a parameter")
    g.add_argument("--range", action="append", default=[], metavar="NAME=MIN:MAX", help="narrow or widen a parameter")
    g.add_argument("--choices", action="append", default=[], metavar="NAME=A,B,...", help="the values to choose from")
    g.add_argument("--add", action="append", default=[], metavar="NAME=A,B,...", help="search another vLLM flag too")
    g.add_argument("--space", metavar="FILE", help="the same as YAML: a mapping of parameter names")
    g.add_argument("--advanced", metavar="NAMES|all", help="search the advanced group too, or these of it")
    g.add_argument("--explain-capacity", action="store_true", help="print the memory arithmetic and stop")


def _study(g: argparse._ArgumentGroup) -> None:
    g.add_argument("--study", metavar="NAME", help="name or path (default: next free <profile>-<n>)")
    g.add_argument("--studies", default="studies", metavar="DIR", help="where study folders live (default ./studies)")
    g.add_argument("--n-trials", type=int, metavar="N", help="the study's total of trials (default: the profile's)")
    g.add_argument("--resume", action="store_true", help="go on with an existing study, to the same total")
    g.add_argument("--storage", metavar="URL", help="any Optuna storage URL (default: SQLite in the study's folder)")
    g.add_argument(
        "--workers", type=int, metavar="N", help="Ray workers, each owning one GPU or simulated slot; 0 runs inline"
    )
    g.add_argument("--ray-address", metavar="HOST:PORT", help="use this Ray cluster instead of a local one")
    g.add_argument("--sampler", choices=("tpe", "random"), default="tpe", help="what proposes (default tpe)")
    g.add_argument(
        "--smoke",
        action="store_true",
        help="60 requests a tenant and other loads cut alike: shows that everything runs, decides nothing",
    )
    g.add_argument(
        "--confirm",
        choices=("none", "pick", "front"),
        help="what is measured again at the end (default: front on the simulator, pick on a real engine)",
    )
    g.add_argument("--seed", type=int, default=0, metavar="N", help="seed of everything random (default 0)")
    g.add_argument("--json-log", action="store_true", help="progress as JSON lines")
    g.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="progress for Prometheus, on 127.0.0.1; 0 takes a free port",
    )


def _promises(g: argparse._ArgumentGroup) -> None:
    g.add_argument(
        "--slo",
        action="append",
        default=[],
        metavar="METRIC<=X",
        help="a promise, e.g. 'ttft_p99_ms<=500'; becomes a limit, and the answer says which rate survives it",
    )
    g.add_argument(
        "--gpu-price", type=float, metavar="PER_HOUR", help="price of one GPU hour: adds cost per million tokens"
    )


def main(argv: list[str] | None = None) -> int:
    """Exit 0 if a front was exported, 1 if there is no feasible configuration, 2 for bad input."""
    options = parser().parse_args(argv)
    options.command = tuple(sys.argv[1:] if argv is None else argv)
    from optimizer.session import run_session

    return run_session(options)


if __name__ == "__main__":
    sys.exit(run_main(main))
