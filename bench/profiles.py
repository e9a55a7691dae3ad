"""What each shipped profile has to win, on the simulator: writes docs/profiles.md.

    python -m bench.profiles [--random-trials N] [--output FILE]

Per profile two studies are run from the command line: the shipped one, whose front is described, and one of random
points, from which the infeasible share of the space is counted. Takes a few minutes on two cores.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from objectives.objective import Objective
from objectives.titles import title_of
from optimizer.profiles.loader import SHIPPED, load_profile
from optimizer.profiles.profile import Profile
from optimizer.reporting.front import load_front
from optimizer.reporting.front_table import figure
from optimizer.reporting.member import Front, FrontMember

NEAR = 2.0
"""A point is comparable with vLLM's default if every objective lies between half and twice the default's value."""


@dataclass(frozen=True)
class Pair:
    """The two studies of one profile."""

    profile: Profile
    searched: Front
    random: Front


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--random-trials", type=int, default=120)
    parser.add_argument("--output", type=Path, default=Path("docs/profiles.md"))
    args = parser.parse_args(argv)
    with TemporaryDirectory() as folder:
        pairs = [_run(name, Path(folder), args.random_trials) for name in SHIPPED]
    args.output.write_text("\n".join([HEAD, *(_page(pair) for pair in pairs)]), "utf-8")
    print(args.output.read_text("utf-8"))
    return 0


def _run(name: str, folder: Path, n_random: int) -> Pair:
    searched = _study(folder, name, f"{name}-searched", [])
    drawn = _study(folder, name, f"{name}-random", ["--sampler", "random", "--n-trials", str(n_random)])
    return Pair(load_profile(name), searched, drawn)


def _study(folder: Path, profile: str, study: str, more: list[str]) -> Front:
    command = [sys.executable, "-m", "optimizer.run", "--profile", profile, "--study", study, "--engine", "simulator"]
    subprocess.run([*command, "--studies", str(folder), *more], check=False, stdout=sys.stderr)
    return load_front(folder / study / "front" / "front.json")


def _page(pair: Pair) -> str:
    profile, front = pair.profile, pair.searched
    default = next(m for m in front.trials if m.label == "vLLM defaults")
    lines = [
        f"## {profile.name}",
        "",
        profile.why,
        "",
        f"{profile.model} on {profile.gpu}, {' + '.join(t.trace for t in profile.tenants)},"
        f" R = {front.meta.rate_per_s:.3g} requests/s,"
        f" {len(front.trials)} trials, {len(front.members)} on the front.",
        "",
        *_span_table(front, default),
        "",
        _standing(front, default),
        "",
        *_infeasible(pair.random),
        "",
    ]
    return "\n".join(lines)


def _span_table(front: Front, default: FrontMember) -> list[str]:
    rows = [
        "| objective | vLLM's default | front | comparable points: worst to best | span |",
        "|---|---|---|---|---|",
    ]
    near = [m for m in front.trials if m.is_feasible and _is_near(m, default)]
    for i, objective in enumerate(front.meta.objectives):
        base = default.values[i] if default.values else None
        members = [m.values[i] for m in front.members if m.values]
        own = [m.values[i] for m in near if m.values]
        rows.append(
            f"| {title_of(objective.metric)} | {figure(base)} | {_range(members, objective)} | {_range(own, objective)}"
            f" | {max(own) / min(own):.2f}x |"
            if own and members
            else f"| {title_of(objective.metric)} | {figure(base)} | - | - | - |"
        )
    return rows


def _range(values: list[float], objective: Objective) -> str:
    worst, best = (min(values), max(values)) if objective.direction == "maximize" else (max(values), min(values))
    return f"{figure(worst)} to {figure(best)}"


def _is_near(member: FrontMember, default: FrontMember) -> bool:
    if member.values is None or default.values is None:
        return False
    return all(1 / NEAR <= v / d <= NEAR for v, d in zip(member.values, default.values, strict=True))


def _standing(front: Front, default: FrontMember) -> str:
    """Where the default stands, in a sentence."""
    if default.values is None:
        return f"vLLM's default gives no figures here: {default.cause}."
    if not default.is_feasible:
        missed = ", ".join(name for name, _ in default.missed)
        return f"vLLM's default misses a limit here: {missed}."
    if default.is_on_front:
        text = "vLLM's default is on the front: nothing beats it in everything."
        return f"{text} **The default is fine here**; the rest is a choice."
    compared = [(m, c) for m in front.members if (c := front.comparison(m)) is not None]
    better = [m for m, c in compared if c.verdict == "improvement"]
    if not better:
        return "vLLM's default is beaten only by trades inside the noise."
    names = ", ".join(str(m.trial) for m in better)
    return f"vLLM's default is beaten: {len(better)} members improve on it and give nothing up (trials {names})."


def _infeasible(random: Front) -> list[str]:
    drawn = [m for m in random.trials if not m.label]
    bad = [m for m in drawn if not m.is_feasible]
    reasons = Counter(_reason(m) for m in bad)
    lines = [
        f"Of {len(drawn)} points (random ones and the stable stage's), {len(bad) / len(drawn):.0%} are infeasible:"
    ]
    return [*lines, "", *(f"- {n}x {reason}" for reason, n in reasons.most_common())]


def _reason(member: FrontMember) -> str:
    """The kind of the failure or the limit missed by most, without its figures."""
    if member.values is None:
        head = member.cause.split(":")[0]
        return "does not sustain R (stopped early)" if "sustain" in member.cause else head
    return member.missed[0][0] if member.missed[0][0] != "unsustained" else "does not sustain R"


HEAD = """# What the profiles have to win

Written by `python -m bench.profiles` from runs on the simulator: **no figure here was measured on a GPU**. Comparable
points keep every limit and lie between half and twice vLLM's default in every objective; their span says how much is
decided by the budgets that are searched.
"""

if __name__ == "__main__":
    raise SystemExit(main())
