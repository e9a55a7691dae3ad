"""python -m optimizer.calibrate STUDY: learn from a real study how long this model takes on this card.

Thin: parses the command line and hands over to `simulator_fit`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from optimizer.cli import Parser, run_main

EPILOG = """\
Exit status: 0 something was learned, 1 nothing could be, 2 bad input.

  python -m optimizer.calibrate chat-1
  python -m optimizer.run --profile chat --engine simulator --simulator-calibration chat-1.calibration.json
"""


def parser() -> argparse.ArgumentParser:
    p = Parser(
        prog="python -m optimizer.calibrate",
        description="Replay a real study's trials in the simulator and learn the factors by which it is off, one a"
        " tensor-parallel size first; says what that does to the error, also on trials that were left out.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("study", metavar="STUDY", help="a study measured on vLLM: its name, or the path of its folder")
    p.add_argument("--step-log", type=Path, metavar="FILE", help="learn from timed engine steps (JSON lines) instead")
    p.add_argument("--most-trials", type=int, default=24, metavar="N", help="learn from at most N trials (default 24)")
    p.add_argument("--output", type=Path, metavar="FILE", help="where to write (default: <study>.calibration.json)")
    p.add_argument("--studies", type=Path, default=Path("studies"), metavar="DIR", help="where studies lie")
    p.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return p


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    from optimizer.run import parser as study_parser
    from optimizer.simulator_fit import calibrate

    return calibrate(args, study_parser())


if __name__ == "__main__":
    sys.exit(run_main(main))
