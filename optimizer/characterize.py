"""python -m optimizer.characterize TRACE: what tuning needs to know about a trace, as text or JSON."""

from __future__ import annotations

import argparse
import json
import sys

from optimizer.cli import Parser, run_main
from optimizer.errors import UserError

EPILOG = """\
TRACE is a file (plain or gzip; Azure CSV, Mooncake or timed_trace JSON lines, CSV with a header) or the name of a
packaged trace: azure-conv, azure-code, mooncake-conversation.

  python -m optimizer.characterize azure-code
  python -m optimizer.characterize trace.csv --time-unit ms --json
"""


def parser() -> argparse.ArgumentParser:
    p = Parser(
        prog="optimizer.characterize",
        description=__doc__.split(": ", 1)[1] if __doc__ else None,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("trace", metavar="TRACE", help="trace file, or a packaged trace's name")
    p.add_argument("--json", action="store_true", help="one JSON object instead of text")
    p.add_argument(
        "--time-unit", choices=("s", "ms", "us", "ns"), help="unit of numeric timestamps, where it is in doubt"
    )
    p.add_argument("--reader", metavar="NAME", help="trace format (azure, mooncake, csv) instead of recognising it")
    p.add_argument("--strict", action="store_true", help="any rejected, unsorted or negative row is an error")
    p.add_argument("--max-bad-rows", type=int, metavar="N", help="stop with an error after N rejected rows")
    p.add_argument("--zero-output", choices=("reject", "one"), default="reject", help="rows with 0 output tokens")
    p.add_argument(
        "--window", type=int, metavar="N", help="only the window of N requests whose load is nearest the mean"
    )
    p.add_argument("--max-model-len", type=int, metavar="N", help="say how many requests a cap on the context rejects")
    p.add_argument("--itl-ms", type=float, default=25.0, help="assumed time per output token, for Little's law (25)")
    p.add_argument("--prefill-tokens-per-s", type=float, default=8000.0, help="assumed prefill speed (8000)")
    return p


def main(argv: list[str] | None = None) -> int:
    print(_answer(parser().parse_args(argv)))
    return 0


def _answer(args: argparse.Namespace) -> str:
    from optimizer.workload.advice import advise
    from optimizer.workload.character import ServiceTime, characterize
    from optimizer.workload.context import fit_context
    from optimizer.workload.packaged import find_trace
    from optimizer.workload.portrait import as_json, as_text
    from optimizer.workload.reader import open_trace
    from optimizer.workload.window import choose_window

    for flag, value in (("--itl-ms", args.itl_ms), ("--prefill-tokens-per-s", args.prefill_tokens_per_s)):
        if not 0 < value < float("inf"):
            raise UserError(f"{flag} {value:g}: expected a number above 0")
    if args.window is not None and args.window < 1:
        raise UserError(f"--window {args.window}: expected at least 1 request")
    reading = open_trace(
        find_trace(args.trace),
        time_unit=args.time_unit,
        strict=args.strict,
        max_bad_rows=args.max_bad_rows,
        reader=args.reader,
        zero_output=args.zero_output,
    )
    trace, extra = reading.trace, []
    if args.window is not None:
        window = choose_window(trace, args.window, n_warmup=0)
        trace = window.trace
        extra.append(f"window: {window.text}")
    extra.append(fit_context(trace, args.max_model_len, too_long="truncate").text.replace(": truncated", ""))
    character = characterize(trace, ServiceTime(args.prefill_tokens_per_s, args.itl_ms))
    advice = advise(character)
    if args.json:
        return json.dumps(as_json(reading, character, advice, extra, trace.content_hash), indent=2, allow_nan=False)
    return as_text(reading, character, advice, extra)


if __name__ == "__main__":
    sys.exit(run_main(main))
