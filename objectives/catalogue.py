"""The table of metrics in docs/metrics.md, written from `METRICS`: `python -m objectives.catalogue docs/metrics.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from objectives.metric import METRICS

BEGIN, END = "<!-- metrics: begin -->\n", "<!-- metrics: end -->"
ARROW = {"maximize": "higher", "minimize": "lower", None: "-"}


def markdown_table() -> str:
    """One line a figure; the loads it exists for stand in the first column."""
    loads: dict[str, list[str]] = {}
    for metric in METRICS.values():
        loads.setdefault(metric.name.removeprefix(f"{metric.load}_"), []).append(metric.load)
    lines = ["| load | figure | unit | better | what it is |", "|---|---|---|---|---|"]
    for figure, own in loads.items():
        metric = METRICS[f"{own[0]}_{figure}"]
        better = ARROW[metric.direction_hint]
        lines.append(f"| {', '.join(own)} | `{figure}` | {metric.unit} | {better} | {metric.describe} |")
    return "\n".join(lines) + "\n"


def main(path: str) -> None:
    """Replace what stands between the two marks."""
    file = Path(path)
    before, rest = file.read_text().split(BEGIN)
    file.write_text(f"{before}{BEGIN}{markdown_table()}{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main(sys.argv[1])
