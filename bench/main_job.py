"""The main job's wall time and the driver's memory, on Ray workers and inline, one after the other.

    python -m bench.main_job [--profile multitenant] [--repeats 1]

Prints both and the ratio. The named alternative is the same study with `--workers 0` (one process, no Ray): what Ray
costs to start must be less than what its workers win.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory


@dataclass(frozen=True)
class Cost:
    wall_s: float
    peak_mb: float
    """Largest resident set of the driver alone, as the kernel counts it."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--profile", default="multitenant")
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args(argv)
    ray = [_run(args.profile, []) for _ in range(args.repeats)]
    inline = [_run(args.profile, ["--workers", "0"]) for _ in range(args.repeats)]
    best = {name: min(costs, key=lambda c: c.wall_s) for name, costs in (("Ray workers", ray), ("inline", inline))}
    print(f"{'':12} {'wall s':>8} {'driver MB':>10}")
    for name, cost in best.items():
        print(f"{name:12} {cost.wall_s:8.1f} {cost.peak_mb:10.0f}")
    ratio = best["inline"].wall_s / best["Ray workers"].wall_s
    print(f"{args.profile} on {os.cpu_count()} cores: Ray workers are {ratio:.2f}x as fast as inline")
    return 0


def _run(profile: str, more: list[str]) -> Cost:
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "optimizer.run", "--profile", profile, "--studies", folder, *more]
        begin = time.perf_counter()
        with (Path(folder) / "log").open("w") as log:
            child = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - begin
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise SystemExit((Path(folder) / "log").read_text("utf-8")[-2000:])
    return Cost(wall_s, usage.ru_maxrss / (1024 if sys.platform == "linux" else 1024**2))


if __name__ == "__main__":
    raise SystemExit(main())
