"""python -m optimizer.validate STUDY --pick knee: measure a front configuration once more, on fresh servers.

Thin: parses the command line and hands over to `revalidation`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from optimizer.cli import Parser, run_main

PICKS = ("knee", "throughput", "ttft", "itl")
EPILOG = """\
Exit status: 0 the value is inside the noise of what was recorded (and with --trace the gain persists), 1 it is not,
2 bad input, 3 the engine of the study is not here.
"""


def parser() -> argparse.ArgumentParser:
    p = Parser(
        prog="optimizer.validate",
        description="Measure a front configuration again on fresh servers: is what was recorded inside the noise, and"
        " does the gain over the reference persist on other traffic?",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("study", metavar="STUDY", help="the study's name, or the path of its folder")
    which = p.add_mutually_exclusive_group()
    which.add_argument("--pick", choices=PICKS, default="knee", help="the named member of the front (default knee)")
    which.add_argument("--trial", type=int, metavar="N", help="one trial, on the front or not")
    p.add_argument("--repeats", type=int, default=3, metavar="N", help="runs of each configuration (default 3)")
    p.add_argument(
        "--trace",
        action="append",
        metavar="[TENANT=]FILE|held-out",
        help="other traffic: the reference and the configuration run there too; `held-out` is the study's own window"
        " that the search never saw",
    )
    p.add_argument("--studies", type=Path, default=Path("studies"), metavar="DIR", help="where studies lie")
    p.add_argument("--vllm-python", metavar="PATH", help="the Python that has vLLM (default: the study's)")
    p.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return p


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    from optimizer.revalidation import revalidate
    from optimizer.run import parser as study_parser

    return revalidate(args, study_parser())


if __name__ == "__main__":
    sys.exit(run_main(main))
