"""How fast the simulator is, and how much memory it takes, beside another simulator on the same machine in this run.

    python -m bench.simulator_speed [--mooncake FILE] [--other-python PATH] [--repeats 3] [--case NAME ...]

Every case runs in a fresh child: wall seconds of boot and replay together (reading the trace is left out), best and
median, its peak resident set with Python, numpy and the trace in it, engine steps per second, virtual over wall time.
`--other-python` names a Python that has Vidur (`pip install vidur==0.0.26` in an environment of its own); its event
loop then replays the same requests under the same budgets (bench/speed/vidur_loop.py says what it is spared), once.
Exits 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.speed.cases import CASES, GET_MOONCAKE, MODEL, Case, find_case, plan_for
from optimizer.cli import run_main
from optimizer.errors import UserError
from search_spaces.hardware import find_gpu
from search_spaces.known_models import find_model

LOOP = Path(__file__).parent / "speed" / "vidur_loop.py"
OTHER_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Cost:
    """What a child measured of itself."""

    walls_s: list[float]
    rss_mb: float
    virtual_s: float
    n_steps: float

    @property
    def best_s(self) -> float:
        return min(self.walls_s)


def main(argv: list[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    if args.child:
        print(json.dumps(asdict(_measure(find_case(args.child), args.mooncake, args.repeats))))
        return 0
    if args.repeats < 1:
        raise UserError(f"--repeats {args.repeats}: give at least 1")
    cases = [find_case(name) for name in args.case] if args.case else list(CASES)
    if args.mooncake is None and not args.case:
        cases = [c for c in cases if c.name != "mooncake"]
        print(f"mooncake: left out; {GET_MOONCAKE}")
    if args.other_python is None:
        print("no other simulator: bare figures; pip install vidur==0.0.26 elsewhere and give --other-python PATH")
    print(f"{'':58} {'best s':>8} {'median':>8} {'MB':>6} {'steps/s':>9} {'x real':>8}  bar")
    return 1 if sum(not _run(case, args) for case in cases) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mooncake", metavar="FILE", help="the whole Mooncake conversation trace")
    parser.add_argument("--other-python", metavar="PATH", help="a Python that has Vidur")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--case", action="append", metavar="NAME", help=", ".join(c.name for c in CASES))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser


def _run(case: Case, args: argparse.Namespace) -> bool:
    """Print one case's lines; False if it missed a bar."""
    more = ["--mooncake", args.mooncake] if args.mooncake else []
    command = [sys.executable, "-m", "bench.simulator_speed", "--child", case.name, "--repeats", str(args.repeats)]
    ours = _child([*command, *more], None)
    is_met, bar = _judge(case, ours)
    print(f"{case.title:58} {_figures(ours)}  {bar}", flush=True)
    if args.other_python is not None and case.n_instances == 1:
        theirs = _other(case, args.other_python, args.mooncake)
        ratio = f"{theirs.best_s / ours.best_s:.0f}x our time, {theirs.rss_mb / ours.rss_mb:.1f}x our memory"
        print(f"{'  vidur 0.0.26, its loop alone':58} {_figures(theirs)}  {ratio}", flush=True)
    return is_met


def _figures(cost: Cost) -> str:
    median = statistics.median(cost.walls_s)
    per_s, real = cost.n_steps / cost.best_s, cost.virtual_s / cost.best_s
    return f"{cost.best_s:8.3f} {median:8.3f} {cost.rss_mb:6.0f} {per_s:9,.0f} {real:8,.0f}"


def _judge(case: Case, cost: Cost) -> tuple[bool, str]:
    bars = [(cost.best_s, case.wall_s, "s"), (cost.rss_mb, case.rss_mb, "MB")]
    known = [(value, bar, unit) for value, bar, unit in bars if bar is not None]
    is_met = all(value < bar for value, bar, _ in known)
    text = " and ".join(f"< {bar:g} {unit}" for _, bar, unit in known)
    return is_met, f"{text}: {'met' if is_met else 'MISSED'}" if known else "-"


def _child(command: list[str], timeout_s: float | None) -> Cost:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise UserError(f"{command[0]}: no answer within {timeout_s:g} s; leave the case out with --case") from None
    except OSError as error:
        raise UserError(f"{command[0]}: {error.strerror}; name a Python that has Vidur") from None
    if done.returncode:
        raise UserError(f"{command[0]}: {(done.stderr.strip() or 'no output').splitlines()[-1]}")
    return Cost(**json.loads(done.stdout.strip().splitlines()[-1]))


def _measure(case: Case, mooncake: str | None, repeats: int) -> Cost:
    """In the child: the same boot and replay, `repeats` times."""
    trace = case.requests(mooncake)
    walls = []
    for _ in range(repeats):
        engine = case.engine()
        begin = time.perf_counter()
        engine.boot(case.placement(), seed=0)
        phase = engine.replay(plan_for(trace))
        walls.append(time.perf_counter() - begin)
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "linux" else 1024**2)
    return Cost(walls, rss_mb, phase.end_s, sum(c.n_steps or 0.0 for c in phase.counters.values()))


def _other(case: Case, python: str, mooncake: str | None) -> Cost:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "case.json"
        path.write_text(json.dumps(_for_other(case, mooncake)), "utf-8")
        return _child([python, "-O", str(LOOP), str(path)], OTHER_TIMEOUT_S)


def _for_other(case: Case, mooncake: str | None) -> dict[str, Any]:
    trace, booted = case.requests(mooncake), case.engine().boot(case.placement(), seed=0)
    return {
        "arrivals": trace.arrival_s.tolist(),
        "prompts": trace.prompt_tokens.tolist(),
        "outputs": trace.output_tokens.tolist(),
        "max_num_batched_tokens": case.arguments["max_num_batched_tokens"],
        "max_num_seqs": case.arguments["max_num_seqs"],
        "n_blocks": booted.kv_blocks["server"],
        "block_size": 16,
        "step": _coefficients(case),
        "repeats": 1,
    }


def _coefficients(case: Case) -> list[float]:
    """(s, s per new token, s per token of context) of this model and card at their peaks."""
    model, gpu = find_model(MODEL), find_gpu(case.gpu)
    weights_s = model.weight_bytes(1) / gpu.hbm_bytes_per_s
    token_s = 2.0 * sum(model.parameters().values()) / gpu.bf16_flops
    return [weights_s, token_s, model.kv_bytes_per_token() / gpu.hbm_bytes_per_s]


if __name__ == "__main__":
    raise SystemExit(run_main(main))
