"""`python -m optimizer.diagnose`: what a vLLM log says went wrong (`--log FILE`), or the five questions answered for a
recorded trial or a whole study (`--study S [--trial N]`) or for a running server (`--url URL`). Needs no GPU."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from optimizer.cli import Parser, run_main

if TYPE_CHECKING:
    from optimizer.diagnosis.circumstances import Circumstances

EPILOG = """\
Exit code: 0 nothing failed in the log, or the trial or server is healthy (or the server idle), or some trial of the
study keeps every limit; 1 a failure was found, or it is degraded, or no trial does; 4 it is broken (it failed, or
requests of it did); 2 what was given cannot be read; 3 no vLLM server answers at the URL.

  python -m optimizer.diagnose --log server.log
  python -m optimizer.diagnose --log server.log --gpu A100-80 --longest-request 18000
  python -m optimizer.diagnose --study chat-1
  python -m optimizer.diagnose --study chat-1 --trial 7
  python -m optimizer.diagnose --url http://127.0.0.1:8000 --minutes 5
  kubectl logs pod/vllm-0 | python -m optimizer.diagnose --log - --json
"""
MINUTES = 5.0
LEAST_MINUTES, MOST_MINUTES = 0.05, 24 * 60.0
ONLY_WITH_URL = ("minutes", "model", "api_key_variable")


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m optimizer.diagnose",
        description="Say what a vLLM log says went wrong: kind, phase, cause, whose fault, bounds, advice. Or answer"
        " for a recorded trial, or for a running server that is only watched: compute or bandwidth, GPU or CPU, steady"
        " state or peak, parameters or workload, faster or steadier; each with evidence, a confidence and what would"
        " change it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--log", metavar="FILE|-", help="a server's log, plain or gzip; - is stdin")
    what.add_argument("--study", metavar="STUDY", help="a study's name, or the path of its folder")
    what.add_argument("--url", metavar="URL", help="a running server, http://HOST:PORT; watched, never touched")
    parser.add_argument("--minutes", type=float, metavar="M", help=f"how long it is watched (default {MINUTES:g})")
    parser.add_argument("--model", metavar="NAME|DIR", help="with --url: its model, where that cannot be found out")
    parser.add_argument("--gpu", metavar="NAME", help="with --url or --log: its card, where that cannot be found out")
    parser.add_argument(
        "--longest-request",
        type=int,
        metavar="TOKENS",
        help="with --log: prompt and output of the workload's longest request, which max_model_len must hold",
    )
    parser.add_argument(
        "--api-key-variable", metavar="NAME", help="with --url: the environment variable that holds its key"
    )
    parser.add_argument("--trial", type=int, metavar="N", help="one trial of the study (default: all of it)")
    parser.add_argument("--studies", type=Path, default=Path("studies"), metavar="DIR", help="where studies lie")
    parser.add_argument("--json", action="store_true", help="one JSON object (--log: null if nothing failed)")
    return parser


def main(argv: list[str] | None = None) -> int:
    """0: nothing failed, healthy. 1: a failure was found, degraded. 4: broken. 2: bad input."""
    args = build_parser().parse_args(argv)
    _refuse_misplaced(args)
    if args.study is not None:
        return _diagnose_study(args)
    if args.url is not None:
        return _diagnose_server(args)
    return _diagnose_log(args)


def _diagnose_log(args: argparse.Namespace) -> int:
    from optimizer.diagnosis.log_file import judge_log, log_text

    verdict, remarks = judge_log(args.log, _given(args))
    if args.json:
        print(json.dumps(verdict.to_json() if verdict else None, indent=2, allow_nan=False, ensure_ascii=False))
    else:
        print("\n".join([log_text(verdict, args.log), *(f"note: {text}" for text in remarks)]))
    return 1 if verdict else 0


def _refuse_misplaced(args: argparse.Namespace) -> None:
    from optimizer.errors import UserError

    given = [name for name in ONLY_WITH_URL if getattr(args, name) is not None]
    if given and args.url is None:
        raise UserError(f"--{given[0].replace('_', '-')}: belongs to --url URL, a running server")
    if args.longest_request is not None and (args.log is None or args.longest_request < 1):
        raise UserError(f"--longest-request {args.longest_request}: give tokens, at least 1, with --log FILE")
    if args.gpu is not None and args.study is not None:
        raise UserError("--gpu: a study knows its own card; it belongs to --url or --log")
    if args.trial is not None and args.study is None:
        raise UserError(f"--trial {args.trial}: say of which study, --study STUDY")


def _diagnose_server(args: argparse.Namespace) -> int:
    from optimizer.watching.command import watch_server

    return watch_server(args.url, _minutes(args) * 60.0, args.model, args.gpu, _key_variable(args), is_json=args.json)


def _minutes(args: argparse.Namespace) -> float:
    from optimizer.errors import UserError

    minutes = MINUTES if args.minutes is None else float(args.minutes)
    if not LEAST_MINUTES <= minutes <= MOST_MINUTES:
        raise UserError(f"--minutes {args.minutes:g}: give {LEAST_MINUTES:g} to {MOST_MINUTES:g}")
    return minutes


def _key_variable(args: argparse.Namespace) -> str:
    import os

    from optimizer.deployment.secrets import mask
    from optimizer.errors import UserError

    name: str = args.api_key_variable or ""
    if name and not os.environ.get(name):
        raise UserError(f"--api-key-variable {mask(name)}: no environment variable of that name is set")
    return name


def _diagnose_study(args: argparse.Namespace) -> int:
    """One trial of it, or all."""
    from optimizer.reporting.study_diagnosis import diagnose_study, study_exit_code, study_text
    from optimizer.reporting.trial_diagnosis import StudyReader, exit_code_of, text_of
    from optimizer.study.folder import StudyFolder
    from optimizer.study.names import find_study

    folder = StudyFolder(find_study(args.study, args.studies))
    if args.trial is None:
        study = diagnose_study(StudyReader(folder, most_predicted=0), _tell_read)
        print(json.dumps(study.to_json(), indent=1, allow_nan=False) if args.json else study_text(study))
        return study_exit_code(study)
    found = StudyReader(folder).diagnose(args.trial)
    print(json.dumps(found.to_json(), indent=1, allow_nan=False) if args.json else text_of(found))
    return exit_code_of(found)


def _tell_read(k: int, n: int) -> None:
    if sys.stderr.isatty():
        print(f"\rreading trial {k + 1} of {n}" if k + 1 < n else "\r\033[K", end="", file=sys.stderr, flush=True)


def _given(args: argparse.Namespace) -> Circumstances:
    """What the user knows beside the log."""
    from optimizer.diagnosis.circumstances import Circumstances
    from optimizer.errors import UserError
    from search_spaces.hardware import find_gpu

    try:
        memory = None if args.gpu is None else float(find_gpu(args.gpu).memory_bytes)
    except ValueError as error:
        raise UserError(f"--gpu {args.gpu}: {error}") from None
    return Circumstances(device_memory_bytes=memory, workload_max_tokens=args.longest_request)


if __name__ == "__main__":
    sys.exit(run_main(main))
