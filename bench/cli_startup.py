"""How long until a command answers `--help`: CPU seconds, best of N, beside what cannot be avoided and what is usual.

Claim: every command answers within 1 s. CPU time of the child, not wall time, because a busy machine would otherwise
be what is measured; the best of N, because noise only adds. Ratios stand beside, since seconds differ by machine.

    python bench/cli_startup.py [N]
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from optimizer.cli import COMMANDS

LIMIT_S = 1.0
FLOOR = "python -c pass"
USUAL = "optuna --help"


def cpu_s(command: Sequence[str]) -> float:
    """User plus system seconds of one run; a failing command is an error, not a fast one."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def commands() -> dict[str, list[str]]:
    optuna = Path(sys.executable).with_name("optuna")
    table = {FLOOR: [sys.executable, "-c", "pass"], USUAL: [str(optuna), "--help"]}
    for name in COMMANDS:
        table[f"python -m optimizer.{name} --help"] = [sys.executable, "-m", f"optimizer.{name}", "--help"]
    table["vllm-config-optimizer --help"] = [sys.executable, "-m", "optimizer.cli", "--help"]
    return table


def main(n_runs: int = 3) -> int:
    best = {name: min(cpu_s(command) for _ in range(n_runs)) for name, command in commands().items()}
    print(f"CPU seconds, best of {n_runs}; Python {sys.version.split()[0]}")
    print(f"{'command':<42}{'s':>7}{'x python':>10}{'x optuna':>10}")
    for name, seconds in best.items():
        print(f"{name:<42}{seconds:7.3f}{seconds / best[FLOOR]:10.1f}{seconds / best[USUAL]:10.2f}")
    slow = [name for name, seconds in best.items() if seconds > LIMIT_S and "optimizer" in name]
    print(f"limit {LIMIT_S:g} s: " + (f"missed by {', '.join(slow)}" if slow else "kept by all"))
    return len(slow) > 0


if __name__ == "__main__":
    raise SystemExit(main(*map(int, sys.argv[1:2])))
