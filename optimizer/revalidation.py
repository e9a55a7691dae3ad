"""A study's configuration measured again: the study's own command is read back, so that the same rows are replayed.

Nothing of the study changes; the new runs lie in its folder under `runs/validation-…`, the verdict in `validations/`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from objectives.comparison import Comparison
from objectives.objective import Objective
from objectives.titles import title_of
from optimizer.cluster.inline import InlineExecutor
from optimizer.engines.engine import LoadPlan, Placement
from optimizer.errors import UserError
from optimizer.options import SessionOptions, named_files, read_options
from optimizer.reporting.front import load_front
from optimizer.reporting.member import Front, FrontMember
from optimizer.study.calibration import Calibration
from optimizer.study.confirmation import lost_gains
from optimizer.study.events import Event, RunFinished
from optimizer.study.folder import StudyFolder
from optimizer.study.manifest import Manifest, load_manifest
from optimizer.study.names import find_study
from optimizer.study.runs import Runs
from optimizer.study.setup import Setup, placement_of, prepare
from optimizer.study.traffic import Traffic, prepare_traffic
from optimizer.study.validation import Remeasured, Validator
from optimizer.trial import LOAD_ORDER
from optimizer.workers import EngineChoice, choose_engine, find_hardware

HELD_OUT = "held-out"
MOST_REPEATS = 50


@dataclass(frozen=True)
class Recorded:
    """The study as its folder tells it."""

    folder: StudyFolder
    manifest: Manifest
    calibration: Calibration
    front: Front
    member: FrontMember


@dataclass(frozen=True)
class Verdict:
    """What a validation found. `same_window` holds the new values against the recorded ones, `gain` the configuration
    against the reference on the other traffic, `recorded_gain` the same as the study recorded it."""

    trial: int
    objectives: tuple[Objective, ...]
    again: Remeasured
    same_window: Comparison | None
    other: str = ""
    other_member: Remeasured | None = None
    other_reference: Remeasured | None = None
    gain: Comparison | None = None
    recorded_gain: Comparison | None = None

    @property
    def is_inside_noise(self) -> bool:
        return self.same_window is not None and all(d.verdict == "tie" for d in self.same_window.deltas)

    @property
    def has_gained(self) -> bool:
        """Whether the study recorded any gain over the reference beyond the noise."""
        return self.recorded_gain is not None and any(d.verdict == "better" for d in self.recorded_gain.deltas)

    @property
    def persists(self) -> bool | None:
        """Whether what was gained is gained there too (`confirmation.lost_gains`); None without other traffic, and
        where there was nothing to persist."""
        if not self.other or not self.has_gained:
            return None
        assert self.recorded_gain is not None
        return self.gain is not None and not lost_gains(self.recorded_gain, self.gain, self.objectives)


def revalidate(args: argparse.Namespace, study_parser: argparse.ArgumentParser) -> int:
    """`study_parser` reads the words behind `optimizer.run`. 0 inside the noise (and the gain persists), 1 not."""
    if not 1 <= args.repeats <= MOST_REPEATS:
        raise UserError(f"--repeats {args.repeats}: give 1 to {MOST_REPEATS}")
    recorded = read_recorded(args)
    with where_it_ran(recorded.manifest):
        options = options_of(recorded.manifest, study_parser, args.vllm_python)
        hardware = find_hardware(options)
        setup = prepare(replace(options.setup, device=hardware.device))
        _check_traffic(recorded.manifest, setup)
    other = _other_traffic(args.trace, setup, options)
    choice, setup = choose_engine(options, setup, hardware)
    _check_engine(recorded.manifest, choice)
    with recorded.folder.claim() as folder, InlineExecutor(choice.spec) as executor:
        runs = Runs(executor, folder, _say)
        verdict = _measure(recorded, setup, other, args.repeats, runs)
        path = folder.write_text(
            f"validations/{_next(folder.path)}.json", json.dumps(as_json(verdict), indent=1) + "\n"
        )
    print(json.dumps(as_json(verdict)) if args.json else "\n".join((*lines_of(verdict), f"written: {path}")))
    return 0 if verdict.is_inside_noise and verdict.persists is not False else 1


def read_recorded(args: argparse.Namespace) -> Recorded:
    path = find_study(args.study, args.studies).resolve()
    manifest = load_manifest(path / "manifest.json")
    if not manifest.calibration:
        raise UserError(f"{args.study}: was never calibrated, so nothing is recorded to hold a value against")
    front = load_front(path / "front" / "front.json")
    member = front.pick(args.pick) if args.trial is None else front.trial(args.trial)
    if member.values is None:
        raise UserError(f"--trial {member.trial}: was not measured ({member.cause or 'no reason recorded'})")
    try:
        calibration = Calibration.from_json(manifest.calibration)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path / 'manifest.json'}: its calibration is damaged ({error}); restore the file") from None
    return Recorded(StudyFolder(path), manifest, calibration, front, member)


def options_of(manifest: Manifest, study_parser: argparse.ArgumentParser, vllm_python: str | None) -> SessionOptions:
    """The study's own command line, as it was typed."""
    if not manifest.command:
        raise UserError(f"{manifest.study}: an older version recorded no command; run the study again to validate it")
    options = read_options(study_parser.parse_args(list(manifest.command)))
    python = vllm_python or options.vllm_python
    return replace(options, vllm_python=python, n_workers=0, ray_address=None)  # here, one after another


