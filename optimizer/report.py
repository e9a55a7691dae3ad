"""`python -m optimizer.report STUDY`: one HTML page about a study, opened without a network. Needs no GPU."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from optimizer.cli import Parser, run_main

EPILOG = """\
The page is one file that loads nothing from anywhere: the picks and what each gains, the front, what every knob did,
timelines, time spent, failures, the five answers, the workload, commands. A study that still runs can be reported on.

  python -m optimizer.report chat-1
  python -m optimizer.report studies/chat-1 --output /tmp/chat.html
"""


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m optimizer.report",
        description="Write one self-contained HTML page about a study: report.html in its folder.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", metavar="STUDY", help="the study's name, or the path of its folder")
    parser.add_argument("--studies", type=Path, default=Path("studies"), metavar="DIR", help="where studies lie")
    parser.add_argument("--storage", metavar="URL", help="where the study's trials lie, if it was run with --storage")
    parser.add_argument("--output", type=Path, metavar="FILE", help="another place for the page")
    return parser


def main(argv: list[str] | None = None) -> int:
    """0: written. 2: no such study, or it cannot be read. 3: the page cannot be written there."""
    return _report(build_parser().parse_args(argv))


def _report(args: argparse.Namespace) -> int:
    from optimizer.errors import UserError
    from optimizer.reporting.report.page import write_report
    from optimizer.reporting.report.source import read_source
    from optimizer.study.folder import StudyFolder
    from optimizer.study.names import find_study
    from optimizer.study.report_link import link_report

    folder = StudyFolder(find_study(args.study, args.studies))
    path: Path = args.output or folder.report_path
    if path.is_dir():
        raise UserError(f"--output {path}: is a folder; give the name of a file")
    source = read_source(folder, args.storage)
    n_bytes = write_report(source, path)
    print(f"{path} ({n_bytes / 1e6:.1f} MB)")
    if args.output is None and (why := link_report(folder, args.storage or source.storage)):
        print(why, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(run_main(main))
