"""One scenario on both sides: how many steps differ, and the first one that does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.conformance.driving import Drive, Entry, Stuck, Way, prepare
from bench.conformance.oracle import Oracle, Refused
from bench.conformance.scenario import Scenario
from optimizer.engines.simulator.scheduler import Scheduler

FIELDS = ("scheduled", "victims", "admitted", "evicted", "free_before", "free", "present", "finished")
WIDTH = 60
BUGS = (Stuck, ArithmeticError, AssertionError, LookupError, ValueError)
"""How a wrong scheduler ends when it does not merely decide otherwise."""


@dataclass(frozen=True)
class Difference:
    """The first step at which a way of running the simulator and vLLM part."""

    way: Way
    number: int
    ours: Entry
    theirs: Entry
    error: str = ""
    """What our side ended with, if it ended there."""

    def describe(self) -> str:
        lines = [f"first differing step: {self.number} (simulator with {self.way.value}); * marks what differs"]
        lines.append(f"  {'':<12} {'simulator':<{WIDTH}} vLLM")
        for name in FIELDS:
            ours, theirs = (str(side.get(name, "-")).replace(" ", "") for side in (self.ours, self.theirs))
            lines.append(f"{'*' if ours != theirs else ' '} {name:<12} {ours:<{WIDTH}} {theirs}")
        return "\n".join([*lines, f"the simulator ended: {self.error}"] if self.error else lines)


@dataclass(frozen=True)
class Verdict:
    """What came of one scenario."""

    steps: list[Entry]
    """vLLM's."""
    n_mismatching: int
    """Steps that at least one way of running the simulator decides otherwise, misses or adds."""
    difference: Difference | None
    drives: Mapping[Way, Drive]


class Comparison:
    """Runs scenarios through the oracle and, while it works, through the simulator three ways."""

    def __init__(self, oracle: Oracle, scheduler_type: type[Scheduler] = Scheduler) -> None:
        self._oracle = oracle
        self._scheduler_type = scheduler_type

    def judge(self, scenario: Scenario) -> Verdict:
        """Raises Refused where vLLM does."""
        self._oracle.ask(scenario)
        drives, errors = {}, {}
        for way in Way:
            drives[way], errors[way] = self._simulate(scenario, way)
        theirs = self._oracle.steps()
        mismatching: set[int] = set()
        difference = None
        for way, drive in drives.items():
            numbers = differing(drive.log, theirs)
            if (numbers or errors[way]) and difference is None:
                number = min(numbers, default=len(theirs))
                difference = Difference(way, number, _at(drive.log, number), _at(theirs, number), errors[way])
                mismatching.add(number)
            mismatching.update(numbers)
        return Verdict(theirs, len(mismatching), difference, drives)

    def differs(self, scenario: Scenario) -> bool:
        """For shrinking: a scenario that vLLM refuses shows nothing."""
        try:
            return self.judge(scenario).difference is not None
        except Refused:
            return False

    def _simulate(self, scenario: Scenario, way: Way) -> tuple[Drive, str]:
        drive = prepare(scenario, way, self._scheduler_type)
        try:
            drive.run()
        except BUGS as error:
            return drive, f"{type(error).__name__}: {error}"
        return drive, ""


def differing(ours: list[Entry], theirs: list[Entry]) -> list[int]:
    n_both = min(len(ours), len(theirs))
    return [*(i for i in range(n_both) if ours[i] != theirs[i]), *range(n_both, max(len(ours), len(theirs)))]


def _at(log: list[Entry], number: int) -> Entry:
    return log[number] if number < len(log) else {}
