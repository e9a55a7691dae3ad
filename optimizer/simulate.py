"""python -m optimizer.simulate: one configuration on a simulated card, no study. Thin: parses and hands over."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from optimizer.cli import Parser, run_main

EPILOG = """\
  python -m optimizer.simulate --model Llama-3.1-8B --gpu A100-80 --trace azure-conv --config serve.yaml
  python -m optimizer.simulate --model Llama-3.1-8B --gpu H100-80 --trace chat=azure-conv --trace code=azure-code \\
      --config chat=chat.yaml --config code=code.yaml --sharing mps --step-log steps.jsonl

Nothing is started and no GPU is used: every figure is simulated. Exit status: 0 simulated, 1 the configuration would
not boot or not survive the load, 2 bad input.
"""


def parser() -> argparse.ArgumentParser:
    p = Parser(
        prog="optimizer.simulate",
        description="Simulate one configuration on one card and print its figures. No study, no GPU.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _what(p.add_argument_group("what is simulated"))
    _load(p.add_argument_group("the load"))
    _output(p.add_argument_group("what comes out"))
    return p


def _what(g: argparse._ArgumentGroup) -> None:
    g.add_argument("--model", metavar="NAME|DIR", help="last part of the Hugging Face id, or a local directory")
    g.add_argument("--gpu", required=True, metavar="NAME", help="A100-80, H100-80, RTX-4090-24, ...")
    g.add_argument(
        "--config",
        action="append",
        metavar="[INSTANCE=]FILE",
        help="a vLLM YAML or a file with a `vllm serve ...` line (default: vLLM's defaults); given once a tenant, each"
        " gets a server of its own on the card",
    )
    g.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an argument on top of --config")
    g.add_argument("--kv-blocks", type=int, metavar="N", help="the number of KV blocks, where the real one is known")
    g.add_argument(
        "--sharing", choices=("time-slice", "mps"), default="time-slice", help="how several servers share the card"
    )
    g.add_argument(
        "--noise", type=float, default=0.0, metavar="X", help="scale of boot-to-boot and step noise (default 0: none)"
    )
    g.add_argument("--seed", type=int, default=0, metavar="N", help="seed of noise and thinning (default 0)")
    g.add_argument(
        "--simulator-calibration",
        type=Path,
        metavar="FILE",
        help="step times learned from a real study (`optimizer.calibrate` writes it)",
    )


def _load(g: argparse._ArgumentGroup) -> None:
    g.add_argument(
        "--trace",
        action="append",
        required=True,
        metavar="[TENANT=]FILE",
        help="Azure CSV, Mooncake JSON lines, CSV, or a packaged one: azure-conv, azure-code, mooncake-conversation",
    )
    g.add_argument("--time-unit", choices=("s", "ms", "us"), help="unit of the trace's timestamps, where in doubt")
    g.add_argument("--requests", type=int, metavar="N", help="only the window of N requests nearest the mean load")
    g.add_argument(
        "--load",
        choices=("steady", "saturation", "stress"),
        default="steady",
        help="steady: as recorded, or at --rate; saturation: everything waits; stress: peaks and long prompts together",
    )
    g.add_argument("--rate", type=float, metavar="R", help="requests per second of steady and stress, by thinning")
    g.add_argument("--too-long", choices=("drop", "truncate"), default="drop", help="requests above max_model_len")
    g.add_argument(
        "--time-limit", type=float, metavar="S", help="cut the load S simulated seconds after its start (default: none)"
    )


def _output(g: argparse._ArgumentGroup) -> None:
    g.add_argument("--json", action="store_true", help="one JSON object instead of text")
    g.add_argument(
        "--step-log", metavar="FILE", help="write every engine step as JSON lines; several servers: FILE.INSTANCE"
    )


def main(argv: list[str] | None = None) -> int:
    """Exit 0 if it was simulated, 1 if it would not boot or not survive, 2 for bad input."""
    args = parser().parse_args(argv)
    from optimizer.simulation import simulate

    return simulate(args)


if __name__ == "__main__":
    sys.exit(run_main(main))