@contextlib.contextmanager
def where_it_ran(manifest: Manifest) -> Iterator[None]:
    """Paths of the command are relative to where it was typed."""
    if not os.path.isdir(manifest.directory):
        raise UserError(f"{manifest.directory}: the study ran in this folder, which is gone; its paths cannot be found")
    with contextlib.chdir(manifest.directory):
        yield


def _check_traffic(manifest: Manifest, setup: Setup) -> None:
    there = manifest.workload.get("traffic")
    if there != setup.traffic.fingerprint:
        raise UserError(
            f"{setup.traffic.name}: its rows are not those of the study (hash {setup.traffic.fingerprint},"
            f" {there} then): the file changed, so nothing can be compared"
        )


def _check_engine(manifest: Manifest, choice: EngineChoice) -> None:
    if manifest.engine != choice.identity:
        raise UserError(
            f"the study was measured with {manifest.engine}, here is {choice.identity}; a difference would not be"
            " noise: use the same engine (--vllm-python), or run a study of your own"
        )


def _other_traffic(
    texts: Sequence[str] | None, setup: Setup, options: SessionOptions
) -> tuple[str, Traffic, bool] | None:
    """(name, traffic, whether its held-out window is meant)"""
    if not texts:
        return None
    if list(texts) == [HELD_OUT]:
        if setup.traffic.held_out is None:
            raise UserError(f"--trace held-out: {setup.traffic.name} is too short for a held-out window")
        return f"the held-out window of {setup.traffic.name}", setup.traffic, True
    wanted = replace(
        options.setup.traffic,
        traces=named_files("--trace", texts, "TENANT"),
        max_model_len=setup.space.servers[0].max_model_len,
    )
    traffic = prepare_traffic(setup.profile, wanted, seed=options.setup.seed, is_recorded_rate=False)
    return traffic.name, traffic, False


def _measure(
    recorded: Recorded, setup: Setup, other: tuple[str, Traffic, bool] | None, n_repeats: int, runs: Runs
) -> Verdict:
    calibration, member, rate = recorded.calibration, recorded.member, recorded.calibration.rate_per_s
    placement = placement_of(setup.profile, member.configs)
    reference = next(r.placement for r in setup.references if r.name == calibration.reference)
    validator = Validator(
        setup.profile.objectives,
        calibration.targets,
        calibration.noise,
        recorded.manifest.seed,
        n_repeats,
        _first_run(recorded.folder.path),
        runs,
    )
    name = f"trial {member.trial}"
    (again,) = validator.measure([(name, placement)], setup.traffic.loads(rate, LOAD_ORDER))
    assert member.values is not None
    same = validator.compare(again.values, member.values) if again.values else None
    verdict = Verdict(
        member.trial,
        validator.objectives,
        again,
        same,
        recorded_gain=validator.compare(member.values, calibration.values),
    )
    if other is None:
        return verdict
    title, traffic, is_held_out = other
    later = replace(validator, first_run=validator.first_run + n_repeats)
    return _on_other(
        verdict, later, title, traffic.loads(rate, LOAD_ORDER, is_held_out=is_held_out), placement, reference
    )


