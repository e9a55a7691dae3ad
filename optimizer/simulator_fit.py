"""The simulator calibrated from a study on a real engine: its trials are replayed in it and the residuals learned."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from objectives.measurement import Load
from optimizer.cluster.slots import n_usable_cores
from optimizer.engines.engine import LoadPlan, Placement
from optimizer.engines.simulator.calibration import SimulatorCalibration
from optimizer.engines.simulator.engine import SimulatorSpec, step_time_of
from optimizer.engines.simulator.fit_steps import Error, Fitted, fit_steps
from optimizer.engines.simulator.fit_trials import MeasuredTrial, fit_trials
from optimizer.engines.simulator.residuals import NONE
from optimizer.engines.simulator.steps import read_steps
from optimizer.errors import UserError
from optimizer.revalidation import options_of, where_it_ran
from optimizer.study.calibration import Calibration
from optimizer.study.files import write_json
from optimizer.study.folder import StudyFolder
from optimizer.study.manifest import Manifest, load_manifest
from optimizer.study.names import find_study
from optimizer.study.outcomes import own_entries
from optimizer.study.setup import Setup, placement_of, prepare
from optimizer.study.starts import memory_seen
from optimizer.trial import LOAD_ORDER, Measured
from search_spaces.config import Config
from search_spaces.cpu import host_cpu
from search_spaces.hardware import GpuFacts, find_gpu
from search_spaces.memory import BLOCK_TOKENS


def calibrate(args: argparse.Namespace, study_parser: argparse.ArgumentParser) -> int:
    """`study_parser` reads the words behind `optimizer.run`. Writes the calibration and prints what it is worth."""
    if args.most_trials < 1:
        raise UserError(f"--most-trials {args.most_trials}: give at least 1")
    path = find_study(args.study, args.studies).resolve()
    manifest = load_manifest(path / "manifest.json")
    if manifest.engine.startswith("simulator"):
        raise UserError(f"{args.study}: was simulated ({manifest.engine}); only a study on vLLM has something to teach")
    setup = _setup(manifest, study_parser)
    spec = SimulatorSpec(setup.model, setup.gpu, noise=0.0)
    if args.step_log is not None:
        fitted, source = _from_steps(args.step_log, setup, spec)
    else:
        trials = list(_trials(StudyFolder(path), manifest, setup, args.most_trials))
        if not trials:
            raise UserError(f"{args.study}: no trial of it was measured, so there is nothing to learn from")
        fitted, source = fit_trials(trials, spec, _say), f"{len(trials)} trials of study {manifest.study}"
    learned = {f.tp: f.residuals for f in fitted if f.residuals != NONE}
    errors = {str(f.tp): _errors_json(f) for f in fitted}
    memory = memory_seen(path, setup.model, setup.gpu)
    found = SimulatorCalibration(setup.model.name, setup.gpu.name, manifest.engine, source, learned, memory, errors)
    is_told = bool(learned or memory)
    target = args.output or Path(f"{path.name}.calibration.json")
    if is_told:
        write_json(target, found.to_json())
    print(json.dumps(found.to_json()) if args.json else "\n".join(_table(found, fitted, target if is_told else None)))
    return 0 if is_told else 1


def _setup(manifest: Manifest, study_parser: argparse.ArgumentParser) -> Setup:
    with where_it_ran(manifest):
        options = options_of(manifest, study_parser, None)
        return prepare(replace(options.setup, device=_device(manifest)))


def _device(manifest: Manifest) -> GpuFacts:
    """What the study ran on, by its recorded name. Raises UserError for a card that is in no table."""
    if manifest.gpu == "CPU":
        return host_cpu(psutil.virtual_memory().total, n_usable_cores())
    try:
        return find_gpu(manifest.gpu.split(" MIG ")[0])
    except ValueError as error:
        raise UserError(f"{manifest.study}: {error}") from None


def _trials(folder: StudyFolder, manifest: Manifest, setup: Setup, most: int) -> Iterator[MeasuredTrial]:
    """Trials that were measured, spread over the study, with the KV cache as it was booted."""
    rate = Calibration.from_json(manifest.calibration).rate_per_s
    plans: dict[Load, LoadPlan] = {plan.load: plan for plan in setup.traffic.loads(rate, LOAD_ORDER)}
    numbers = sorted(int(p.name) for p in (folder.path / "trials").glob("[0-9]*"))
    measured = []
    for number in numbers:
        outcome = folder.load_outcome(number)
        if isinstance(outcome, Measured):
            measured.append((number, outcome))
    for k in range(0, len(measured), max(1, -(-len(measured) // most))):
        number, outcome = measured[k]
        placement = _placement(setup, folder, number, outcome)
        yield MeasuredTrial(f"trial {number}", placement, plans, outcome.measurement.phases)


def _placement(setup: Setup, folder: StudyFolder, number: int, outcome: Measured) -> Placement:
    parameters = folder.parameters_of(number)
    names = setup.profile.instances
    configs = {name: Config(own_entries(parameters, name) if len(names) > 1 else parameters) for name in names}
    n_blocks = {} if outcome.boot is None else outcome.boot.kv_blocks
    for name, config in configs.items():
        tokens, n = outcome.measurement.kv_tokens.get(name), n_blocks.get(name)
        if tokens:
            block = int(config.get("block_size") or (tokens // n if n and tokens % n == 0 else BLOCK_TOKENS))
            booted = {"block_size": block, "num_gpu_blocks_override": max(tokens // block, 2)}
            configs[name] = Config({**config, **booted})
    return placement_of(setup.profile, configs)


def _from_steps(path: Path, setup: Setup, spec: SimulatorSpec) -> tuple[tuple[Fitted, ...], str]:
    steps = read_steps(path)
    instance = setup.references[0].placement.instances[0]
    try:
        return fit_steps(steps, lambda tp: step_time_of(instance, spec, tp)), f"{len(steps)} steps in {path.name}"
    except ValueError as error:
        raise UserError(f"{path}: {error}; is it a log of {setup.model.name}?") from None


def _errors_json(fitted: Fitted) -> dict[str, object]:
    def of(errors: Sequence[Error]) -> dict[str, dict[str, float]]:
        return {e.figure: {"n": e.n, "median": e.median, "p90": e.p90, "bias": e.bias} for e in errors}

    kinds = {"before": fitted.before, "after": fitted.after, "held_out": fitted.held_out}
    return {"n": fitted.n, "remarks": list(fitted.remarks), **{name: of(errors) for name, errors in kinds.items()}}


def _table(found: SimulatorCalibration, fitted: Sequence[Fitted], target: Path | None) -> list[str]:
    lines = [f"{found.model} on {found.gpu}, {found.engine}: {found.learned_from}"]
    for one in fitted:
        lines.append(f"TP {one.tp}: {one.residuals.text} (from {one.n})")
        held = {e.figure: e for e in one.held_out}
        after = {e.figure: e for e in one.after}
        for before in one.before:
            out = f", left out {held[before.figure].text}" if before.figure in held else ""
            lines.append(f"  {before.figure}: error {before.text}, then {after[before.figure].text}{out}")
        lines += [f"  {text}" for text in one.remarks]
    lines += [f"memory: {seen.text}" for seen in found.memory]
    lines.append(f"written: {target}" if target is not None else "nothing was learned, nothing is written")
    return lines


def _say(text: str) -> None:
    print(f"simulating {text}", file=sys.stderr, flush=True)
