"""`python -m optimizer.export STUDY`: take a study's configurations away. Needs no GPU and no network."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optimizer.cli import Parser, run_main

if TYPE_CHECKING:
    from optimizer.reporting.front_export import Format
    from optimizer.reporting.member import Front, FrontMember

FORMATS = ("vllm-yaml", "command", "json", "csv")
PICKS = ("knee", "throughput", "ttft", "itl")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m optimizer.export",
        description="Write the configurations on a study's Pareto front as vLLM YAML, command lines, JSON or CSV.",
        epilog="A YAML file is started with `vllm serve --config FILE` (two words).",
    )
    parser.add_argument("study", metavar="STUDY", help="the study's name, or the path of its folder")
    parser.add_argument("--format", choices=FORMATS, default="vllm-yaml")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--trial", type=int, metavar="N", help="one trial, on the front or not")
    which.add_argument("--pick", choices=PICKS, help="the named member of the front")
    which.add_argument("--all", action="store_true", help="every member of the front (the default)")
    parser.add_argument("--output", metavar="DIR|-", help="a folder, or - for standard output")
    parser.add_argument("--studies", type=Path, default=Path("studies"), metavar="DIR", help="where studies lie")
    parser.add_argument("--check", action="store_true", help="let an installed vLLM parse every file and compare")
    parser.add_argument("--vllm-python", metavar="P", help="the Python that has vLLM (default: this one)")
    return parser


def main(argv: list[str] | None = None) -> int:
    """0: exported. 1: no feasible configuration yet, or --check found a difference. 2: bad input. 3: no vLLM."""
    return _export(build_parser().parse_args(argv))


def _export(args: argparse.Namespace) -> int:
    from optimizer.reporting.front import load_front
    from optimizer.reporting.front_table import print_front
    from optimizer.study.names import find_study

    folder = find_study(args.study, args.studies)
    front = load_front(folder / "front" / "front.json")
    if not front.members and args.trial is None:
        print_front(front, sys.stdout)
        return 1
    members = _chosen(front, args)
    return _write(front, members, args, folder)


def _chosen(front: Front, args: argparse.Namespace) -> tuple[FrontMember, ...]:
    from optimizer.errors import UserError

    if args.pick:
        return (front.pick(args.pick),)
    if args.trial is None:
        return front.members
    member = front.trial(args.trial)
    if member.values is None:
        why = member.cause or "; ".join(limit for limit, _ in member.missed) or "no reason recorded"
        raise UserError(f"--trial {args.trial}: was not measured ({why}), so there is nothing to export")
    if not member.is_on_front:
        print(f"note: trial {args.trial} is not on the front", file=sys.stderr)
    return (member,)


def _write(front: Front, members: Sequence[FrontMember], args: argparse.Namespace, folder: Path) -> int:
    from optimizer.reporting.front_export import export_files, joined, write_files

    format: Format = args.format
    files = export_files(front, members, format)
    is_one = args.trial is not None or args.pick is not None
    is_text = args.output == "-" or (args.output is None and (is_one or format in ("json", "csv")))
    if is_text:
        sys.stdout.write(joined(files))
    else:
        target = Path(args.output) if args.output else Path(f"{folder.name}-export")
        for path in write_files(target, files):
            print(path)
    return _check(front, members, args, files) if args.check else 0


def _check(front: Front, members: Sequence[FrontMember], args: argparse.Namespace, files: dict[str, str]) -> int:
    """Parse the very texts that were exported, from a folder of their own."""
    from tempfile import TemporaryDirectory

    from optimizer.deployment.vllm_check import check_with_vllm
    from optimizer.errors import UserError
    from optimizer.reporting.front_export import deployments, write_files

    if args.format not in ("vllm-yaml", "command"):
        raise UserError(f"--check: vLLM reads vllm-yaml and command, not {args.format}")
    wanted = [d for member in members for d in deployments(front, member).values()]
    with TemporaryDirectory() as folder:
        paths = [p for p in write_files(Path(folder), files) if p.name != "README.txt"]
        checked = check_with_vllm(args.vllm_python or sys.executable, dict(zip(paths, wanted, strict=True)))
        for result in checked:
            name = result.file.relative_to(folder)
            found = f"vLLM refuses it: {result.refused}" if result.refused else "; ".join(result.differences)
            print(f"{name}: {found or 'vLLM parses it to the values measured'}", file=sys.stderr)
    return 0 if all(result.is_same for result in checked) else 1


if __name__ == "__main__":
    sys.exit(run_main(main))
