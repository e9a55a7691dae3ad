"""How right the simulator is: every published measurement that can be, simulated and compared.

    python -m bench.simulator_accuracy [--data DIR] [--output docs/accuracy.md]

DIR holds a measured_points.csv and folders of whole runs (meta.json, requests.jsonl), as bench/data does. Nothing of
the simulator is fitted to what is scored here: kernel efficiencies come from kernel measurements, the residual is 1.0.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.accuracy.full_runs import RunFigures, ScoredRun, find_runs, score_run
from bench.accuracy.measured import Row, Unscorable, read_rows
from bench.accuracy.scoring import (
    Errors,
    Scored,
    after_three_rows,
    capacity_of,
    false_rejections,
    grouped,
    leave_one_model_out,
    lint,
    order_of,
    score,
    throughput_errors,
    tpot_errors,
    ttft_errors,
)
from optimizer.cli import Parser, run_main
from optimizer.errors import UserError

DATA = Path(__file__).parent / "data"
HEADER = "| n | median | P90 | bias |\n|---|---|---|---|"
RUN_BAR, OUT_OF_THE_BOX, AFTER_SCALAR, PAIRS = 0.05, 0.12, 0.08, 0.95
OTHERS = """\
| predictor | TPOT | throughput |
|---|---|---|
| aiconfigurator-core 0.12.0, static | 11.8% | 16.2% |
| AISimulate 0.13 | 7.8% | 8.0% |"""
"""Median errors on the 90 Qwen3-32B H100 rows, run by us on 2026-11-29."""


ASSUMED = """\
What rows do not record is assumed once (`bench/accuracy/loads.py`): defaults of the row's vLLM version, asynchronous
scheduling from 0.14 on, fixed lengths for random prompts, log-normal ones for ShareGPT. Clients of a closed loop whose
number of requests is unknown are counted spread over their cycle; started and kept in step, the same simulator says
longer first tokens and TPOTs about a twentieth shorter."""
WEAK = """\
* Steps that prefill beside many decodes come out too short on H100 and A100 at high concurrency: bias grows with the
  share of prompts, at every TP. Kernel tables are measured kernel by kernel; what a card under sustained load loses to
  its power limit, and what the host of a synchronous vLLM (before 0.14) spends on such steps, has no source here.
* All-reduce over PCIe: two hosts in the kernel tables differ by a factor of two; the faster, newer one is taken.
* Cards without kernel tables, MoE, 4-bit weights, latent attention: assumed, and named `uncalibrated`; a dense 16-bit
  row of such a card counts in the bars all the same.