def _on_other(
    verdict: Verdict,
    validator: Validator,
    title: str,
    loads: tuple[LoadPlan, ...],
    placement: Placement,
    reference: Placement,
) -> Verdict:
    there = validator.measure([("reference", reference), (f"trial {verdict.trial}", placement)], loads)
    gain = validator.compare(there[1].values, there[0].values) if there[0].values and there[1].values else None
    return replace(verdict, other=title, other_reference=there[0], other_member=there[1], gain=gain)


def _first_run(folder: Path) -> int:
    numbers = [int(p.name.rsplit("-", 1)[1]) for p in (folder / "runs").glob("validation-*") if p.name[-1].isdigit()]
    return max(numbers, default=-1) + 1


def _next(folder: Path) -> str:
    return f"{sum(1 for _ in (folder / 'validations').glob('*.json')):03d}"


def _say(event: Event) -> None:
    if isinstance(event, RunFinished):
        print(
            f"{event.purpose}: {event.n_done} of {event.n_total} {event.detail}".rstrip(), file=sys.stderr, flush=True
        )


def lines_of(verdict: Verdict) -> list[str]:
    """The verdict for people."""
    again = verdict.again
    if verdict.same_window is None:
        return [f"trial {verdict.trial} could not be measured again: {again.reason}"]
    lines = [
        f"trial {verdict.trial} on the study's window, {again.n_repeats} run(s) pooled, against what was recorded:"
    ]
    lines += [
        _delta_line(d.metric, d.baseline, d.value, d.change, d.floor, d.verdict) for d in verdict.same_window.deltas
    ]
    lines.append(
        "every value is inside the noise of what was recorded"
        if verdict.is_inside_noise
        else "NOT inside the noise: the machine, the build or the noise floor has changed since"
    )
    return lines + (_other_lines(verdict) if verdict.other else [])


def _delta_line(metric: str, then: float, now: float, change: float | None, floor: float, word: str) -> str:
    percent = "" if change is None else f" ({change:+.1%}, noise ±{floor:.1%})"
    return f"  {title_of(metric)}: {then:.4g} then, {now:.4g} now{percent}: {'inside' if word == 'tie' else word}"


def _other_lines(verdict: Verdict) -> list[str]:
    lines = [f"on {verdict.other}, against the reference there:"]
    for part in (verdict.other_reference, verdict.other_member):
        if part is not None and part.values is None:
            return [
                *lines,
                f"  {part.name} could not be measured there: {part.reason}",
                "the gain is not shown to persist",
            ]
    assert verdict.gain is not None and verdict.recorded_gain is not None
    for before, there in zip(verdict.recorded_gain.deltas, verdict.gain.deltas, strict=True):
        lines.append(
            f"  {title_of(there.metric)}: {_percent(there.change)} there, {_percent(before.change)} in the study:"
            f" {there.verdict}"
        )
    if not verdict.has_gained:
        return [*lines, "no gain over the reference beyond the noise was recorded, so none can persist"]
    return [*lines, "the gain persists" if verdict.persists else "the gain does NOT persist"]


def _percent(change: float | None) -> str:
    return "n/a" if change is None else f"{change:+.1%}"


def as_json(verdict: Verdict) -> Mapping[str, object]:
    return {**asdict(verdict), "is_inside_noise": verdict.is_inside_noise, "gain_persists": verdict.persists}
