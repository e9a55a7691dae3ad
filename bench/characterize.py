"""How fast a trace is characterised, against reading the same file with pandas alone.

    python -m bench.characterize [TRACE]

TRACE is a Mooncake-style JSON lines file or a packaged trace's name (default mooncake-conversation). Each side is a
process of its own, imports included, as a person would wait for it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from optimizer.workload.packaged import find_trace

REPEATS = 3


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("trace", nargs="?", default="mooncake-conversation")
    trace = str(find_trace(parser.parse_args(argv).trace))
    ours = _best([sys.executable, "-m", "optimizer.characterize", trace])
    read = f"import pandas; pandas.read_json({trace!r}, lines=True)"
    pandas = _best([sys.executable, "-c", read])
    print(f"characterize {ours:.2f} s, pandas.read_json alone {pandas:.2f} s: {ours / pandas:.2f}x")
    return 0


def _best(command: list[str]) -> float:
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - begin)
    return min(times)


if __name__ == "__main__":
    raise SystemExit(main())