* TTFT of open loops has few rows here. Rows whose exact arrivals are known are scored as whole runs instead."""


def main(argv: list[str] | None = None) -> int:
    """0: every bar is reached. 1: one is missed. 2: bad input."""
    parser = Parser(prog="python -m bench.simulator_accuracy", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="measurements (default bench/data)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the page there, too")
    args = parser.parse_args(argv)
    if not args.data.is_dir():
        raise UserError(f"--data {args.data}: no such folder; give one that holds a measured_points.csv")
    begin = time.perf_counter()
    text, is_reached = page(args.data)
    print(text)
    print(f"{time.perf_counter() - begin:.0f} s", file=sys.stderr)
    if args.output is not None:
        args.output.write_text(text + "\n", "utf-8")
    return 0 if is_reached else 1


def page(data: Path) -> tuple[str, bool]:
    """(the page, whether every bar that has rows is reached). Equal data give equal pages."""
    rows, malformed = read_rows(data)
    scored, problems = score(rows)
    runs, run_problems = _runs(data)
    if not rows and not runs:
        raise UserError(f"--data {data}: holds no row and no whole run; see bench/data for their shape")
    barred = [s for s in scored if s.is_barred]
    rejected = false_rejections(r for r in rows if r.tier in ("A", "B"))
    bars = list(_bars(barred, runs, rejected))
    parts = [
        "# Accuracy of the simulator",
        "Made by `python -m bench.simulator_accuracy --output docs/accuracy.md` from the measurements in `bench/data`"
        " (sources and licences there). Kernel efficiencies come from kernel measurements alone"
        " (`search_spaces/kernel_table.py`, each entry with source and error), the residual is 1.0: no row below was"
        " fitted to. Errors are simulated over measured, less 1; `bias` is the signed median.",
        "## Bars",
        "\n".join(["| what | bar | reached | |\n|---|---|---|---|", *map(_bar_line, bars)]),
        "Dense models in 16 bits, tiers A and B. TTFT is compared for open loops only: in a closed loop or a burst the"
        " harness decides it.",
        ASSUMED,
        "## Whole runs",
        *map(_run_table, runs),
        "## Rows",
        _table("TPOT", barred, tpot_errors),
        _table("throughput", barred, throughput_errors),
        _table("TTFT", barred, ttft_errors),
        "Beside it, median errors of others on the 90 rows of Qwen3-32B on H100 (run by us, 2026-11-29):",
        OTHERS,
        "## One scalar",
        _scalar_text(barred),
        "## Rows apart",
        "Quantised, MoE or of a lower tier: shown, not barred. `uncalibrated` is what rests on no kernel data.",
        _apart(scored),
        "## Known to be weak",
        WEAK,
        "## Capacity",
        _capacity_text(scored, rejected),
        "## Faster than physics",
        "Measurements that the card's peaks rule out (`optimizer.engines.simulator.lint`):",
        _list(lint(rows)) or "none",
        "## Not scored",
        _list([*malformed, *problems, *run_problems]) or "none",
    ]
    return "\n\n".join(parts), all(reached is not False for *_, reached in bars)


Bar = tuple[str, str, str, bool | None]


def _bars(barred: Sequence[Scored], runs: Sequence[ScoredRun], rejected: Sequence[str]) -> Iterator[Bar]:
    yield _error_bar("TPOT, median error out of the box", tpot_errors(barred), OUT_OF_THE_BOX)
    yield _error_bar("throughput, median error out of the box", throughput_errors(barred), OUT_OF_THE_BOX)
    held_out = after_three_rows(barred)
    yield _error_bar("TPOT, after one scalar from 3 rows, on the others", tpot_errors(held_out), AFTER_SCALAR)
    yield _error_bar("throughput, the same", throughput_errors(held_out), AFTER_SCALAR)
    for run in runs:
        if run.are_blocks_given:
            worst = max(abs(_off(run, name)) for name in ("makespan_s", "ttft_p99_ms", "tpot_p99_ms"))
            text = f"{run.name}: worst of makespan, TTFT P99, TPOT P99"
            yield text, f"<= {RUN_BAR:.0%}", f"{worst:.1%}", worst <= RUN_BAR
    for name, said, true in _FIGURES:
        order = order_of(barred, said, true)
        reached = order.n_right >= PAIRS * order.n if order.n else None
        yield f"order of pairs that differ by more than 5 %, {name}", f">= {PAIRS:.0%}", order.text, reached
    yield "rows of tiers A and B called impossible", "0", str(len(rejected)), not rejected


_FIGURES = (
    ("throughput per GPU", lambda s: s.said.out_tok_s / s.row.tp, lambda s: s.throughput and s.throughput / s.row.tp),
    ("TPOT", lambda s: s.said.tpot_ms, lambda s: s.row.tpot_ms),
)


def _error_bar(what: str, errors: Errors, most: float) -> Bar:
    if not errors.n:
        return what, f"<= {most:.0%}", "no rows", None
    return what, f"<= {most:.0%}", f"{errors.median:.1%} ({errors.n})", errors.median <= most


def _bar_line(bar: Bar) -> str:
    what, most, found, is_reached = bar
    return f"| {what} | {most} | {found} | {_word(is_reached)} |"


def _word(reached: bool | None) -> str:
    return {True: "reached", False: "**missed**", None: "-"}[reached]


def _off(run: ScoredRun, name: str) -> float:
    return float(getattr(run.simulated, name) / getattr(run.measured, name) - 1)


def _run_table(run: ScoredRun) -> str:
    blocks = "block count given" if run.are_blocks_given else "block count predicted"
    names = [f for f in RunFigures.__dataclass_fields__ if f not in ("n_preemptions", "kv_tokens")]
    lines = [f"{run.name} ({blocks}):\n", "| figure | measured | simulated | error |\n|---|---|---|---|"]
    lines += [
        f"| {name} | {getattr(run.measured, name):.4g} | {getattr(run.simulated, name):.4g} | {_off(run, name):+.1%} |"
        for name in names
    ]
    lines.append(f"| preemptions | not recorded | {run.simulated.n_preemptions:.0f} | |")
    return "\n".join(lines)


def _table(name: str, scored: Sequence[Scored], errors: object) -> str:
    """By card, model and TP."""
    assert callable(errors)
    lines = [f"{name}:\n", "| card | model | TP " + HEADER.splitlines()[0], "|---|---|---" + HEADER.splitlines()[1]]
    for (gpu, model, tp), rows in sorted(grouped(scored, lambda s: s.group).items()):
        if errors(rows).n:
            lines.append(f"| {gpu} | {model} | {tp} | {errors(rows).cells} |")
    lines.append(f"| all | | | {errors(scored).cells} |")
    return "\n".join(lines)


def _scalar_text(barred: Sequence[Scored]) -> str:
    lines = ["The residual that all *other* models ask for, tried on the one left out (TPOT):\n",
             "| model | rows | residual of the others | median error without | with |",
             "|---|---|---|---|---|"]  # fmt: skip
    for name, n, factor, before, after in leave_one_model_out(barred):
        lines.append(f"| {name} | {n} | {factor:.3f} | {before.median:.1%} | {after.median:.1%} |")
    return "\n".join(lines)


def _apart(scored: Sequence[Scored]) -> str:
    apart = [s for s in scored if not s.is_barred]
    lines = ["| card | model | TP | dtype | uncalibrated | TPOT: n, median, bias | throughput: n, median, bias |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for (gpu, model, tp), rows in sorted(grouped(apart, lambda s: s.group).items()):
        tpot, rate = tpot_errors(rows), throughput_errors(rows)
        cells = [f"{e.n}, {e.median:.1%}, {e.bias:+.1%}" if e.n else "-" for e in (tpot, rate)]
        rests = ", ".join(rows[0].said.uncalibrated) or "-"
        lines.append(
            f"| {gpu} | {model} | {tp} | {rows[0].row.cells.get('dtype', '')} | {rests} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def _capacity_text(scored: Sequence[Scored], rejected: Sequence[str]) -> str:
    lines = [f"{len(rejected)} rows that ran are called impossible." + (f"\n\n{_list(rejected)}" if rejected else "")]
    lines += [f"KV tokens of the rows that record them: {_kv_text(scored)}"]
    return "\n\n".join(lines)


def _kv_text(scored: Sequence[Scored]) -> str:
    told = []
    for s in scored:
        true = s.row.count("kv_cache_tokens")
        if true is None:
            continue
        said = capacity_of(s.case).kv_tokens
        low, likely, high = (round(x) for x in (said.low, said.likely, said.high))
        told.append(
            f"{s.row.id}: {true:,} recorded, {likely:,} predicted ({low:,} to {high:,}), {likely / true - 1:+.1%}"
        )
    return "; ".join(told) or "none"


def _runs(data: Path) -> tuple[list[ScoredRun], list[str]]:
    runs, problems = [], []
    for folder in find_runs(data):
        try:
            runs.append(score_run(folder))
        except Unscorable as error:
            problems.append(str(error))
    return runs, problems


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"* {line}" for line in lines)


__all__ = ["Row", "main", "page"]

if __name__ == "__main__":
    sys.exit(run_main(main))
